"""The stages that choose what a specification leaves open, and what each says that it chose."""

import dataclasses
import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from lm.config.model import ModelConfig
from lm.config.presets import build_run_config
from lm.config.run_config import RunConfig
from lm.config.run_spec import run_spec
from lm.config.training import TrainingConfig
from lm.hardware import Hardware
from lm.training.loop import train
from lm.training.planning import budget as clock
from lm.training.planning.budget import EvaluationCost, TrainingSpeed, evaluation_reserve
from lm.training.planning.plan import (
    Measured,
    Plan,
    Survey,
    add_run_plan,
    choose_evaluations,
    compute_steps,
    plan_corpus,
    plan_length,
    plan_model,
    plan_spec,
    probe_config,
    should_choose_size,
)
from lm.training.planning.regularisation import count_useful_epochs
from tests.lm.training.runs import resume_run


@pytest.mark.parametrize(
    ("given", "steps"),
    [({"steps": 7}, 7), ({"epochs": 2.0}, 25), ({"epochs": 0.01}, 1), ({"tokens": 1281}, 11),
     ({"tokens": 1280, "batch_tokens": 250}, 6)],
)  # fmt: skip
def test_length_in_steps_epochs_or_tokens(make_run, given, steps):
    """In an epoch of 100 windows of 16 tokens."""
    run = make_run(**{"batch_size": 8, "steps": None, **given})
    run.data.samples, run.data.tokens, run.data.steps_per_epoch = 100, 1600, 100 / run.data.batch(0).rows
    assert compute_steps(run.config.training, run.data, step_seconds=1.0) == steps


@pytest.mark.parametrize(
    ("speed", "spent", "steps"), [(0.5, 0.0, 200), (0.5, 20.0, 160), (3.0, 0.0, 33), (1e3, 0.0, 1)]
)
def test_a_budget_comes_to_what_is_left_of_it_at_a_speed(make_run, speed, spent, steps):
    config = TrainingConfig(budget="100s", schedule="wsd")
    assert compute_steps(config, make_run().data, step_seconds=speed, spent=spent) == steps


def test_a_resumed_run_with_a_budget_has_as_many_more_steps_as_its_pace_allows(make_run, time, monkeypatch):
    """Twelve steps took a quarter of a second each; 40 s of another budget are left."""
    monkeypatch.setattr(clock.time, "perf_counter", itertools.count(0.0, 0.25).__next__)
    run = make_run(evaluate_every=0)
    list(train(run))
    assert run.state.training_seconds == 12 * 0.25
    longer = resume_run(run.folder, new_length=TrainingConfig(budget="50s", schedule="wsd"), spent=10.0)
    assert (longer.plan.steps, longer.plan.budget_seconds, longer.plan.extended_at) == (12 + 160, 50.0, 12)
    assert longer.clock is not None
    assert longer.clock.seconds_left == 40
    assert longer.config.training.schedule == "wsd"


LIMIT = evaluation_reserve(600.0)
"""Seconds for the evaluations of ten minutes."""


@pytest.fixture
def budgeted():
    """The settings of a run that is given ten minutes, which begin now."""
    return build_run_config("tiny", {"training": {"budget": "10m", "bleu_sentences": 500}})


def test_the_time_that_is_set_aside_is_never_exceeded(budgeted):
    for loss in (5.0, 20.0, 70.0):
        chosen, each = choose_evaluations(
            budgeted, EvaluationCost(loss_seconds=loss, sentence_seconds=0.0), steps=1000, limit=LIMIT
        )
        often = 1 if not chosen["evaluate_every"] else round(1000 / chosen["evaluate_every"] + 0.5)
        assert often * each <= max(evaluation_reserve(600.0), each)


def data_of(*, pairs: bool = False, conversations: bool = False, validation_bytes: int = 1000) -> Any:
    """Return data of 5,000 tokens, an epoch of which takes 40 steps."""
    return SimpleNamespace(
        holds_pairs=pairs, holds_conversations=conversations, tokens=5000, steps_per_epoch=40,
        validation_bytes=validation_bytes,
    )  # fmt: skip


def test_a_small_model_is_measured_on_the_hardware_of_the_run():
    for pairs, depth, tokens in ((False, 4, 4096), (True, 3, 2048)):
        files = {"source": "a.en", "target": "a.de"} if pairs else {}
        corpus = () if pairs else ("text.txt",)
        for portable in {False, not pairs}:
            plan = plan_spec(run_spec(*corpus, budget="1m", threads=3, portable=portable, **files))
            probe = probe_config(plan, pairs=pairs)
            assert (probe.model.n_layers, probe.training.batch_tokens, probe.hardware.threads) == (depth, tokens, 3)
            assert bool(probe.model.n_encoder_layers) == pairs
            assert ("portable" in str(probe.preset)) == portable
    one_stack = plan_spec(run_spec(source="a.en", target="a.de", decoder_only=True, budget="1m"))
    assert probe_config(one_stack, pairs=True).model.decoder_only


def test_a_model_has_the_vocabularies_and_labels_of_its_corpus():
    tokenizer, other = (SimpleNamespace(vocab_size=size, has_same_ids=lambda one, size=size: one.vocab_size == size)
                        for size in (100, 70))  # fmt: skip
    corpus = SimpleNamespace(
        vocab_size=100, tokenizer=tokenizer, source_tokenizer=other, labels=("a", "b"), label_completions=(" a", " b"),
        has_merges=False, longest_conversation=0,
    )  # fmt: skip
    pairs = build_run_config("translation-tiny", {"parallel": {"bpe_dropout": 0.1}})
    corpus.kind = "pairs"
    found = plan_corpus(Plan(pairs), corpus).config
    assert (found.model.vocab_size, found.model.source_vocab_size, found.parallel.bpe_dropout) == (100, 70, 0.0)
    corpus.source_tokenizer, corpus.has_merges = tokenizer, True
    same = plan_corpus(Plan(pairs), corpus).config
    assert (same.model.source_vocab_size, same.parallel.bpe_dropout) == (None, 0.1)
    corpus.source_tokenizer = None
    for kind, objective, labels, completions in (
        ("examples", "masked", ("a", "b"), ()), ("text", "masked", (), ()), ("examples", "causal", (), (" a", " b")),
    ):  # fmt: skip
        corpus.kind = kind
        config = build_run_config("tiny", {"model": {"objective": objective}})
        fitted = plan_corpus(Plan(config), corpus).config
        assert (fitted.model.labels, fitted.label_completions, fitted.data_kind) == (labels, completions, kind)


@pytest.mark.parametrize(("max_steps", "steps"), [(None, 300), (200, 200), (400, 300)])
def test_a_plan_has_the_steps_that_are_left_of_its_budget_up_to_a_limit(tmp_path, max_steps, steps):
    config = build_run_config("tiny", {"training": {"budget": "10m"}})
    hardware = Hardware("cpu", "bfloat16", 3, "float32")
    plan = add_run_plan(
        Plan(config), SimpleNamespace(folder=tmp_path / "x" / ".."), data_of(), hardware, data_key="key",
        micro_batch_tokens=64, processes=2, step_seconds=1.5, spent=150.0, max_steps=max_steps,
    ).config.plan  # fmt: skip
    assert plan is not None
    assert (plan.steps, plan.max_steps, plan.budget_seconds) == (steps, max_steps, 600.0)
    assert (plan.device, plan.dtype, plan.threads, plan.optimizer_dtype) == ("cpu", "bfloat16", 3, "float32")
    assert (plan.data, plan.data_key, plan.processes, plan.micro_batch_tokens) == (str(tmp_path), "key", 2, 64)


@pytest.mark.parametrize("ngram_bits", [(4.0, 3.0, 3.0), (4.0, 3.0, 1.0)])
@pytest.mark.parametrize("r_drop", [None, 0.0])
def test_the_number_of_epochs_is_limited_and_with_it_what_follows_from_them(make_run, ngram_bits, r_drop):
    """A repetitive text may be seen more often; each of the two passes of R-Drop counts."""
    run, fixed = make_run(batch_size=8), {"model": {}, "training": {} if r_drop is None else {"r_drop": r_drop}}
    timed = dataclasses.replace(run.config.training, steps=None, budget="9m", schedule="wsd")
    config, tokens_in_step, found = dataclasses.replace(run.config, training=timed), 8 * 16, []
    for left in (10, 10_000, 100_000):
        speed = TrainingSpeed(1.0, EvaluationCost(0.01, 0.0), Hardware("cpu", "float32", 1))
        chosen, _, max_steps = plan_length(
            Plan(config, fixed=fixed, is_regularised=True), None, run.data,
            Measured(speed, left, ngram_bits=ngram_bits, train_tokens=1000),
        )  # fmt: skip
        found.append((max_steps, chosen.config.model.dropout, chosen.config.training.weight_decay))
        if max_steps is not None:
            passes = 2 if chosen.config.training.r_drop else 1
            assert passes == (2 if r_drop is None and ngram_bits[2] == 3.0 else 1)
            seen = passes * max_steps * tokens_in_step / 1000
            assert seen == pytest.approx(count_useful_epochs(ngram_bits[2] / 3.0), rel=0.05)
    assert found[0][0] is None  # ten steps
    assert found[1] == found[2]  # ten times as long


def given(*corpus: str, **options: object) -> Plan:
    return plan_spec(run_spec(*corpus, **options))


def test_each_value_has_what_chose_it(tmp_path):
    (tmp_path / "settings.toml").write_text("[model]\nn_layers = 3\n[training]\nseed = 4\n")
    chosen = given("text.txt", preset="small", config=tmp_path / "settings.toml", n_layers=2, lora=None)
    assert (chosen.config.model.n_layers, chosen.config.training.seed) == (2, 4)
    by = chosen.reasons
    assert (by["preset"], by["model.n_layers"], by["training.seed"]) == ("python", "python", "file")
    assert (by["model.d_model"], by["model.dropout"]) == ("preset", "default")
    assert given("text.txt", budget="1m").reasons["training.schedule"] == "other settings"
    assert given("text.txt").reasons["preset"] == "default"


def test_a_fine_tuned_model_is_that_of_its_run_where_nothing_else_is_given():
    base = ModelConfig(d_model=96, n_layers=3, n_heads=3, dropout=0.3)
    chosen = plan_spec(run_spec("text.txt", from_run="runs/base", dropout=0.1), parent=RunConfig(base))
    assert chosen.config.model == base.replace(dropout=0.1)
    assert (chosen.config.preset, chosen.reasons["model.d_model"]) == ("tiny", "from_run")
    assert chosen.reasons["model.dropout"] == "python"


@pytest.mark.parametrize("pairs", [False, True])
def test_a_budget_sizes_what_is_open_and_nothing_else(pairs):
    files = {"source": "a.en", "target": "a.de"} if pairs else {}
    corpus = () if pairs else ("text.txt",)
    spec = run_spec(*corpus, budget="10m", vocab_size=300, batch_size=5, **files)
    assert should_choose_size(spec)
    assert not should_choose_size(run_spec(*corpus, budget="10m", preset="tiny", **files))
    assert not should_choose_size(run_spec(*corpus, steps=5, **files))
    small, large = (
        plan_model(plan_spec(spec), spec, Survey(10_000_000, pairs=pairs), flops_per_second=rate, elapsed=0.0)
        for rate in (1e10, 1e13)
    )
    for chosen in (small, large):
        assert chosen.is_regularised
        assert chosen.config.preset == f"{'translation-' if pairs else ''}depth-{chosen.config.model.n_layers}"
        assert (chosen.config.tokenizer.vocab_size, chosen.config.training.batch_size) == (300, 5)
        assert chosen.config.training.batch_tokens is None
        assert (chosen.reasons["preset"], chosen.reasons["tokenizer.vocab_size"]) == ("budget", "python")
    assert large.config.model.n_layers > small.config.model.n_layers


def test_the_held_out_fraction_depends_on_the_corpus_alone():
    spec = run_spec("text.txt", budget="10m")
    chosen = [
        plan_model(plan_spec(spec), spec, Survey(4_000_000), flops_per_second=flops_per_second, elapsed=elapsed)
        for elapsed in (0.0, 500.0)
        for flops_per_second in (1e9, 1e13)
    ]
    assert {found.config.data.validation for found in chosen} == {"0.05"}
    assert {found.reasons["data.validation"] for found in chosen} == {"size of the corpus"}
    given = run_spec("text.txt", budget="10m", validation="0.2")
    fixed = plan_model(plan_spec(given), given, Survey(4_000_000), flops_per_second=1e11, elapsed=0.0)
    assert fixed.config.data.validation == "0.2"


def test_what_is_fixed_is_never_chosen_otherwise():
    chosen = given("text.txt", dropout=0.2).choose("a later stage", {"model": {"dropout": 0.5, "n_layers": 7}})
    assert (chosen.config.model.dropout, chosen.config.model.n_layers) == (0.2, 7)
    assert (chosen.reasons["model.dropout"], chosen.reasons["model.n_layers"]) == ("python", "a later stage")

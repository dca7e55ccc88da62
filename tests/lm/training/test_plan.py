"""The stages that choose what a specification leaves open, and what each says that it chose."""

import dataclasses
import itertools
from types import SimpleNamespace

import pytest

from lm.config.model import ModelConfig
from lm.config.presets import build_run_config
from lm.config.run_config import DataConfig, RunConfig, TrainingConfig
from lm.config.run_spec import run_spec
from lm.hardware import Hardware
from lm.training import rules as clock
from lm.training.loop import train
from lm.training.plan import (
    Measured,
    Plan,
    choose_evaluations,
    compute_steps,
    extend,
    plan_corpus,
    plan_length,
    plan_model,
    plan_spec,
    should_choose_size,
)
from lm.training.rules import USEFUL_EPOCHS, TrainingSpeed, evaluation_reserve
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


def test_a_resumed_run_with_a_budget_has_as_many_more_steps_as_its_pace_allows(make_run, time, monkeypatch):
    """Twelve steps took a quarter of a second each; 40 s of another budget are left."""
    monkeypatch.setattr(clock.time, "perf_counter", itertools.count(0.0, 0.25).__next__)
    run = make_run(evaluate_every=0, schedule="inverse-sqrt")
    list(train(run))
    assert run.state.training_seconds == 12 * 0.25
    longer = resume_run(run.folder, new_length=TrainingConfig(budget="50s", schedule="wsd"), spent=10.0)
    assert (longer.plan.steps, longer.plan.budget_seconds, longer.plan.extended_at) == (12 + 160, 50.0, 12)
    assert longer.clock is not None
    assert longer.clock.seconds_left == 40
    assert longer.config.training.schedule == "wsd"
    assert longer.learning_rate == pytest.approx(run.learning_rate)


def test_evaluations_of_an_extended_run_are_spaced_for_its_length_unless_they_were_given(make_run):
    run = make_run(evaluate_every=0)
    state = dataclasses.replace(run.state, step=12)
    for before, reason, expected in ((2, "number of steps", 5), (0, "time of an evaluation", 12), (2, "flag", 2)):
        training = run.config.training.replace(evaluate_every=before)
        plan = dataclasses.replace(run.plan, reasons={"training.evaluate_every": reason})
        config = run.config.replace(plan=plan, training=training)
        longer = extend(config, state, TrainingConfig(steps=112), data=run.data)
        assert longer.training.evaluate_every == expected


LIMIT = evaluation_reserve(600.0)
"""Seconds for the evaluations of ten minutes."""


@pytest.fixture
def budgeted():
    """The settings of a run that is given ten minutes, which begin now."""
    return build_run_config("tiny", {"training": {"budget": "10m", "bleu_sentences": 500}})


def test_the_time_that_is_set_aside_is_never_exceeded(budgeted):
    for loss in (5.0, 20.0, 70.0):
        speed = TrainingSpeed(1.0, loss, 0.0, Hardware("cpu", "float32", 1))
        chosen, each = choose_evaluations(budgeted, speed, steps=1000, limit=LIMIT)
        often = 1 if not chosen["evaluate_every"] else round(1000 / chosen["evaluate_every"] + 0.5)
        assert often * each <= max(evaluation_reserve(600.0), each)


@pytest.mark.parametrize("ngram_bits", [(4.0, 3.0, 3.0), (4.0, 3.0, 1.0)])
def test_the_number_of_epochs_is_limited_and_with_it_what_follows_from_them(make_run, ngram_bits):
    """A repetitive text may be seen more often."""
    run = make_run(batch_size=8)
    timed = dataclasses.replace(run.config.training, steps=None, budget="9m", schedule="wsd")
    config, tokens_in_step, found = dataclasses.replace(run.config, training=timed), 8 * 16, []
    for left in (10, 10_000, 100_000):
        speed = TrainingSpeed(1.0, 0.01, 0.0, Hardware("cpu", "float32", 1))
        chosen, _, max_steps = plan_length(
            Plan(config, is_regularised=True), None, run.data,
            Measured(speed, left, ngram_bits=ngram_bits, train_tokens=1000),
        )  # fmt: skip
        found.append((max_steps, chosen.config.model.dropout, chosen.config.training.weight_decay))
        if max_steps is not None:
            seen = max_steps * tokens_in_step / 1000
            assert seen == pytest.approx(USEFUL_EPOCHS * 3.0 / ngram_bits[2], rel=0.05)
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
    assert (by["model.d_model"], given("text.txt").reasons["preset"]) == ("default", "default")


def test_a_fine_tuned_model_is_that_of_its_run_where_nothing_else_is_given():
    base = ModelConfig(d_model=96, n_layers=3, n_heads=3, dropout=0.3)
    chosen = plan_spec(run_spec("text.txt", from_run="runs/base", dropout=0.1), parent=RunConfig(base))
    assert chosen.config.model == base.replace(dropout=0.1)
    assert (chosen.config.preset, chosen.reasons["model.d_model"]) == ("tiny", "from_run")
    assert chosen.reasons["model.dropout"] == "python"


@pytest.mark.parametrize("pairs", [False, True])
def test_a_budget_sizes_what_is_open_and_nothing_else(pairs):
    spec = run_spec("text.txt", budget="10m", vocab_size=300, batch_size=5).replace(kind="pairs" if pairs else "text")
    assert should_choose_size(spec)
    assert not should_choose_size(run_spec("text.txt", budget="10m", preset="tiny"))
    assert not should_choose_size(run_spec("text.txt", steps=5))
    small, large = (
        plan_model(plan_spec(spec), spec, text_bytes=10_000_000, flops_per_second=rate, elapsed=0.0)
        for rate in (1e10, 1e13)
    )
    for chosen in (small, large):
        assert chosen.is_regularised
        assert chosen.config.preset == f"{'translation-' if pairs else ''}depth-{chosen.config.model.n_layers}"
        assert (chosen.config.tokenizer.vocab_size, chosen.config.training.batch_size) == (300, 5)
        assert chosen.config.training.batch_tokens is None
        assert (chosen.reasons["preset"], chosen.reasons["tokenizer.vocab_size"]) == ("budget", "python")
    assert large.config.model.n_layers > small.config.model.n_layers


@pytest.mark.parametrize(
    ("given", "members", "is_cased"),
    [
        ({}, 8, True),
        ({"portable": True}, 1, False),
        ({"preset": "portable-depth-3"}, 1, False),
        ({"teacher": ["run"]}, 1, True),
        ({"objective": "masked"}, 1, False),
        ({"members": 3}, 3, True),
        ({"n_layers": 12, "d_model": 768, "n_heads": 12}, 1, True),
        ({"vocab_size": 8192}, 8, False),
        ({"inline_casing": False}, 8, False),
    ],
)
def test_a_budget_trains_an_ensemble_with_inline_casing_where_they_can_be_used(given, members, is_cased):
    spec = run_spec("text.txt", budget="10m", **given).replace(kind="text")
    plan = plan_model(plan_spec(spec), spec, text_bytes=400_000, flops_per_second=1e12, elapsed=0.0)
    assert (plan.config.model.members, plan.config.tokenizer.inline_casing) == (members, is_cased)


def test_the_size_changes_neither_how_files_are_read_nor_teachers():
    spec = run_spec("tokens", budget="10m", teacher=["run"]).replace(kind="text")
    before = plan_spec(spec)
    found = before.config.training.replace(teacher=("/runs/run/checkpoints/step-9",))
    config = dataclasses.replace(before.config, data=DataConfig(text_column="body", validation="0.3"), training=found)
    before = dataclasses.replace(before, config=config)
    plan = plan_model(before, spec, text_bytes=400_000, flops_per_second=1e12, elapsed=0.0)
    assert (plan.config.data, plan.config.training.teacher) == (config.data, found.teacher)


def test_what_is_fixed_is_never_chosen_otherwise():
    chosen = given("text.txt", dropout=0.2).choose("a later stage", model={"dropout": 0.5, "n_layers": 7})
    assert (chosen.config.model.dropout, chosen.config.model.n_layers) == (0.2, 7)
    assert (chosen.reasons["model.dropout"], chosen.reasons["model.n_layers"]) == ("python", "a later stage")


@pytest.mark.parametrize(
    ("longest", "options", "base", "context"),
    [
        (301, {}, None, 300),
        (5000, {}, None, 64 * 32 // 4),  # a quarter of the tokens of a batch
        (20, {}, None, 32),  # it is never shortened
        (301, {}, ModelConfig(context_length=32), 300),
        (301, {}, ModelConfig(context_length=32, positions="learned"), 32),
        (301, {"context": 32}, ModelConfig(context_length=32), 32),
    ],
)
def test_the_longest_conversation_that_positions_and_batch_allow(longest, options, base, context):
    from_run = {} if base is None else {"from_run": "runs/base"}
    parent = None if base is None else RunConfig(model=base)
    chosen = plan_spec(run_spec("chats.jsonl", batch_tokens=64 * 32, **options, **from_run), parent=parent)
    if base is None and not options:
        chosen = chosen.choose("budget", model={"context_length": 32})
    corpus = SimpleNamespace(
        longest_conversation=longest, vocab_size=300, source_tokenizer=None, label_completions=(), kind="conversations",
        has_merges=True, tokenizer=SimpleNamespace(kind="bpe", marks=""),
    )  # fmt: skip
    assert plan_corpus(chosen, corpus).config.model.context_length == context

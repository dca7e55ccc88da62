"""The stages that choose what a specification leaves open, and what each says that it chose."""

import dataclasses
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from lm.config.keywords import run_spec

from lm.config.model import ModelConfig
from lm.config.presets import build_run_config
from lm.config.training import TrainingConfig, parse_duration
from lm.errors import UsageError
from lm.hardware import Hardware
from lm.optim.optimizers import training_state_bytes
from lm.training.loop import train
from lm.training.planning import budget as clock
from lm.training.planning.budget import EvaluationCost, TrainingSpeed, evaluation_reserve
from lm.training.planning.regularisation import count_useful_epochs
from lm.training.planning.resolve import (
    Resolution,
    add_plan,
    choose_evaluations,
    choose_size,
    choose_time,
    compute_steps,
    fit_to_corpus,
    fit_to_speed,
    fit_to_steps,
    probe_config,
    resolve_spec,
    should_choose_size,
    should_choose_time,
)
from lm.training.startup import resume_run


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
    ("given", "interval"),
    [({"steps": 50}, 13), ({"steps": 5000}, 100), ({"steps": 50, "evaluate_every": 40}, 40),
     ({"steps": 50, "evaluate_every": 0}, 0)],
)  # fmt: skip
def test_a_short_run_is_evaluated_four_times_unless_an_interval_is_given(make_run, given, interval):
    chosen = fit_to_steps(resolve_spec(run_spec("text.txt", **given)), make_run().data)
    assert chosen.config.training.evaluate_every == interval


@pytest.mark.parametrize(("given", "flag"), [({"epochs": 1e30}, "--epochs"), ({"tokens": 2**63 - 1}, "--tokens")])
def test_more_steps_than_can_be_counted_are_refused(make_run, given, flag):
    config, data = TrainingConfig(**given), make_run().data
    with pytest.raises(UsageError, match=rf"{flag[2:]} come to .* steps, more than can be trained"):
        compute_steps(config, data, step_seconds=1.0)


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


def test_cheap_evaluations_are_twenty_at_most(budgeted):
    chosen, each = choose_evaluations(
        budgeted, EvaluationCost(loss_seconds=0.1, sentence_seconds=0.0), steps=1950, limit=LIMIT
    )
    assert chosen == {"evaluate_every": 100}
    assert 0.1 < each < 1


def test_the_time_that_is_set_aside_is_never_exceeded(budgeted):
    for loss in (5.0, 20.0, 70.0):
        chosen, each = choose_evaluations(
            budgeted, EvaluationCost(loss_seconds=loss, sentence_seconds=0.0), steps=1000, limit=LIMIT
        )
        often = 1 if not chosen["evaluate_every"] else round(1000 / chosen["evaluate_every"] + 0.5)
        assert often * each <= max(evaluation_reserve(600.0), each)


def test_an_evaluation_that_takes_all_the_time_comes_once(budgeted):
    chosen, _ = choose_evaluations(
        budgeted, EvaluationCost(loss_seconds=1000.0, sentence_seconds=0.0), steps=1000, limit=LIMIT
    )
    assert chosen["evaluate_every"] == 0


def test_as_many_sentences_are_translated_as_there_is_time_for(budgeted):
    few, _ = choose_evaluations(
        budgeted, EvaluationCost(loss_seconds=0.1, sentence_seconds=1.0), steps=1000, limit=LIMIT
    )
    some, _ = choose_evaluations(
        budgeted, EvaluationCost(loss_seconds=0.1, sentence_seconds=0.05), steps=1000, limit=LIMIT
    )
    all_of_them, _ = choose_evaluations(
        budgeted, EvaluationCost(loss_seconds=0.1, sentence_seconds=1e-4), steps=1000, limit=LIMIT
    )
    assert few["bleu_sentences"] == 100 <= some["bleu_sentences"] <= all_of_them["bleu_sentences"] == 500


@pytest.mark.parametrize(
    ("evaluations", "epochs", "interval"),
    [
        (0.9, 0, 0),  # one at the end
        (1.99, 0, 0),
        (2.01, 0, 667),  # and one after two thirds: the last interval is half as long
        (3.5, 0, 400),
        (1e6, 0, 52),  # 20, and of many epochs one each
        (1e6, 20.4, 52),
        (1e6, 30.6, 33),
        (25.5, 30.6, 41),
    ],
)
def test_there_is_time_for_so_many_evaluations(budgeted, evaluations, epochs, interval):
    """Each takes 2 s for the loss, and the time of writing its checkpoint at 150 MB/s."""
    saved = training_state_bytes(budgeted.model, budgeted.training) / 150e6
    chosen, each = choose_evaluations(
        budgeted, EvaluationCost(2.0, 0.0), steps=1000, limit=evaluations * (2 + saved), epochs=epochs
    )
    assert each == pytest.approx(2 + saved)
    assert chosen == {"evaluate_every": interval}


@pytest.mark.parametrize(("limit", "sentences"), [(10, 100), (48, 100), (88, 200), (208, 500), (1000, 500)])
def test_four_evaluations_may_translate_as_many_sentences_as_time_allows(budgeted, limit, sentences):
    """Of 2 s for the loss, and a tenth of a second for a sentence."""
    saved = training_state_bytes(budgeted.model, budgeted.training) / 150e6
    chosen, each = choose_evaluations(budgeted, EvaluationCost(2.0, 0.1), steps=1000, limit=limit + 4 * saved)
    assert chosen["bleu_sentences"] == sentences
    assert each == pytest.approx(2 + saved + sentences / 10)


def data_of(*, pairs: bool = False, conversations: bool = False, validation_bytes: int = 1000) -> Any:
    """Return data of 5,000 tokens, an epoch of which takes 40 steps."""
    return SimpleNamespace(
        holds_pairs=pairs, holds_conversations=conversations, tokens=5000, steps_per_epoch=40,
        validation_bytes=validation_bytes,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("data", "train_tokens", "epochs", "tokens"),
    [
        (data_of(), 10_000, 4.0, 40_000), (data_of(), 0, 12.5, 62_500), (data_of(pairs=True), 10_000, 12.5, 62_500),
        (data_of(conversations=True), 10_000, 12.5, 62_500),
    ],
)  # fmt: skip
def test_what_a_budget_is_enough_for(data, train_tokens, epochs, tokens):
    """500 steps of 2 s, of 80 tokens each; of few epochs, twenty evaluations at most, however cheap they are."""
    spec = run_spec("text.txt", budget="30m", context=16, batch_size=5, warmup_steps=70)
    resolution = resolve_spec(spec)
    speed = TrainingSpeed(2.0, EvaluationCost(5.0, 0.0), Hardware("cpu", "float32", 1))
    open_ones = dataclasses.replace(resolution, is_regularised=False)
    chosen, measured, forecast = fit_to_speed(open_ones, speed, data, seconds_left=1000.0, train_tokens=train_tokens)
    assert (forecast.steps, forecast.epochs, forecast.tokens) == (500, epochs, tokens)
    assert (forecast.max_steps, forecast.ngram_bits) == (None, ())
    assert measured.evaluation_seconds > 5
    assert chosen.reasons["training.evaluate_every"] == "time of an evaluation"
    assert chosen.config.training.patience is None
    least = fit_to_speed(open_ones, speed, data, seconds_left=-1.0, train_tokens=train_tokens)[2]
    assert least.steps == 1
    cheap = TrainingSpeed(2.0, EvaluationCost(0.0, 0.0), Hardware("cpu", "float32", 1))
    often = fit_to_speed(open_ones, cheap, data, seconds_left=1000.0, train_tokens=train_tokens)[0]
    assert often.config.training.evaluate_every == 26  # 500 / 19.5


@pytest.mark.parametrize(
    ("seconds", "validation_bytes", "is_patient", "warmup"),
    [(500.0, 1000, False, 5), (1000.0, 1000, False, 10), (2000.0, 1000, True, 10), (2000.0, 0, False, 10)],
)
def test_a_plateau_is_waited_for_where_there_are_eight_evaluations_to_see_it(
    seconds, validation_bytes, is_patient, warmup
):
    """An evaluation takes 20 s of the 10% that all of them may take; warm-up takes a tenth of few steps."""
    resolution = resolve_spec(run_spec("text.txt", budget="30m", preset="tiny"))
    speed = TrainingSpeed(10.0, EvaluationCost(20.0, 0.0), Hardware("cpu", "float32", 1))
    chosen, _, forecast = fit_to_speed(
        resolution, speed, data_of(validation_bytes=validation_bytes), seconds_left=seconds, train_tokens=10**9
    )
    patience = chosen.config.training.decay_patience, chosen.config.training.patience
    assert patience == ((3, 2) if is_patient else (None, None))
    assert forecast.steps == seconds / 10
    assert chosen.config.training.warmup_steps == warmup
    assert (chosen.reasons["training.warmup_steps"] == "steps in the budget") == (warmup < 10)


def test_a_small_model_is_measured_on_the_hardware_of_the_run():
    for pairs, depth, tokens in ((False, 4, 4096), (True, 3, 2048)):
        files = {"source": "a.en", "target": "a.de"} if pairs else {}
        corpus = () if pairs else ("text.txt",)
        for portable in {False, not pairs}:
            resolution = resolve_spec(run_spec(*corpus, budget="1m", threads=3, portable=portable, **files))
            probe = probe_config(resolution, pairs=pairs)
            assert (probe.model.n_layers, probe.training.batch_tokens, probe.hardware.threads) == (depth, tokens, 3)
            assert bool(probe.model.n_encoder_layers) == pairs
            assert ("portable" in str(probe.preset)) == portable
    one_stack = resolve_spec(run_spec(source="a.en", target="a.de", decoder_only=True, budget="1m"))
    assert probe_config(one_stack, pairs=True).model.decoder_only


def test_a_model_has_the_vocabularies_and_labels_of_its_corpus():
    tokenizer, other = (SimpleNamespace(vocab_size=size, has_same_ids=lambda one, size=size: one.vocab_size == size)
                        for size in (100, 70))  # fmt: skip
    corpus = SimpleNamespace(
        vocab_size=100, tokenizer=tokenizer, source_tokenizer=other, labels=("a", "b"), label_completions=(" a", " b"),
        has_merges=False,
    )  # fmt: skip
    pairs = build_run_config("translation-tiny", {"parallel": {"bpe_dropout": 0.1}})
    found = fit_to_corpus(pairs, corpus)
    assert (found.model.vocab_size, found.model.source_vocab_size, found.parallel.bpe_dropout) == (100, 70, 0.0)
    corpus.source_tokenizer, corpus.has_merges = tokenizer, True
    same = fit_to_corpus(pairs, corpus)
    assert (same.model.source_vocab_size, same.parallel.bpe_dropout) == (None, 0.1)
    corpus.source_tokenizer = None
    for supervised, objective, labels, completions in (
        (True, "masked", ("a", "b"), ()), (False, "masked", (), ()), (True, "causal", (), (" a", " b")),
        (False, "causal", (), ()),
    ):  # fmt: skip
        config = build_run_config("tiny", {"data": {"supervised": supervised}, "model": {"objective": objective}})
        fitted = fit_to_corpus(config, corpus)
        assert (fitted.model.labels, fitted.label_completions) == (labels, completions)


@pytest.mark.parametrize(("max_steps", "steps"), [(None, 300), (200, 200), (400, 300)])
def test_a_plan_has_the_steps_that_are_left_of_its_budget_up_to_a_limit(tmp_path, max_steps, steps):
    config = build_run_config("tiny", {"training": {"budget": "10m"}})
    hardware = Hardware("cpu", "bfloat16", 3, "float32")
    plan = add_plan(
        config, hardware, data_of(), folder=tmp_path / "x" / "..", data_key="key", micro_batch_tokens=64, processes=2,
        step_seconds=1.5, spent=150.0, max_steps=max_steps,
    ).plan  # fmt: skip
    assert plan is not None
    assert (plan.steps, plan.max_steps, plan.budget_seconds) == (steps, max_steps, 600.0)
    assert (plan.device, plan.dtype, plan.threads, plan.optimizer_dtype) == ("cpu", "bfloat16", 3, "float32")
    assert (plan.data, plan.data_key, plan.processes, plan.micro_batch_tokens) == (str(tmp_path), "key", 2, 64)


@pytest.mark.parametrize("ngram_bits", [(4.0, 3.0, 3.0), (4.0, 3.0, 1.0)])
@pytest.mark.parametrize("r_drop", [None, 0.0])
def test_the_number_of_epochs_is_limited_and_with_it_what_follows_from_them(make_run, ngram_bits, r_drop):
    """A repetitive text may be seen more often; each of the two passes of R-Drop counts."""
    run, fixed = make_run(batch_size=8), {"model": {}, "training": {} if r_drop is None else {"r_drop": r_drop}}
    resolution, tokens_in_step, found = Resolution(run.config, fixed, is_regularised=True), 8 * 16, []
    for left in (10, 10_000, 100_000):
        speed = TrainingSpeed(1.0, EvaluationCost(0.01, 0.0), Hardware("cpu", "float32", 1))
        chosen, _, forecast = fit_to_speed(
            resolution, speed, run.data, seconds_left=left, ngram_bits=ngram_bits, train_tokens=1000
        )
        found.append((forecast.max_steps, chosen.config.model.dropout, chosen.config.training.weight_decay))
        if forecast.max_steps is not None:
            passes = 2 if chosen.config.training.r_drop else 1
            assert passes == (2 if r_drop is None and ngram_bits[2] == 3.0 else 1)
            seen = passes * forecast.max_steps * tokens_in_step / 1000
            assert seen == pytest.approx(count_useful_epochs(ngram_bits[2] / 3.0), rel=0.05)
            assert forecast.steps <= forecast.max_steps
    assert found[0][0] is None  # ten steps
    assert found[1] == found[2]  # ten times as long


def given(*corpus: str, **options: object) -> Resolution:
    return resolve_spec(run_spec(*corpus, **options))


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
    chosen = resolve_spec(run_spec("text.txt", from_run="runs/base", dropout=0.1, portable=True), base=base)
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
        choose_size(resolve_spec(spec), seconds=seconds, flops_per_second=1e11, text_bytes=10_000_000, pairs=pairs)
        for seconds in (60.0, 60_000.0)
    )
    for chosen in (small, large):
        assert chosen.is_regularised
        assert chosen.config.preset == f"{'translation-' if pairs else ''}depth-{chosen.config.model.n_layers}"
        assert (chosen.config.tokenizer.vocab_size, chosen.config.training.batch_size) == (300, 5)
        assert chosen.config.training.batch_tokens is None
        assert (chosen.reasons["preset"], chosen.reasons["tokenizer.vocab_size"]) == ("budget", "python")
    assert large.config.model.n_layers > small.config.model.n_layers


def sized(*, text_bytes: int, pairs: bool = False, **options: object) -> Resolution:
    """Stages 1 and 2 of a run without a budget, on a machine of 100 GFLOP/s."""
    sides = {"source": "a.en", "target": "a.de"} if pairs else {}
    chosen = choose_time(
        given(*([] if pairs else ["text.txt"]), **sides, **options),
        flops_per_second=1e11,
        text_bytes=text_bytes,
        pairs=pairs,
    )
    seconds = parse_duration(str(chosen.config.training.budget))
    return choose_size(chosen, seconds=seconds, flops_per_second=1e11, text_bytes=text_bytes, pairs=pairs)


def test_the_time_is_chosen_where_nothing_says_how_long():
    assert should_choose_time(run_spec("text.txt"))
    assert should_choose_time(run_spec("text.txt", preset="tiny", dropout=0.1, vocab_size=300, learning_rate=0.01))
    assert should_choose_time(run_spec("text.txt", depth=3))
    for said in ({"steps": 5}, {"epochs": 1.0}, {"tokens": 100}, {"budget": "1m"}, {"from_run": "runs/a"}):
        assert not should_choose_time(run_spec("text.txt", **said))
    assert not should_choose_time(run_spec("text.txt", preset="gpt2"))  # which says how long itself
    assert not should_choose_time(run_spec("text.txt", schedule="cosine"))
    assert not should_choose_time(run_spec("text.jsonl", supervised=True))
    assert should_choose_time(run_spec(source="a.en", target="a.de"))
    assert not should_choose_time(run_spec(source="a.en", target="a.de", preset="translation"))


@pytest.mark.parametrize("options", [{}, {"pairs": True}, {"pairs": True, "decoder_only": True}])
def test_a_larger_corpus_gets_more_time_from_one_minute_to_half_an_hour(options):
    times = [
        parse_duration(str(sized(text_bytes=number, **options).config.training.budget))
        for number in (1_000, 20_000, 400_000, 1_000_000, 4_000_000, 10**9)
    ]
    assert times == sorted(times)
    assert (times[0], times[-1]) == (60, 1800)


def test_the_time_chosen_has_its_reason_and_goes_into_the_size():
    chosen = sized(text_bytes=400_000)
    assert chosen.reasons["training.budget"] == "size of the corpus"
    assert (chosen.config.training.schedule, chosen.config.training.steps) == ("wsd", None)
    assert chosen.is_regularised


def test_the_held_out_fraction_depends_on_the_corpus_alone():
    spec = run_spec("text.txt", budget="10m")
    chosen = [
        choose_size(
            resolve_spec(spec), seconds=seconds, flops_per_second=flops_per_second, text_bytes=4_000_000, pairs=False
        )
        for seconds in (10.0, 60_000.0)
        for flops_per_second in (1e9, 1e13)
    ]
    assert {found.config.data.validation for found in chosen} == {"0.05"}
    assert {found.reasons["data.validation"] for found in chosen} == {"size of the corpus"}
    given = run_spec("text.txt", budget="10m", validation="0.2")
    fixed = choose_size(resolve_spec(given), seconds=60, flops_per_second=1e11, text_bytes=4_000_000, pairs=False)
    assert fixed.config.data.validation == "0.2"


def test_a_depth_replaces_the_depth_alone():
    open_depth, chosen = sized(text_bytes=400_000), sized(text_bytes=400_000, depth=2)
    assert (chosen.config.model.n_layers, chosen.reasons["preset"]) == (2, "python")
    assert chosen.config.tokenizer.vocab_size == open_depth.config.tokenizer.vocab_size
    assert chosen.reasons["training.batch_tokens"] == "budget"
    assert chosen.is_regularised


@pytest.mark.parametrize(("preset", "is_regularised"), [("small", True), ("portable-tiny", True), ("nanogpt", False)])
def test_a_published_preset_says_how_to_regularise_and_a_size_does_not(preset, is_regularised):
    chosen = given("text.txt", preset=preset, budget="5m")
    assert chosen.is_regularised is is_regularised
    assert not should_choose_size(run_spec("text.txt", preset=preset, budget="5m"))


def test_texts_of_few_bytes_get_few_tokens():
    sizes = [sized(text_bytes=number).config.tokenizer.vocab_size for number in (10_000, 60_000, 400_000, 5_000_000)]
    assert sizes == sorted(set(sizes))
    assert sizes[0] < 512


def test_what_is_fixed_is_never_chosen_otherwise():
    chosen = given("text.txt", dropout=0.2).choose("a later stage", {"model": {"dropout": 0.5, "n_layers": 7}})
    assert (chosen.config.model.dropout, chosen.config.model.n_layers) == (0.2, 7)
    assert (chosen.reasons["model.dropout"], chosen.reasons["model.n_layers"]) == ("python", "a later stage")

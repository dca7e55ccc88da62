"""What is said before the first step: what was chosen and by what, and what would be regretted later."""

import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.training.plan import equivalent_command, plan_rows, show_plan, warn_about_few_steps
from cli.training.report import describe_run, report_labels
from lm.config.model import ModelConfig
from lm.config.presets import build_run_config
from lm.config.run_config import RunConfig, RunPlan
from lm.config.run_spec import DataFiles, RunSpec
from lm.config.tokenizer import TokenizerConfig
from lm.config.training import TrainingConfig
from lm.data.labels import LabelCounts
from lm.hardware import Hardware
from lm.model.transformer import build_model
from lm.tokenizer.training import train
from lm.training.planning.resolve import BudgetForecast, resolve_spec
from lm.training.trainer import Planned
from tests.lm.data.test_training_data import CountData

MODEL = ModelConfig(vocab_size=10, context_length=4, d_model=16, n_layers=1, n_heads=2, dropout=0.1)


class Worried(CountData):
    """Data with a warning of its own."""

    def warnings(self, *, parameters: int, epochs: float, patience: int | None) -> list[str]:
        return [f"{epochs:.1f} epochs for {parameters} parameters, patience {patience}"]


def said(
    capsys: pytest.CaptureFixture[str],
    data: CountData,
    *,
    steps: int = 40,
    shape: ModelConfig = MODEL,
    preset: str = "tiny",
    is_tuned: bool = False,
    **training: Any,
) -> str:
    plan = RunPlan("cpu", "float32", 1, steps, "tokens", "key")
    settings = TrainingConfig(**{"warmup_steps": 5, **training})
    run = SimpleNamespace(
        model=build_model(shape),
        data=data,
        plan=plan,
        config=RunConfig(shape, training=settings, preset=preset, plan=plan),
        hardware=Hardware("cpu", "float32", 1),
        folder=Path("runs/count"),
    )
    describe_run(run, is_tuned=is_tuned)  # type: ignore[arg-type]
    return " ".join(capsys.readouterr().err.split())


def test_the_folder_of_the_run_is_told_and_no_warning_without_a_reason(capsys):
    found = said(capsys, CountData(10))
    assert "runs/count" in found
    assert "warning" not in found


def test_warnings_of_the_data_are_among_those_of_the_plan(capsys):
    parameters = sum(each.numel() for each in build_model(MODEL).parameters())
    assert f"warning 8.0 epochs for {parameters} parameters, patience 3" in said(capsys, Worried(10), patience=3)


def test_a_run_that_stops_when_its_loss_no_longer_falls_is_not_warned_of(capsys):
    assert "warning" not in said(capsys, Worried(10), patience=2, decay_patience=3)


@pytest.mark.parametrize(("steps", "warned"), [(19, True), (20, False)])
def test_what_rises_at_first_needs_as_many_steps_again(capsys, steps, warned):
    for what in ("warmup_steps", "batch_warmup"):
        found = said(capsys, CountData(10), steps=steps, **{what: 10})
        assert (f"rises over the first 10 steps, and there are only {steps}" in found) is warned


@pytest.mark.parametrize(("dropout", "warned"), [(0.0, True), (0.1, False)])
def test_two_passes_without_dropout_are_for_nothing(capsys, dropout, warned):
    found = said(capsys, CountData(10), shape=MODEL.replace(dropout=dropout), r_drop=1.0)
    assert ("two passes of R-Drop are the same" in found) is warned


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"attention": "window", "attention_window": 4}, True),
        ({"attention": "window", "attention_window": 3}, False),
        ({"attention": "bigbird", "attention_block": 1, "global_blocks": 1, "random_blocks": 1}, True),
        ({"attention": "bigbird", "attention_block": 1, "global_blocks": 1, "random_blocks": 0}, False),
        ({}, False),
    ],
)
def test_a_pattern_that_leaves_nothing_out_is_told(settings, warned, capsys):
    found = said(capsys, CountData(10), shape=replace(MODEL, **settings))
    assert ("it is full attention at a higher price" in found) == warned


@pytest.mark.parametrize(
    ("name", "hinted"), [("tiny", True), ("depth-2", True), ("portable-tiny", False), ("nanogpt", False)]
)
def test_who_trains_blocks_that_others_cannot_run_is_told_of_those_they_can(capsys, name, hinted):
    config = build_run_config(
        name, {"model": {"vocab_size": 10, "context_length": 4, "d_model": 16, "n_layers": 1, "n_heads": 2}}
    )
    assert ("--portable" in said(capsys, CountData(10), shape=config.model, preset=name)) is hinted
    assert "--portable" not in said(capsys, CountData(10), shape=config.model, preset=name, is_tuned=True)


def test_few_steps_are_warned_of(capsys):
    warn_about_few_steps(50, "1m is enough for about")
    assert capsys.readouterr().err == ""
    warn_about_few_steps(0.4, "1m is enough for about")
    assert capsys.readouterr().err.startswith("warning 1m is enough for about 1 step only: more time would teach more")


def test_labels_that_are_many_numbers_are_warned_about(capsys):
    for labels, warned in (([str(n / 100) for n in range(100)], True), (["1", "2", "3"], False)):
        counts = dict.fromkeys(labels, 5)
        report_labels(LabelCounts(counts, counts))
        assert ("the labels are 100 numbers" in capsys.readouterr().err) == warned


def test_variants_of_a_label_are_named_with_quotes(capsys):
    counts = {"Straße": 5, "bad": 5, "good": 5, " good": 5, "GOOD": 5, "good ": 5, "STRASSE": 5}
    report_labels(LabelCounts(counts, counts))
    (warning,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert warning.endswith("different ones: 'Straße' and 'STRASSE'; 'good' and ' good' and 'GOOD' and 'good '")
    report_labels(LabelCounts({"good": 5, "bad": 5}, {}))
    assert "warning" not in capsys.readouterr().err


def test_labels_without_an_example_to_train_on_are_named(capsys):
    report_labels(LabelCounts({"good": 5, "bad": 0, "so-so": 0}, {}))
    (warning,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert "no example to train on has the label 'bad', 'so-so'" in warning


def planned(
    reasons: dict[str, str], given: dict[str, dict[str, Any]], *, forecast: BudgetForecast | None = None
) -> Planned:
    """A run of the preset tiny with settings, and what chose them."""
    spec = RunSpec(data=DataFiles(text=("a text.txt",)), settings=given)
    config = build_run_config("tiny", {"model": {"vocab_size": 10, "context_length": 4}, **given})
    config = SimpleNamespace(**{**vars(config), "plan": RunPlan("cpu", "float32", 2, 40, "tokens", "key")})
    corpus = SimpleNamespace(tokenizer=train(["abc"], TokenizerConfig(kind="char"), corpus_bytes=3).tokenizer)
    return Planned(config, {**resolve_spec(spec).reasons, **reasons}, corpus, CountData(10), forecast, 3.0)  # type: ignore[arg-type]


def table(event: Planned) -> dict[str, tuple[str, str]]:
    return {name: (value, by) for name, value, by in plan_rows(event)}


def test_each_row_has_its_value_and_what_chose_it():
    rows = table(
        planned(
            {"model.dropout": "epochs in the budget", "training.batch_tokens": "budget"},
            {"model": {"dropout": 0.2}, "training": {"weight_decay": 0.5}},
        )
    )
    assert rows["dropout"] == ("0.2", "epochs in the budget")
    assert rows["batch"][1] == "time and corpus"
    assert rows["length"][0] == "40 steps, 8.0 epochs"
    assert rows["vocabulary"][0].endswith("characters")
    assert rows["hardware"][0] == "float32 on cpu, 2 threads"
    assert "R-Drop" not in rows


def test_what_comes_from_a_base_run_is_not_called_a_preset():
    spec = RunSpec(data=DataFiles(text=("a.txt",)), from_run="runs/base")
    event = planned(dict(resolve_spec(spec, base=ModelConfig(dropout=0.3)).reasons), {})
    rows = table(event)
    assert {rows[name][1] for name in ("model", "vocabulary", "context", "dropout")} == {"base run"}


def test_advice_on_few_steps_of_a_base_run_leaves_the_model_alone(capsys):
    for is_tuned in (False, True):
        warn_about_few_steps(7, "10s is enough for about", is_tuned=is_tuned)
        assert ("--preset" in capsys.readouterr().err) is not is_tuned


def test_of_settings_that_exclude_each_other_the_one_that_counts_is_told():
    assert table(planned({}, {}))["batch"][1] == "preset"  # sequences; tokens have their default


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (2e5, "at best 1.76 bits/byte, likely more"),
        (1.5e6, "1.76 to 2.04 bits/byte"),
        (3e6, "1.76 to 2.04 bits/byte"),
        (2e7, "2.04 bits/byte or less"),
    ],
)
def test_what_to_expect_of_the_tokens_stands_beside_the_baseline(tokens, text):
    forecast = BudgetForecast(40, 0.1, 2.0, True, 1.0, (3.0, 2.0, 2.0), tokens, 0.0, 1.0, 10.0)
    assert table(planned({}, {}, forecast=forecast))["expected"] == (text, "n-gram baseline: 2.00")


@pytest.mark.parametrize(("budget", "warned"), [("10s", True), ("12s", False)])
def test_the_plan_says_how_much_of_the_time_start_up_took_and_warns_from_a_quarter(budget, warned, capsys):
    forecast = BudgetForecast(100, 0.1, 2.0, True, 1.0, (), 2e6, 0.0, 1.0, 10.0)
    event = planned({"training.budget": "flag"}, {"training": {"budget": budget}}, forecast=forecast)
    show_plan(event)
    said = capsys.readouterr().err
    assert table(event)["time"] == (f"{budget}, 3.0 s of it start-up", "flag")
    assert ("start-up took 3.0 s of 10s, so 7.0 s are left for training: give 20s or more (--budget)" in said) == warned


def test_the_command_has_what_was_chosen_and_no_default():
    event = planned(
        {"model.dropout": "epochs in the budget", "training.seed": "flag", "training.budget": "flag"},
        {"model": {"dropout": 0.2}, "training": {"seed": 3, "budget": "1m"}},
    )
    words = shlex.split(equivalent_command(event, RunSpec(data=DataFiles(text=("a text.txt",)))))
    assert words[:3] == ["lm", "train", "a text.txt"]
    flags = dict(zip(words[3::2], words[4::2], strict=True))
    assert flags == {
        "--preset": "tiny", "--dropout": "0.2", "--seed": "3", "--steps": "40", "--dtype": "float32", "--threads": "2",
        "--schedule": "wsd",
    }  # fmt: skip

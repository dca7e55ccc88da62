"""What is said before the first step: what was chosen and by what, and what would be regretted later."""

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.training.plan import equivalent_command, plan_rows
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


def test_what_of_the_data_does_not_fit_is_told(capsys):
    class Long(CountData):
        def warnings(self) -> list[str]:
            return ["3 of 10 are longer"]

    assert "warning 3 of 10 are longer" in said(capsys, Long(10))


@pytest.mark.parametrize(
    "settings",
    [
        {"training": {"r_drop": 1.0, "warmup_steps": 30}, "dropout": 0.0},
        {"attention": "window", "attention_window": 4},
        {"attention": "bigbird", "attention_block": 1, "global_blocks": 1, "random_blocks": 1},
    ],
)
def test_what_was_asked_for_is_not_judged(settings, capsys):
    training = settings.pop("training", {})
    assert "warning" not in said(capsys, CountData(10), shape=MODEL.replace(**settings), **training)


@pytest.mark.parametrize(
    ("name", "hinted"), [("tiny", True), ("depth-2", True), ("portable-tiny", False), ("nanogpt", False)]
)
def test_who_trains_blocks_that_others_cannot_run_is_told_of_those_they_can(capsys, name, hinted):
    config = build_run_config(
        name, {"model": {"vocab_size": 10, "context_length": 4, "d_model": 16, "n_layers": 1, "n_heads": 2}}
    )
    assert ("--portable" in said(capsys, CountData(10), shape=config.model, preset=name)) is hinted
    assert "--portable" not in said(capsys, CountData(10), shape=config.model, preset=name, is_tuned=True)


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


def test_of_settings_that_exclude_each_other_the_one_that_counts_is_told():
    assert table(planned({}, {}))["batch"][1] == "preset"  # sequences; tokens have their default


MEASURED = {"preset": "budget", "training.budget": "flag"}


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
    forecast = BudgetForecast(40, 2.0, (3.0, 2.0, 2.0), tokens)
    assert table(planned(MEASURED, {}, forecast=forecast))["expected"] == (text, "n-gram baseline: 2.00")


@pytest.mark.parametrize(
    ("reasons", "is_expected"),
    [
        ({}, True),
        ({"training.seed": "flag"}, True),
        ({"preset": "flag"}, False),
        ({"preset": "default"}, False),
        ({"model.d_model": "file"}, False),
        ({"model.experts": "environment"}, False),
        ({"training.optimizer": "flag"}, False),
        ({"model.dropout": "python"}, False),
    ],
)
def test_only_the_measured_recipe_has_an_expected_loss(reasons, is_expected):
    forecast = BudgetForecast(40, 2.0, (3.0, 2.0, 2.0), 2e6)
    assert ("expected" in table(planned({**MEASURED, **reasons}, {}, forecast=forecast))) == is_expected


def test_the_plan_says_how_much_of_the_time_start_up_took():
    forecast = BudgetForecast(100, 2.0, (), 2e6)
    event = planned({"training.budget": "flag"}, {"training": {"budget": "10s"}}, forecast=forecast)
    assert table(event)["time"] == ("10s, 3.0 s of it start-up", "flag")


def test_the_command_has_what_was_chosen_and_no_default():
    event = planned(
        {"model.dropout": "epochs in the budget", "training.seed": "flag", "training.budget": "flag"},
        {"model": {"dropout": 0.2}, "training": {"seed": 3, "budget": "1m"}},
    )
    words = shlex.split(equivalent_command(event, RunSpec(data=DataFiles(text=("a text.txt",)))))
    assert words[:3] == ["lm", "train", "a text.txt"]
    flags = dict(zip(words[3::2], words[4::2], strict=True))
    assert flags == {
        "--preset": "tiny", "--dropout": "0.2", "--seed": "3", "--steps": "40", "--schedule": "wsd",
    }  # fmt: skip

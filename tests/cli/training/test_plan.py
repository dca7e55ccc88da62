"""The table of what was chosen for a run, and the command that repeats it."""

from __future__ import annotations

import shlex
from types import SimpleNamespace
from typing import Any

import pytest

from cli.training.plan import equivalent_command, plan_rows, warn_about_few_steps
from lm.config.model import ModelConfig
from lm.config.presets import build_run_config
from lm.config.run import RunPlan
from lm.config.run_spec import DataFiles, RunSpec
from lm.config.tokenizer import TokenizerConfig
from lm.tokenizer.training import train
from lm.training.planning.resolve import BudgetForecast, resolve_spec
from lm.training.trainer import Planned
from tests.lm.data.test_training_data import CountData


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


@pytest.mark.parametrize(("tokens", "text"), [(2e6, "1.76 to 2.04 bits/byte"), (2e5, "1.76 bits/byte or more")])
def test_what_to_expect_stands_beside_the_baseline(tokens, text):
    forecast = BudgetForecast(40, 0.1, 2.0, True, 1.0, (3.0, 2.0, 2.0), tokens, 0.0, 1.0, 10.0)
    assert table(planned({}, {}, forecast=forecast))["expected"] == (text, "n-gram baseline: 2.00")


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

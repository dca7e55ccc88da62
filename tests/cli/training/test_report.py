"""What is said before the first step: the data's own words among it, and what would be regretted later."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.training.plan import warn_about_few_steps
from cli.training.report import describe_run, report_labels
from lm.config.model import ModelConfig
from lm.config.presets import build_run_config
from lm.config.run import RunConfig, RunPlan
from lm.config.training import TrainingConfig
from lm.data.labels import LabelCounts
from lm.hardware import Hardware
from lm.model.transformer import build_model
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


def test_the_folder_of_the_run_is_told_and_no_warning_without_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    found = said(capsys, CountData(10))
    assert "runs/count" in found
    assert "warning" not in found


def test_warnings_of_the_data_are_among_those_of_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    parameters = sum(each.numel() for each in build_model(MODEL).parameters())
    assert f"warning 8.0 epochs for {parameters} parameters, patience 3" in said(capsys, Worried(10), patience=3)


def test_a_run_that_stops_when_its_loss_no_longer_falls_is_not_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert "warning" not in said(capsys, Worried(10), patience=2, decay_patience=3)


@pytest.mark.parametrize(("steps", "warned"), [(19, True), (20, False)])
def test_what_rises_at_first_needs_as_many_steps_again(
    capsys: pytest.CaptureFixture[str], steps: int, warned: bool
) -> None:
    for what in ("warmup_steps", "batch_warmup"):
        found = said(capsys, CountData(10), steps=steps, **{what: 10})
        assert (f"rises over the first 10 steps, and there are only {steps}" in found) is warned


@pytest.mark.parametrize(("dropout", "warned"), [(0.0, True), (0.1, False)])
def test_two_passes_without_dropout_are_for_nothing(
    capsys: pytest.CaptureFixture[str], dropout: float, warned: bool
) -> None:
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
def test_a_pattern_that_leaves_nothing_out_is_told(
    settings: dict[str, Any], warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    found = said(capsys, CountData(10), shape=replace(MODEL, **settings))
    assert ("it is full attention at a higher price" in found) == warned


@pytest.mark.parametrize(
    ("name", "hinted"), [("tiny", True), ("depth-2", True), ("portable-tiny", False), ("nanogpt", False)]
)
def test_who_trains_blocks_that_others_cannot_run_is_told_of_those_they_can(
    capsys: pytest.CaptureFixture[str], name: str, hinted: bool
) -> None:
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


def test_labels_that_are_many_numbers_are_warned_about(capsys: pytest.CaptureFixture[str]) -> None:
    for labels, warned in (([str(n / 100) for n in range(100)], True), (["1", "2", "3"], False)):
        counts = dict.fromkeys(labels, 5)
        report_labels(LabelCounts(counts, counts))
        assert ("the labels are 100 numbers" in capsys.readouterr().err) == warned

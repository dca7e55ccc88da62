"""Schedules at values computed by hand."""

import math

import pytest

from lm.config.run_config import TrainingConfig
from lm.training.optimizers import learning_rate


def rate(step: int, schedule: str, **fields: float) -> float:
    config = TrainingConfig(
        learning_rate=2.0, warmup_steps=10, final_learning_rate_fraction=0.1, schedule=schedule, **fields
    )
    return learning_rate(step, config=config, steps=110)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "inverse-sqrt", "wsd", "constant"])
def test_warm_up_rises_linearly_to_the_peak(schedule):
    assert [rate(step, schedule) for step in (0, 4, 9)] == pytest.approx([2 / 11, 10 / 11, 20 / 11])
    assert rate(10, schedule) == pytest.approx(2.0)


def test_cosine():
    assert [rate(step, "cosine") for step in (35, 60, 110)] == pytest.approx(
        [0.2 + 1.8 * (1 + math.sqrt(0.5)) / 2, 1.1, 0.2]
    )


def test_linear():
    assert [rate(step, "linear") for step in (35, 60, 110)] == pytest.approx([1.55, 1.1, 0.2])


def test_inverse_square_root():
    assert [rate(step, "inverse-sqrt") for step in (40, 100)] == pytest.approx([1.0, 2 * math.sqrt(0.1)])
    at_once = TrainingConfig(learning_rate=2.0, warmup_steps=0, schedule="inverse-sqrt")
    assert [learning_rate(step, config=at_once, steps=9) for step in (0, 3, 8)] == pytest.approx([2, 1, 2 / 3])


def test_wsd_is_flat_and_then_falls_over_its_share():
    assert [rate(step, "wsd", decay_fraction=0.2) for step in (50, 90, 100, 110)] == pytest.approx([2.0, 2.0, 1.1, 0.2])
    assert rate(110, "wsd", decay_fraction=0.0) == 2.0


def test_constant():
    assert rate(110, "constant") == 2.0

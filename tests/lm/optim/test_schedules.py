"""Schedules at values computed by hand."""

import math

import pytest

from lm.config.training import TrainingConfig
from lm.optim.schedules import batch_fraction, learning_rate, steps_for_batches, total_steps_from_decay


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


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd"])
def test_a_run_that_ends_with_its_warm_up_begins_at_the_peak_if_it_continues(schedule):
    config = TrainingConfig(learning_rate=2.0, warmup_steps=10, schedule=schedule)
    assert learning_rate(10, config=config, steps=10) == 2.0


def test_constant():
    assert rate(110, "constant") == 2.0


def test_a_batch_grows_from_a_quarter_to_the_whole():
    config = TrainingConfig(batch_warmup=8)
    assert [batch_fraction(step, config=config) for step in (0, 4, 8, 1000)] == [0.25, 0.625, 1, 1]
    assert batch_fraction(0, config=TrainingConfig()) == 1


@pytest.mark.parametrize("growing", [0, 1, 40, 500])
@pytest.mark.parametrize("batches", [1, 20, 300])
def test_steps_for_so_many_batches_learn_from_as_much(growing, batches):
    config = TrainingConfig(batch_warmup=growing)
    steps = steps_for_batches(batches, config=config)
    learned = [sum(batch_fraction(step, config=config) for step in range(count)) for count in (steps - 2, steps + 1)]
    assert learned[0] <= batches <= learned[1]


@pytest.mark.parametrize(
    ("step", "decay_start", "expected"),
    [
        (60, (60, 0.5), 1.0),  # half of the peak
        (85, (60, 0.5), 0.6),  # half of the way to a tenth
        (110, (60, 0.5), 0.2),
        (120, (60, 0.5), 0.2),
        (35, (10, 1.0), 1.55),
        (5, (3, 1.0), 12 / 11),  # still warming up
        (110, (110, 0.5), 1.0),
    ],
)
def test_under_a_budget_it_falls_from_where_the_clock_said(step, decay_start, expected):
    config = TrainingConfig(learning_rate=2.0, warmup_steps=10, final_learning_rate_fraction=0.1, schedule="cosine")
    assert learning_rate(step, config=config, steps=110, decay_start=decay_start) == pytest.approx(expected)
    without_end = learning_rate(step, config=config, steps=None, decay_start=decay_start)
    assert without_end == pytest.approx(2.0 * decay_start[1] if step >= 10 else expected)


@pytest.mark.parametrize(("step", "steps"), [(5, 5), (10, 10), (11, 12), (40, 60), (41, 62)])
def test_steps_in_all_of_a_decay_over_two_fifths_that_begins_now(step, steps):
    config = TrainingConfig(schedule="wsd", decay_fraction=0.4, warmup_steps=10)
    assert total_steps_from_decay(step, config=config) == steps


@pytest.mark.parametrize(("batches", "steps"), [(2, 5), (4, 7), (5, 8), (6, 9), (6.5, 10)])
def test_steps_for_batches_by_hand(batches, steps):
    """Over eight steps a batch grows to the whole: 5 of them, at 5/8 on average."""
    assert steps_for_batches(batches, config=TrainingConfig(batch_warmup=8)) == steps

"""How long a run is to be."""

from __future__ import annotations

import itertools

import pytest

from lm.config.training import TrainingConfig
from lm.errors import UsageError
from lm.training import budget as clock
from lm.training.begin import resume
from lm.training.loop import train
from lm.training.resolve import planned_steps


@pytest.mark.parametrize(
    ("given", "steps"),
    [({"steps": 7}, 7), ({"epochs": 2.0}, 25), ({"epochs": 0.01}, 1), ({"tokens": 1281}, 11),
     ({"tokens": 1280, "batch_tokens": 250}, 6)],
)  # fmt: skip
def test_length_in_steps_epochs_or_tokens(make_run, given, steps):
    """In an epoch of 100 windows of 16 tokens."""
    run = make_run(**{"batch_size": 8, "steps": None, **given})
    run.data.samples, run.data.tokens, run.data.steps_per_epoch = 100, 1600, 100 / run.data.batch(0).rows
    assert planned_steps(run.config.training, run.data, pace=1.0) == steps


@pytest.mark.parametrize(("given", "flag"), [({"epochs": 1e30}, "--epochs"), ({"tokens": 2**63 - 1}, "--tokens")])
def test_more_steps_than_can_be_counted_are_refused(make_run, given, flag):
    config, data = TrainingConfig(**given), make_run().data
    with pytest.raises(UsageError, match=rf"{flag[2:]} come to .* steps, more than can be trained.*\({flag}\)"):
        planned_steps(config, data, pace=1.0)


@pytest.mark.parametrize(("pace", "spent", "steps"), [(0.5, 0.0, 200), (0.5, 20.0, 160), (3.0, 0.0, 33), (1e3, 0.0, 1)])
def test_a_budget_comes_to_what_is_left_of_it_at_a_pace(make_run, pace, spent, steps):
    config = TrainingConfig(budget="100s", schedule="wsd")
    assert planned_steps(config, make_run().data, pace=pace, spent=spent) == steps


def test_a_resumed_run_with_a_budget_has_as_many_more_steps_as_its_pace_allows(make_run, time, monkeypatch):
    """Twelve steps took a quarter of a second each; 40 s of another budget are left."""
    monkeypatch.setattr(clock.time, "perf_counter", itertools.count(0.0, 0.25).__next__)
    run = make_run(evaluate_every=0)
    list(train(run))
    assert run.state.seconds == 12 * 0.25
    longer = resume(run.folder, longer=TrainingConfig(budget="50s", schedule="wsd"), spent=10.0)
    assert (longer.plan.steps, longer.plan.deadline, longer.plan.falls_from) == (12 + 160, 50.0, None)
    assert longer.clock is not None
    assert longer.clock.left == 40
    assert longer.config.training.schedule == "wsd"

"""A run under a time budget: when its learning rate falls, when it ends, and what a resumed one replays."""

from __future__ import annotations

import itertools
import json

import pytest

from lm import checkpoint
from lm.config import TrainingConfig
from lm.errors import UsageError
from lm.training import budget
from lm.training.budget import Clock
from lm.training.events import Decay, Evaluation, Saved, Step
from lm.training.run import resume
from lm.training.schedules import learning_rate, steps_in_all
from lm.training.trainer import train

BUDGET = {"steps": None, "budget": "100s", "schedule": "wsd", "decay_fraction": 0.5, "final_learning_rate": 0.0}


class FakeTime:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(budget.time, "monotonic", fake.monotonic)
    return fake


def driven(run, time: FakeTime, *, step: float, evaluation: float = 0.0):
    """The events of a run whose steps and evaluations take so many seconds of a fake clock."""
    for event in train(run):
        time.now += step * isinstance(event, Step) + evaluation * isinstance(event, Evaluation)
        yield event


@pytest.mark.parametrize("fraction", [0.1, 0.4, 0.9])
@pytest.mark.parametrize("step", [11, 100, 999])
def test_the_decay_of_a_run_begins_where_it_was_decided(fraction, step):
    config = TrainingConfig(schedule="wsd", decay_fraction=fraction, warmup_steps=10, learning_rate=1.0)
    steps = steps_in_all(step, config=config)
    assert learning_rate(step, config=config, steps=steps) > 0.9 or steps - step < 10
    assert learning_rate(step - 1, config=config, steps=steps) == 1.0
    assert learning_rate(step + 2, config=config, steps=steps) < 1.0
    assert (steps - step) / (steps - 10) == pytest.approx(fraction, abs=1 / (steps - 10))


@pytest.mark.parametrize(("step", "evaluation"), [(1.0, 0.0), (0.4, 3.0), (3.0, 1.0)])
def test_a_run_takes_the_time_it_is_given(make_run, time, step, evaluation):
    run = make_run(**BUDGET, evaluate_every=10)
    began = time.now
    events = list(driven(run, time, step=step, evaluation=evaluation))
    assert 100 - 2 * (step + evaluation) - 1 <= time.now - began <= 100
    assert run.state.finished
    (decay,) = [event for event in events if isinstance(event, Decay)]
    rates = [event.learning_rate for event in events if isinstance(event, Step)]
    assert len(rates) == run.plan.steps == pytest.approx(decay.steps, abs=2)
    assert rates[3] == rates[decay.step - 1] > rates[decay.step + 2] > rates[-1] > 0
    assert decay.step / decay.steps == pytest.approx(0.5, abs=0.1)


def test_a_budget_that_is_over_before_warm_up_ends_at_once(make_run, time):
    run = make_run(**BUDGET, warmup_steps=50)
    list(driven(run, time, step=60.0))
    assert run.state.finished
    assert run.state.step <= 3


def test_time_that_is_gone_before_the_first_step_counts(make_run, time):
    run = make_run(**BUDGET)
    run.clock = Clock(run.clock.left - 60)
    began = time.now
    list(driven(run, time, step=1.0))
    assert 36 <= time.now - began <= 40


def test_resumed_before_the_decay_it_has_what_was_left(make_run, time):
    run = make_run(**BUDGET, evaluate_every=5)
    for event in driven(run, time, step=1.0):
        if isinstance(event, Saved) and event.step >= 20:
            break
    time.now += 10_000
    again = resume(run.folder)
    began = time.now
    list(driven(again, time, step=1.0))
    assert again.state.finished
    assert 70 <= time.now - began <= 80


def test_resumed_in_the_decay_it_ends_as_if_it_had_never_stopped(make_run, time):
    """Whatever the clock says: the step where the decay begins was written down."""
    whole = make_run("whole", **BUDGET, evaluate_every=5)
    list(driven(whole, time, step=1.0))
    stopped = make_run("stopped", **BUDGET, evaluate_every=5)
    events = driven(stopped, time, step=1.0)
    list(itertools.takewhile(lambda event: not isinstance(event, Decay), events))
    next(event for event in events if isinstance(event, Saved))
    events.close()
    again = resume(stopped.folder)
    list(driven(again, time, step=77.0))
    logs = [(run.folder / "metrics.jsonl").read_text() for run in (whole, stopped)]
    assert logs[0] == logs[1]
    assert checkpoint.load_config(checkpoint.find_checkpoint(stopped.folder)).plan.deadline is None


def test_a_finished_run_can_be_given_more_time(make_run, time):
    run = make_run(**BUDGET)
    list(driven(run, time, step=1.0))
    steps = run.state.step
    longer = resume(run.folder, longer=TrainingConfig(budget="50s", schedule="wsd"))
    began = time.now
    list(driven(longer, time, step=1.0))
    assert longer.state.step > steps
    assert time.now - began <= 50
    assert json.loads((run.folder / "config.json").read_text())["training"]["budget"] == "50s"


@pytest.mark.parametrize("fields", [{"schedule": "cosine"}, {"schedule": "wsd", "decay_fraction": 1.0}, {"steps": 3}])
def test_what_a_budget_does_not_go_with(fields):
    with pytest.raises(UsageError):
        TrainingConfig(**{"budget": "1m", "schedule": "wsd", **fields})

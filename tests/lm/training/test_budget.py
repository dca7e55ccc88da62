"""A run under a time budget: when its learning rate falls, when it ends, and what a resumed one replays."""

import itertools
import json

import pytest

from lm import run_folder
from lm.checkpoint import load_tensors
from lm.config.run_config import TrainingConfig
from lm.hardware import Hardware
from lm.run_folder import MODEL, checkpoint_folder
from lm.training.loop import train
from lm.training.rules import TrainingSpeed
from lm.training.run_log import DecayStarted, Evaluation, Saved, Step, StoppedEarly
from lm.training.training_corpus import TrainingCorpus
from tests.lm.training.conftest import FakeTime, metrics_lines, new_run, sums
from tests.lm.training.runs import resume_run, start_run

BUDGET = {
    "steps": None,
    "budget": "100s",
    "schedule": "wsd",
    "decay_fraction": 0.5,
    "final_learning_rate_fraction": 0.0,
}


def driven(run, time: FakeTime, *, step: float, evaluation: float = 0.0):
    """The events of a run whose steps and evaluations take so many seconds of a fake clock."""
    for event in train(run):
        yield from run.finish_saving()  # which takes none of that time
        time.now += step * isinstance(event, Step) + evaluation * isinstance(event, Evaluation)
        yield event


@pytest.mark.medium
@pytest.mark.parametrize(("step", "evaluation"), [(2.0, 0.0), (1.0, 4.0), (3.0, 1.0)])
def test_a_run_takes_the_time_it_is_given(make_run, time, step, evaluation):
    run = make_run(**BUDGET, evaluate_every=10)
    began = time.now
    events = list(driven(run, time, step=step, evaluation=evaluation))
    assert 100 - 2 * (step + evaluation) - 4 <= time.now - began <= 100
    assert run.state.finished
    assert {*range(10, run.state.step, 10)} <= {event.step for event in events if isinstance(event, Saved)}
    (decay,) = [event for event in events if isinstance(event, DecayStarted)]
    rates = [event.learning_rate for event in events if isinstance(event, Step)]
    assert len(rates) == run.plan.steps == pytest.approx(decay.steps, abs=2)
    assert rates[3] == rates[decay.step - 1] > rates[decay.step + 2] > rates[-1] > 0
    assert decay.step / decay.steps == pytest.approx(0.5, abs=0.1)


def test_a_budget_that_is_over_before_warm_up_ends_at_once(make_run, time):
    run = make_run(**BUDGET, warmup_steps=50)
    list(driven(run, time, step=60.0))
    assert run.state.finished
    assert run.state.step <= 3


@pytest.mark.medium
def test_resumed_before_the_decay_it_has_what_was_left(make_run, time):
    run = make_run(**BUDGET, evaluate_every=5)
    for event in driven(run, time, step=2.0):
        if isinstance(event, Saved) and event.step >= 10:
            break
    time.now += 10_000
    again = resume_run(run.folder)
    began = time.now
    list(driven(again, time, step=2.0))
    assert again.state.finished
    assert 70 <= time.now - began <= 80


@pytest.mark.medium
def test_resumed_in_the_decay_it_ends_as_if_it_had_never_stopped(make_run, time):
    """Whatever the clock says: the step where the decay begins was written down."""
    whole = make_run("whole", **BUDGET, evaluate_every=3)
    list(driven(whole, time, step=4.0))
    stopped = make_run("stopped", **BUDGET, evaluate_every=3)
    events = driven(stopped, time, step=4.0)
    list(itertools.takewhile(lambda event: not isinstance(event, DecayStarted), events))
    next(event for event in events if isinstance(event, Saved))
    events.close()
    again = resume_run(stopped.folder)
    list(driven(again, time, step=77.0))
    logs = [(run.folder / "metrics.jsonl").read_text() for run in (whole, stopped)]
    assert logs[0] == logs[1]
    assert run_folder.load_config(run_folder.find_checkpoint(stopped.folder)).plan.budget_seconds is None


def test_a_finished_run_can_be_given_more_time(make_run, time):
    run = make_run(**BUDGET)
    list(driven(run, time, step=4.0))
    steps = run.state.step
    longer = resume_run(run.folder, new_length=TrainingConfig(budget="50s", schedule="wsd"))
    began = time.now
    list(driven(longer, time, step=4.0))
    assert longer.state.step > steps
    assert time.now - began <= 50
    assert json.loads((run.folder / "config.json").read_text())["training"]["budget"] == "50s"


def test_the_end_is_moved_where_the_machine_slows_down_in_the_decay(make_run, time):
    """The rate falls from where it is to its end, which is as late as it was to be."""
    run, rates, began = make_run(**BUDGET, evaluate_every=0, warmup_steps=0), [], time.now
    for event in train(run):
        if isinstance(event, Step):
            rates.append(event.learning_rate)
            time.now += 1.0 if event.step <= 60 else 2.0
    assert time.now - began == pytest.approx(100 - 4, abs=2)  # four seconds are for what follows
    peak = run.config.training.learning_rate
    decay = rates[rates.index(peak) + rates.count(peak) :]
    assert 0 < decay[-1] < 0.2 * peak
    assert all(0 < before - after < 0.2 * peak for before, after in itertools.pairwise(decay))


@pytest.fixture
def paced(tmp_path, shards, byte_tokenizer, make_run):
    """Start a run under a budget whose step was measured to take so many seconds."""
    like = make_run("like", **BUDGET, evaluate_every=10, weight_decay=1.0)

    def make(seconds: float, **options):
        speed = TrainingSpeed(seconds, 0.0, 0.0, Hardware("cpu", "float32", 1))
        corpus = TrainingCorpus(shards, byte_tokenizer)
        return start_run(tmp_path / "paced", like.config, corpus, speed=speed, **options)

    return make


def test_the_rest_of_a_budget_is_not_used_once_the_text_was_seen_often_enough(paced, time):
    run = paced(1.0, max_steps=20)
    assert run.plan.is_limited
    began = time.now
    events = list(driven(run, time, step=1.0))
    assert run.state.step == run.plan.steps == 20
    assert time.now - began == 20  # of 100 s
    (decay,) = [event for event in events if isinstance(event, DecayStarted)]
    assert decay.steps == 20  # planned from the start, not found at a plateau
    assert decay.step - run.config.training.warmup_steps == pytest.approx(20 - decay.step, abs=1)


MEMORISING = {
    "evaluate_every": 4, "decay_patience": 2, "patience": 2, "learning_rate": 0.05, "warmup_steps": 2,
    "schedule": "wsd", "decay_fraction": 0.5, "final_learning_rate_fraction": 0.0, "steps": 400,
}  # fmt: skip
"""A learning rate at which the loss soon no longer falls."""


@pytest.fixture(scope="module")
def memorised(tmp_path_factory, shards, byte_tokenizer):
    """A run on that plateau, its events, its weights as the decay began, and those of its best checkpoint."""
    run = new_run(tmp_path_factory.mktemp("runs") / "whole", shards, byte_tokenizer, **MEMORISING)
    events, weights = [], []
    for event in train(run):
        events.append(event)
        if isinstance(event, DecayStarted):
            best = load_tensors(checkpoint_folder(run.folder, event.restored_step) / MODEL)
            weights += [{name: value.clone() for name, value in run.model.state_dict().items()}, dict(best)]
    return run, events, *weights


def test_the_decay_starts_on_a_plateau_from_the_best_checkpoint_and_training_stops_after_it(memorised):
    run, events, current, best_weights = memorised
    (decay,) = [event for event in events if isinstance(event, DecayStarted)]
    assert decay.on_plateau
    losses = {event.step: event.loss for event in events if isinstance(event, Evaluation)}
    before = {step: loss for step, loss in losses.items() if step <= decay.step}
    best = min(before, key=before.get)
    assert decay.step - best == 2 * 4  # two evaluations no better than the best
    assert decay.restored_step == best
    assert all(current[name].equal(value) for name, value in best_weights.items())
    assert decay.steps - decay.step == pytest.approx(best / 3, abs=3)
    assert run.state.step <= decay.steps < 400
    rates = {event.step: event.learning_rate for event in events if isinstance(event, Step)}
    assert rates[decay.step] == 0.05 > rates[decay.step + 2]
    assert "validation loss" in run.plan.changes[-1]
    stopped = [event for event in events if isinstance(event, StoppedEarly)]
    if stopped:  # the loss rose in the decay too: patience counts from its beginning
        assert run.state.step >= decay.step + 2 * 4
    assert run.state.finished


@pytest.mark.parametrize("left_at", [None, Step, Evaluation, DecayStarted])
def test_left_where_the_plateau_is_noticed_a_resumed_run_equals_one_that_never_stopped(make_run, memorised, left_at):
    """Stopped after that step, or its loop left at an event of it."""
    (whole, events, *_), run = memorised, make_run(**MEMORISING)
    (decay,) = [event for event in events if isinstance(event, DecayStarted)]
    if left_at is None:
        list(train(run, stop=lambda: run.state.step == decay.step))
    else:
        loop = train(run)
        next(event for event in loop if isinstance(event, left_at) and event.step == decay.step)
        loop.close()
    assert run.state.step == decay.step
    run = resume_run(run.folder)
    list(train(run))
    assert run.plan == whole.plan
    assert metrics_lines(run) == metrics_lines(whole)
    assert sums(run)["model.safetensors"] == sums(whole)["model.safetensors"]
    assert sums(run)["optimizer.safetensors"] == sums(whole)["optimizer.safetensors"]

"""A run under a time budget: when its learning rate falls, when it ends, and what a resumed one replays."""

import dataclasses
import itertools
import json
import shutil

import pytest

from lm import run_folder
from lm.config.training import TrainingConfig
from lm.hardware import Hardware
from lm.optim.schedules import learning_rate, total_steps_from_decay
from lm.run_folder import MODEL, checkpoint_folder
from lm.safetensors_io import load_tensors
from lm.training.events import DecayStarted, EndRescheduled, Evaluation, Replanned, Saved, Step, StoppedEarly
from lm.training.loop import train
from lm.training.planning.budget import BudgetClock, EvaluationCost, TrainingSpeed, evaluation_reserve, suggest_budget
from lm.training.startup import resume_run, start_run
from lm.training.training_corpus import TrainingCorpus
from tests.lm.training.conftest import FakeTime, metrics_lines, new_run, sums

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
        yield from run.writer.wait()  # which takes none of that time
        time.now += step * isinstance(event, Step) + evaluation * isinstance(event, Evaluation)
        yield event


@pytest.mark.parametrize("fraction", [0.1, 0.4, 0.9])
@pytest.mark.parametrize("step", [11, 100, 999])
def test_the_decay_of_a_run_begins_where_it_was_decided(fraction, step):
    config = TrainingConfig(schedule="wsd", decay_fraction=fraction, warmup_steps=10, learning_rate=1.0)
    steps = total_steps_from_decay(step, config=config)
    assert learning_rate(step, config=config, steps=steps) > 0.9 or steps - step < 10
    assert learning_rate(step - 1, config=config, steps=steps) == 1.0
    assert learning_rate(step + 2, config=config, steps=steps) < 1.0
    assert (steps - step) / (steps - 10) == pytest.approx(fraction, abs=1 / (steps - 10))


@pytest.mark.medium
@pytest.mark.parametrize(("step", "evaluation"), [(2.0, 0.0), (1.0, 4.0), (3.0, 1.0)])
def test_a_run_takes_the_time_it_is_given(make_run, time, step, evaluation):
    run = make_run(**BUDGET, evaluate_every=10)
    began = time.now
    events = list(driven(run, time, step=step, evaluation=evaluation))
    assert 100 - 2 * (step + evaluation) - 1 <= time.now - began <= 100
    assert run.state.finished
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
def test_time_that_is_gone_before_the_first_step_counts(make_run, time):
    run = make_run(**BUDGET)
    run.clock = BudgetClock(run.clock.seconds_left - 60)
    began = time.now
    list(driven(run, time, step=1.0))
    assert 36 <= time.now - began <= 40


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


STEPS = TrainingConfig(schedule="wsd", decay_fraction=0.5, warmup_steps=0, evaluate_every=0)
EVALUATED = dataclasses.replace(STEPS, evaluate_every=10)


def clock_after(time: FakeTime, *seconds: float, pauses: tuple[float, ...] = (), left: float, budget: float = 100.0):
    """A clock that has seen plain steps, and then pauses, of so many seconds; so many are left."""
    clock = BudgetClock(budget - 20, spent=20)
    for each, is_plain in [*((each, True) for each in seconds), *((each, False) for each in pauses)]:
        time.now += each
        clock.record_step(is_plain=is_plain)
    time.now += clock.seconds_left - left
    assert clock.seconds_left == left
    return clock


def test_the_forecast_of_the_steps_follows_recent_steps(time):
    clock = BudgetClock(1000.0)
    assert clock.forecast_total(0, 77, config=STEPS) == 77
    for seconds in [1.0] * 100 + [2.0] * 100:  # the machine is busy from then on
        time.now += seconds
        clock.record_step(is_plain=True)
    time.now += 500  # the forecast is as of the last step
    assert clock.forecast_total(200, 1000, config=STEPS) == pytest.approx(200 + 700 / 2, abs=2)


@pytest.mark.parametrize(("startup", "budget"), [(0.5, "10s"), (2.4, "10s"), (2.6, "20s"), (30.0, "120s"), (31, "3m")])
def test_the_suggested_budget_has_time_for_training(startup, budget):
    assert suggest_budget(startup) == budget


@pytest.mark.parametrize(("budget", "seconds"), [(30, 6), (119, 23.8), (120, 12), (3600, 360)])
def test_what_may_be_spent_on_all_that_is_not_training(budget, seconds):
    assert evaluation_reserve(budget) == pytest.approx(seconds)


def test_processes_divide_the_time_of_steps_and_evaluations():
    speed = TrainingSpeed(3.0, EvaluationCost(6.0, 1.5), Hardware("cpu", "float32", 1), evaluation_seconds=9.0)
    assert speed.scaled_to(1) == speed
    found = speed.scaled_to(3)
    assert (found.step_seconds, found.evaluation_cost) == (1.0, EvaluationCost(2.0, 0.5))
    assert (found.hardware, found.evaluation_seconds) == (speed.hardware, 9.0)


def test_what_is_left_is_what_was_given_less_the_time_since(time):
    clock = BudgetClock(80.0, spent=20.0)
    assert clock.seconds_left == 80
    time.now += 90.5
    assert clock.seconds_left == -10.5


@pytest.mark.parametrize(
    ("pauses", "has_time"), [((), True), ((8.0,), False), ((4.0,), True), ((4.0, 3.0), False), ((2.0, 2.0), True)]
)
def test_another_pause_is_taken_if_it_and_the_last_one_are_within_what_may_be_spent(time, pauses, has_time):
    """A fifth of 60 s are 12: a pause of 4 and two more are just that."""
    clock = BudgetClock(60.0)
    for seconds, is_plain in [(1.0, True), (1.0, True), (4.0, True), *((1.0 + each, False) for each in pauses)]:
        time.now += seconds
        clock.record_step(is_plain=is_plain)
    assert clock.can_evaluate() is has_time


def test_getting_ready_leaves_evaluations_their_time(time):
    """300 s are left, so 30 may go into pauses, however long it took to get ready."""
    clock = BudgetClock(300.0, spent=100.0)
    for seconds, is_plain in ((1.0, True), (5.0, False)):
        time.now += seconds
        clock.record_step(is_plain=is_plain)
    assert clock.can_evaluate()


def test_a_pause_before_any_plain_step_says_nothing(time):
    clock = BudgetClock(10.0)
    time.now += 9.0
    clock.record_step(is_plain=False)
    assert clock.can_evaluate()
    assert clock.rescheduled_total(1, 100, config=STEPS) is None


def test_a_pause_shorter_than_a_step_took_no_time(time):
    clock = clock_after(time, 4.0, pauses=(1.0, 6.0), left=45)
    assert clock.total_if_due(10, config=STEPS) is None  # 40 for steps, 1 on average for the last pause, 1 to finish
    time.now += 3
    assert clock.total_if_due(10, config=STEPS) == 20


@pytest.mark.parametrize(
    ("config", "pauses", "needed"),
    [
        (STEPS, (), 26),  # 25 steps of a second, and one to finish
        (STEPS, (3.0, 3.0), 28),  # and a last pause of 2 beside the step
        (EVALUATED, (3.0, 3.0), 32),  # after 30, 40 and 50 steps
        (EVALUATED, (9.0, 9.0), 34),  # 16 of 20 seconds for pauses are gone, but the last one comes in any case
        (EVALUATED, (6.0, 6.0), 36),  # 10 of 20 are left, which two of three pauses fill
    ],
)
def test_the_decay_begins_when_what_is_to_come_takes_what_is_left(time, config, pauses, needed):
    """Half of all steps are behind it. 25 of them took 25 s, one of them much longer than the others."""
    seconds = [0.5] * 23 + [1.0, 12.5]
    pauses = tuple(each - 0.5 for each in pauses)  # in which there is a step of median length
    for left, steps in ((needed + 0.5, None), (needed, 50), (needed - 3.5, 46)):
        clock = BudgetClock(100.0)
        for each, is_plain in [*((each, True) for each in seconds), *((each, False) for each in pauses)]:
            time.now += each
            clock.record_step(is_plain=is_plain)
        time.now += clock.seconds_left - left
        assert clock.total_if_due(25, config=config) == steps


def test_one_more_step_is_taken_however_late_it_is(time):
    assert clock_after(time, 1.0, left=-9.0).total_if_due(30, config=STEPS) == 31
    assert clock_after(time, left=0.5).total_if_due(7, config=STEPS) == 8
    assert clock_after(time, left=5.0).total_if_due(7, config=STEPS) is None  # no step was seen
    warming_up = dataclasses.replace(STEPS, warmup_steps=50)
    assert clock_after(time, 1.0, left=1.0).total_if_due(30, config=warming_up) == 31
    assert clock_after(time, 1.0, left=1.5).total_if_due(30, config=warming_up) is None


def test_the_last_hundred_steps_say_how_long_one_takes(time):
    """The first of 101 took long; the others a second each."""
    clock = clock_after(time, 50.0, *[1.0] * 100, left=102, budget=400)
    assert clock.total_if_due(101, config=STEPS) == 202
    clock = clock_after(time, 51.0, *[1.0] * 99, left=101, budget=400)
    assert clock.total_if_due(100, config=STEPS) == 100 + 66  # at a second and a half


@pytest.mark.parametrize(
    ("a_step", "budget", "left", "steps"),
    [
        # 31 seconds are needed, 30 steps and one to finish; 2% of 100 s don't matter
        (1.0, 100, 33.0, None), (1.0, 100, 33.5, 82), (1.0, 100, 29.0, None), (1.0, 100, 28.5, 77),
        # 121 are needed: a step and a half may be lacking or left
        (4.0, 100, 127.0, None), (4.0, 100, 127.5, 81), (4.0, 100, 115.0, None), (4.0, 100, 114.5, 78),
        # 4.75 are needed: half a second may
        (0.125, 20, 5.25, None), (0.125, 20, 5.375, 85), (0.125, 20, 4.25, None), (0.125, 20, 4.125, 75),
    ],
)  # fmt: skip
def test_the_end_of_a_decay_is_moved_if_it_is_far_from_where_time_ends(time, a_step, budget, left, steps):
    clock = clock_after(time, a_step, a_step, left=left, budget=budget)
    assert clock.rescheduled_total(50, 80, config=STEPS) == steps


def test_the_last_checkpoint_has_time_to_be_written(time):
    clock = clock_after(time, 1.0, left=51.0)
    clock.checkpoint_seconds = 20.0
    assert clock.rescheduled_total(50, 80, config=STEPS) is None
    assert clock.rescheduled_total(40, 80, config=STEPS) == 40 + 51 - 20 - 1


def test_an_end_that_cannot_be_moved_stays(time):
    """The last step is the least there is; after it, and where no step was seen, nothing is known."""
    clock = clock_after(time, 1.0, left=-9.0)
    assert clock.rescheduled_total(78, 80, config=STEPS) == 79
    assert clock.rescheduled_total(79, 80, config=STEPS) is None
    assert clock.rescheduled_total(80, 80, config=STEPS) is None
    assert clock_after(time, left=-9.0).rescheduled_total(50, 80, config=STEPS) is None


class NotingClock(BudgetClock):
    """Remembers what it was told."""

    def record_step(self, *, is_plain: bool) -> None:
        self.noted = [*getattr(self, "noted", []), is_plain]
        super().record_step(is_plain=is_plain)


def test_steps_after_which_the_model_is_evaluated_or_saved_are_no_plain_ones(make_run, time):
    run = make_run(**BUDGET, evaluate_every=4, checkpoint_every=3)
    run.clock = NotingClock(20.0)
    list(driven(run, time, step=1.0))
    paused = [step for step, is_plain in enumerate(run.clock.noted, 1) if not is_plain]
    assert paused == [3, 4, 6, 8, 9, 11, 12, 15, 16, 18, 19]  # the decay begins after 11 steps and ends after 19


def test_the_end_is_moved_where_the_machine_slows_down_in_the_decay(make_run, time):
    """Fifty steps of a second are half of the time, less one to finish. Then they take two.

    After two of them 46 s are left for 47 steps, of 1.02 s on average over all before the last: 44 fit beside the
    second to finish. The rate falls from where it is, and the decay doesn't restart.
    """
    run = make_run(**BUDGET, evaluate_every=0, warmup_steps=0)
    events, found = train(run), {}
    for event in events:
        if isinstance(event, Step):
            time.now += 1.0 if event.step <= 50 else 2.0
        if isinstance(event, DecayStarted):
            assert (event.step, event.steps) == (50, 99)
        found[run.state.step] = (run.plan.steps, run.plan.decay_start, run.plan.budget_seconds, run.learning_rate)
        if run.state.step == 54:
            events.close()
            break
    peak = run.config.training.learning_rate
    assert found[49] == (100, None, 100.0, peak)
    assert found[51] == (99, (50, 1.0), None, pytest.approx(peak * 48 / 49))
    assert found[53][:3] == (96, (52, pytest.approx(47 / 49)), None)
    assert found[53][3] == pytest.approx(peak * 47 / 49 * 43 / 44)


@pytest.fixture
def paced(tmp_path, shards, byte_tokenizer, make_run):
    """Start a run under a budget whose step was measured to take so many seconds."""
    like = make_run("like", **BUDGET, evaluate_every=10, weight_decay=1.0)

    def make(seconds: float, **options):
        speed = TrainingSpeed(seconds, EvaluationCost(0.0, 0.0), Hardware("cpu", "float32", 1))
        corpus = TrainingCorpus(shards, byte_tokenizer)
        return start_run(tmp_path / "paced", like.config, corpus, speed=speed, **options)

    return make


def test_a_plan_made_on_a_busy_machine_is_adapted_to_the_pace_of_the_first_steps(paced, time):
    """Planned are 25 steps of 4 s; they take 1 s each."""
    run = paced(4.0, adjustable_settings=frozenset({"evaluate_every", "weight_decay"}))
    assert run.plan.steps == 25
    events = list(driven(run, time, step=1.0))
    (change,) = [event for event in events if isinstance(event, Replanned)]
    assert (change.step, change.seconds, change.measured) == (12, 1.0, 4.0)
    assert change.steps == pytest.approx(100, abs=2)
    evaluated = [event.step for event in events if isinstance(event, Evaluation)]
    assert run.config.training.evaluate_every == 40  # two and a half times in all, as planned
    assert evaluated == [10, 40, 80, run.state.step]
    assert run.config.training.weight_decay == 0.25
    assert {g["weight_decay"] for each in run.optimizers for g in each.param_groups} == {0.0, 0.25}
    assert json.loads((run.folder / "config.json").read_text())["training"]["weight_decay"] == 0.25


def test_a_plan_that_was_right_or_settings_that_were_given_stay(paced, time):
    run = paced(4.4, adjustable_settings=frozenset({"evaluate_every", "weight_decay"}))
    assert not [event for event in driven(run, time, step=4.0) if isinstance(event, Replanned)]


def test_settings_that_were_given_are_not_adapted(paced, time):
    run = paced(4.0)
    assert any(isinstance(event, Replanned) for event in driven(run, time, step=1.0))
    assert (run.config.training.evaluate_every, run.config.training.weight_decay) == (10, 1.0)


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


def test_a_limited_number_of_steps_is_that_of_a_faster_machine_too(paced, time):
    run = paced(10.0, max_steps=20)
    assert run.plan.steps == 10
    list(driven(run, time, step=1.0))
    assert run.state.step == 20


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
    decisions = [json.loads(line) for line in (run.folder / "decisions.jsonl").read_text().splitlines()]
    assert decisions[-1]["by"].startswith("validation loss")
    stopped = [event for event in events if isinstance(event, StoppedEarly)]
    if stopped:  # the loss rose in the decay too: patience counts from its beginning
        assert run.state.step >= decay.step + 2 * 4
    assert run.state.finished


def test_without_its_best_checkpoint_the_decay_on_a_plateau_starts_from_the_current_weights(make_run):
    run = make_run(**MEMORISING)
    for event in train(run):
        if isinstance(event, Evaluation) and run.is_on_plateau():
            before = {name: value.clone() for name, value in run.model.state_dict().items()}
            run.writer.wait()
            shutil.rmtree(checkpoint_folder(run.folder, run.state.best_step))
        if isinstance(event, DecayStarted):
            break
    assert event.restored_step is None
    assert all(run.model.state_dict()[name].equal(value) for name, value in before.items())


def test_on_a_plateau_a_budget_is_not_used_up(make_run, time):
    run = make_run(**{**MEMORISING, "steps": None, "budget": "400s"})
    began = time.now
    events = list(driven(run, time, step=1.0))
    assert [event.on_plateau for event in events if isinstance(event, DecayStarted)] == [True]
    assert time.now - began < 300
    assert run.state.finished
    assert not [event for event in events if isinstance(event, EndRescheduled)]  # nor is the decay made longer


@pytest.mark.parametrize("left_at", [None, Step, Evaluation, DecayStarted])
def test_left_where_the_plateau_is_noticed_a_resumed_run_equals_one_that_never_stopped(make_run, memorised, left_at):
    """Stopped after that step, or its loop left at an event of it."""
    (whole, events, *_), run = memorised, make_run(**MEMORISING)
    (decay,) = [event for event in events if isinstance(event, DecayStarted)]
    if left_at is None:
        list(train(run, stop=lambda: run.state.step == decay.step))
    else:
        loop = train(run, saves_when_left=lambda: True)
        next(event for event in loop if isinstance(event, left_at) and event.step == decay.step)
        loop.close()
    assert run.state.step == decay.step
    run = resume_run(run.folder)
    list(train(run))
    assert run.plan == whole.plan
    assert metrics_lines(run) == metrics_lines(whole)
    assert sums(run)["model.safetensors"] == sums(whole)["model.safetensors"]
    assert sums(run)["optimizer.safetensors"] == sums(whole)["optimizer.safetensors"]


def test_stopped_in_the_decay_of_a_plateau_a_resumed_run_equals_one_that_never_stopped(make_run, memorised):
    (whole, events, *_), run = memorised, make_run(**MEMORISING)
    (decay,) = [event for event in events if isinstance(event, DecayStarted)]
    list(train(run, stop=lambda: run.state.step > decay.step))
    run = resume_run(run.folder)
    list(train(run))
    assert run.plan == whole.plan
    assert sums(run)["model.safetensors"] == sums(whole)["model.safetensors"]


def test_without_a_decay_patience_nothing_decays_early(make_run):
    run = make_run(**{**MEMORISING, "decay_patience": None, "patience": None, "steps": 40})
    assert not [event for event in train(run) if isinstance(event, DecayStarted)]

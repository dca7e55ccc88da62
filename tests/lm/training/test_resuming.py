"""A resumed run is as if it had never stopped, and what came after an older checkpoint is another branch."""

import dataclasses
import json

import pytest

from lm import files, run_folder
from lm.config.training import TrainingConfig
from lm.optim.averaging import latest_checkpoints
from lm.training.events import Evaluation, Saved, Step, StoppedEarly
from lm.training.loop import train
from lm.training.startup import resume_run
from tests.lm.training.conftest import metrics_lines, stop_after, sums

EXPERTS = {"experts": 4, "experts_per_token": 2, "expert_capacity": 1.0, "gate_noise": 1.0}


@pytest.mark.parametrize(
    ("stop", "optimizer", "model"),
    [
        (1, "adamw", {}), (7, "adamw", {}), (4, "adamw", EXPERTS), (5, "muon", EXPERTS),
        pytest.param(4, "adamw", {}, marks=pytest.mark.slow), pytest.param(5, "muon", {}, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_resuming_equals_never_having_stopped(make_run, stop, optimizer, model):
    """Weights, optimizer and metrics, byte for byte: with dropout, accumulation, growing batches, a falling rate."""
    settings = {"micro_batch_size": 4, "optimizer": optimizer, "batch_warmup": 6, "model": model}
    whole, parts = make_run("whole", **settings), make_run("parts", **settings)
    list(train(whole))
    stopped = list(train(parts, stop=stop_after(stop)))
    assert isinstance(stopped[-1], StoppedEarly)
    resumed = resume_run(parts.folder)
    assert resumed.state.step == stop
    list(train(resumed))
    assert sums(whole)["model.safetensors"] == sums(resumed)["model.safetensors"]
    assert sums(whole)["optimizer.safetensors"] == sums(resumed)["optimizer.safetensors"]
    assert metrics_lines(whole) == metrics_lines(resumed)
    assert sum("gradient_norm" in line for line in metrics_lines(whole)) == 12


@pytest.mark.medium
@pytest.mark.parametrize(
    ("stops", "settings"), [([5], {}), ([3, 5, 5, 10], {"checkpoint_every": 0, "sample": ["ba du"], "ema": 0.8})]
)
def test_an_evaluation_that_stopping_puts_off_comes_first_on_resuming(make_run, stops, settings):
    """The metrics and the best checkpoint are as if the run had never stopped, however often it does."""
    whole, parts = make_run("whole", **settings), make_run("parts", **settings)
    list(train(whole))
    last = 0
    for step in stops:
        events = list(train(parts, stop=stop_after(step - last)) if step > last else put_off_again(parts))
        assert not any(isinstance(event, Evaluation) and event.step == step for event in events)
        parts, last = resume_run(parts.folder), step
    list(train(parts))
    assert metrics_lines(whole) == metrics_lines(parts)
    for which in ("best", "last"):
        ours, theirs = (run_folder.find_checkpoint(run.folder, which=which) for run in (whole, parts))
        assert ours.name == theirs.name
        assert files.sha256(ours / "model.safetensors") == files.sha256(theirs / "model.safetensors")
    assert dataclasses.replace(parts.state, training_seconds=0.0) == dataclasses.replace(
        whole.state, training_seconds=0.0
    )


def put_off_again(run):
    """A process that is killed in the evaluation that was put off, after having noted what it brought."""
    events = train(run)
    assert isinstance(next(events), Evaluation)
    events.close()
    return []


def test_resuming_an_older_checkpoint_forgets_what_came_later(make_run):
    run = make_run(checkpoint_every=4, keep_checkpoints=0)
    events = list(train(run))
    first = next(event.folder for event in events if isinstance(event, Saved) and event.step == 4)
    before = sums(run)
    list(train(resume_run(first)))
    assert sums(run)["model.safetensors"] == before["model.safetensors"]
    steps = [json.loads(line)["step"] for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)


def test_a_finished_run_can_be_trained_on(make_run):
    run = make_run(schedule="constant")
    list(train(run))
    longer = resume_run(run.folder, new_length=TrainingConfig(steps=20))
    list(train(longer))
    whole = make_run("whole", schedule="constant", steps=20)
    list(train(whole))
    assert sums(longer)["model.safetensors"] == sums(whole)["model.safetensors"]


@pytest.fixture
def branching(make_run):
    """A run of 12 steps with a checkpoint every second one, and evaluations of which the last was best."""
    run = make_run(checkpoint_every=2, keep_checkpoints=0, learning_rate=1e-2, evaluate_every=2)
    list(train(run))
    return run


def names(run, step=0) -> list[str]:
    return [folder.name for folder in run_folder.checkpoints_after(run.folder, step)]


def contents(run) -> dict[str, bytes]:
    return {name: (run.folder / name).read_bytes() for name in ("metrics.jsonl", "timings.jsonl", "best", "last")}


def test_what_came_after_an_older_checkpoint_goes_when_the_new_branch_has_saved(branching):
    before = names(branching)
    resumed = resume_run(branching.folder / "checkpoints" / "step-4", new_length=TrainingConfig(steps=9))
    assert [folder.name for folder in resumed.stale_checkpoints] == ["step-6", "step-8", "step-10", "step-12"]
    events = train(resumed)
    assert isinstance(next(events), Step)
    assert names(branching) == before
    assert next(event for event in events if isinstance(event, Saved)).step == 6
    assert names(branching) == ["step-2", "step-4", "step-6"]
    list(events)
    assert names(branching) == ["step-2", "step-4", "step-6", "step-8", "step-9"]
    assert run_folder.find_checkpoint(branching.folder).name == f"step-{resumed.state.best_step}"
    assert [folder.name for folder in latest_checkpoints(branching.folder, 3)] == ["step-6", "step-8", "step-9"]


def test_a_branch_stopped_at_once_has_its_own_best(branching):
    """The best of the other branch went with it, so it is what the older checkpoint knew as the best."""
    run = resume_run(branching.folder / "checkpoints" / "step-4")
    known = run.state.best_step
    list(train(run, stop=stop_after(1)))
    assert names(run) == ["step-2", "step-4", "step-5"]
    assert run_folder.find_checkpoint(run.folder).name == f"step-{known}"
    steps = [json.loads(line)["step"] for line in (run.folder / "metrics.jsonl").read_text().split("\n")[:-1]]
    assert steps == [1, 2, 2, 3, 4, 4, 5]


def test_how_long_a_run_is_and_how_it_is_computed_may_differ(make_run):
    """A resumed run writes both before its first checkpoint, and may be killed then."""
    run = make_run("run", steps=4)
    list(train(run, stop=stop_after(2)))
    path = run.folder / "config.json"
    settings = json.loads(path.read_text())
    settings["training"] |= {"steps": None, "budget": "9m", "schedule": "wsd", "gradient_checkpointing": True}
    settings["plan"] |= {"steps": 99, "threads": 2, "processes": 2}
    path.write_text(json.dumps(settings))
    assert resume_run(run.folder).plan.steps == 4
    path.unlink()
    assert resume_run(run.folder).plan.steps == 4

"""One process at a time trains in a folder, and nothing in it is lost to another."""

from __future__ import annotations

import json
import threading

import pytest
from safetensors.torch import save_file

from lm import checkpoint, files, run_folder
from lm.config.training import TrainingConfig
from lm.data.training_data import open_data
from lm.errors import InputError, UsageError
from lm.optimization import averaging
from lm.training import resuming, starting
from lm.training.events import Saved, Step
from lm.training.resuming import resume
from lm.training.trainer import train
from tests.lm.training.conftest import stop_after

TRAINED = "run: another process is training this run; wait for it to end, or use another folder"


def test_a_folder_is_for_one_run_at_a_time(make_run):
    run = make_run()
    before = (run.folder / "config.json").read_bytes()
    with pytest.raises(InputError, match=TRAINED):
        make_run(steps=7)
    events = train(run)
    assert next(event for event in events if isinstance(event, Saved))
    for path in (run.folder, run.folder / "checkpoints" / "step-5"):
        with pytest.raises(InputError, match=TRAINED):
            resume(path)
    assert (run.folder / "config.json").read_bytes() == before
    assert list(events)[-1] == Saved(12, run.folder / "checkpoints" / "step-12")


def test_of_two_that_start_at_once_one_runs(make_run):
    ready, found = threading.Barrier(2), []

    def start():
        ready.wait()
        try:
            found.append(make_run())
        except InputError as error:
            found.append(str(error))

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(one, str) and one.endswith(TRAINED) for one in found) == 1


def test_a_run_opens_its_data_once(make_run, monkeypatch):
    """When it starts and when it goes on, longer or not."""
    opened = []
    for module in (starting, resuming):
        monkeypatch.setattr(module, "open_data", lambda *given: opened.append(given) or open_data(*given))
    for at, longer in ((3, None), (3, TrainingConfig(epochs=1, steps=None))):
        begun = make_run(f"run-{longer is None}")
        list(train(begun, stop=stop_after(at)))
        resume(begun.folder, longer=longer)
    assert len(opened) == 4


def test_whoever_stops_lets_others_go_on(make_run):
    """Whether training ended, was broken off, or never began because there was nothing to go on with."""
    run = make_run()
    events = train(run)
    next(event for event in events if isinstance(event, Saved))
    events.close()
    (run.folder / "checkpoints" / "step-5" / "state.json").write_text("{}")
    with pytest.raises(InputError, match="differs from its sha256"):
        resume(run.folder)
    with pytest.raises(InputError, match="differs from its sha256"):
        resume(run.folder)


def test_a_run_that_was_killed_before_its_first_checkpoint_can_be_started_again(make_run):
    run = make_run()
    events = train(run)
    assert isinstance(next(events), Step)
    events.close()
    again = make_run(steps=7)
    assert (again.folder / "metrics.jsonl").read_text() == ""
    assert run_folder.load_config(again.folder).training.steps == 7


def test_a_run_killed_while_it_replaced_its_only_checkpoint_goes_on(make_run):
    run = make_run()
    list(train(run, stop=stop_after(3)))
    only = run.folder / "checkpoints" / "step-3"
    only.rename(only.with_name(".step-3.replaced"))
    assert resume(run.folder).state.step == 3


@pytest.fixture
def branching(make_run):
    """A run of 12 steps with a checkpoint every second one, and evaluations of which the last was best."""
    run = make_run(checkpoint_every=2, keep=0, learning_rate=1e-2, evaluate_every=2)
    list(train(run))
    return run


def names(run, step=0) -> list[str]:
    return [folder.name for folder in run_folder.later_than(run.folder, step)]


def contents(run) -> dict[str, bytes]:
    return {name: (run.folder / name).read_bytes() for name in ("metrics.jsonl", "timings.jsonl", "best", "last")}


def test_what_came_after_an_older_checkpoint_goes_when_the_new_branch_has_saved(branching):
    before = names(branching)
    resumed = resume(branching.folder / "checkpoints" / "step-4", longer=TrainingConfig(steps=9))
    assert [folder.name for folder in resumed.other_branch] == ["step-6", "step-8", "step-10", "step-12"]
    events = train(resumed)
    assert isinstance(next(events), Step)
    assert names(branching) == before
    assert next(event for event in events if isinstance(event, Saved)).step == 6
    assert names(branching) == ["step-2", "step-4", "step-6"]
    list(events)
    assert names(branching) == ["step-2", "step-4", "step-6", "step-8", "step-9"]
    assert run_folder.find_checkpoint(branching.folder).name == f"step-{resumed.state.best_step}"
    assert [folder.name for folder in averaging.latest(branching.folder, 3)] == ["step-6", "step-8", "step-9"]


def test_a_branch_that_is_killed_before_it_has_saved_has_lost_nothing(branching):
    before, checkpoints = contents(branching), names(branching)
    events = train(resume(branching.folder / "checkpoints" / "step-4"))
    assert isinstance(next(events), Step)
    events.close()
    assert names(branching) == checkpoints
    with pytest.raises(UsageError, match="finished after 12 steps"):
        resume(branching.folder)
    assert contents(branching) == before


def test_a_branch_stopped_at_once_has_its_own_best(branching):
    """The best of the other branch went with it, so it is what the older checkpoint knew as the best."""
    run = resume(branching.folder / "checkpoints" / "step-4")
    known = run.state.best_step
    list(train(run, stop=stop_after(1)))
    assert names(run) == ["step-2", "step-4", "step-5"]
    assert run_folder.find_checkpoint(run.folder).name == f"step-{known}"
    steps = [json.loads(line)["step"] for line in (run.folder / "metrics.jsonl").read_text().split("\n")[:-1]]
    assert steps == [1, 2, 2, 3, 4, 4, 5]


def test_a_branch_whose_best_is_gone_finds_its_own(make_run):
    """What has been removed since, as `--keep` does, cannot be the best; nothing was better than the first here."""
    run = make_run(checkpoint_every=2, keep=0, learning_rate=0.0, evaluate_every=2)
    list(train(run))
    checkpoint.remove(run.folder / "checkpoints" / "step-2")
    branch = resume(run.folder / "checkpoints" / "step-4")
    assert branch.state.best_step is None
    list(train(branch, stop=stop_after(1)))
    assert run_folder.find_checkpoint(run.folder).name == "step-5"
    list(train(resume(run.folder), stop=stop_after(2)))
    assert run_folder.find_checkpoint(run.folder).name == "step-6"


@pytest.mark.parametrize("average", [0.0, 0.5])
@pytest.mark.parametrize("damage", ["missing", "of another shape"])
def test_weights_of_another_model_are_not_gone_on_with(make_run, average, damage):
    """Not even where the sums were made to fit, as by somebody who has edited a checkpoint."""
    run = make_run(ema=average)
    list(train(run, stop=stop_after(3)))
    folder = run_folder.find_checkpoint(run.folder, which="last")
    weights = checkpoint.load_weights(folder)
    name = next(iter(weights))
    weights.update({} if damage == "missing" else {name: weights[name][:3, :3].contiguous()})
    if damage == "missing":
        del weights[name]
    save_file(weights, folder / "model.safetensors")
    sums = {path.name: files.sha256(path) for path in folder.iterdir() if path.name != "manifest.json"}
    files.write_json(folder / "manifest.json", {"sha256": sums})
    with pytest.raises(InputError, match=r"its weights are not of this run's model; go on from another checkpoint"):
        resume(run.folder)

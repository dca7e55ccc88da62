"""Training continues while a checkpoint is written, and neither changes the other."""

import math
import threading

import pytest
import torch

from lm import checkpoint, files, run_folder
from lm.errors import TrainingError
from lm.training.loop import train
from lm.training.run_log import Saved, Step
from tests.lm.full_disk import full_disk
from tests.lm.training.conftest import stop_after, sums
from tests.lm.training.runs import resume_run
from tests.tolerances import assert_close


@pytest.fixture
def disk(monkeypatch) -> threading.Event:
    """A disk that finishes nothing while the event is not set."""
    ready, sync = threading.Event(), files.sync
    ready.set()

    def when_ready(path):
        ready.wait()
        sync(path)

    monkeypatch.setattr(files, "sync", when_ready)
    return ready


def after(events, step: int) -> None:
    next(event for event in events if isinstance(event, Step) and event.step == step)


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_what_is_written_is_what_there_was_when_it_was_begun(make_run, disk, ema):
    """As training shows it at that step, and as a run writes it that ends there."""
    ended = make_run("ended", evaluate_every=0, ema=ema)
    list(train(ended, stop=stop_after(3)))
    run = make_run(evaluate_every=0, checkpoint_every=3, ema=ema)
    disk.clear()
    events = train(run)
    after(events, 3)
    weights = run.ema.weights if run.ema else run.model.state_dict()
    expected = {name: value.clone() for name, value in weights.items()}
    after(events, 5)
    assert not run_folder.list_checkpoints(run.folder)
    assert run_folder.read_pointer(run.folder, "last") is None
    disk.set()
    saved = next(event for event in events if isinstance(event, Saved))
    assert saved.step == 3
    found = checkpoint.load_weights(saved.folder)
    assert found.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in found.items())
    for name in (run_folder.MODEL, run_folder.OPTIMIZER):
        assert files.sha256(saved.folder / name) == sums(ended)[name]


def test_what_cannot_be_written_ends_training_and_leaves_the_last_checkpoint(make_run):
    run = make_run(evaluate_every=0, checkpoint_every=3, steps=1000)
    events = train(run)
    assert next(event for event in events if isinstance(event, Saved)).step == 3
    run.finish_saving()
    last = run_folder.find_checkpoint(run.folder, which="last")
    with full_disk(after=20_000), pytest.raises(OSError, match="[Ff]ile too large"):
        list(events)
    assert run_folder.list_checkpoints(run.folder)[-1] == last
    assert not list((run.folder / "checkpoints").glob(".*"))
    assert resume_run(run.folder).state.step == run_folder.checkpoint_step(last)


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_weights_that_are_not_finite_are_never_saved(make_run, ema):
    """The loss of the step was finite, but not what the step made: neither an evaluation nor a checkpoint takes it."""
    for evaluate_every, problem in ((6, "the validation loss is nan"), (7, "is no longer finite after 6 steps")):
        run = make_run(str(evaluate_every), evaluate_every=evaluate_every, ema=ema, checkpoint_every=3)
        events = train(run)
        next(event for event in events if isinstance(event, Step) and event.step == 6)
        run.finish_saving()
        before = sums(run)
        for weights in (run.model.state_dict(), run.ema.weights if run.ema else {}):
            for value in weights.values():
                value[0] = math.nan
        with pytest.raises(TrainingError, match=problem):
            list(events)
        assert sums(run) == before
        assert {path.name for path in (run.folder / "checkpoints").iterdir()} == {"step-3"}
        assert not (run.folder / "best").exists()
        assert run.state.best_loss is None


def test_the_moving_average_is_evaluated_and_saved_and_resumes_exactly(make_run):
    """Against the average written out, with the decay that grows to its value."""
    whole, parts = make_run("whole", ema=0.8), make_run("parts", ema=0.8)
    expected = {name: value.clone() for name, value in whole.model.state_dict().items()}
    for event in train(whole):
        if isinstance(event, Step):
            decay = min(0.8, (1 + event.step) / (10 + event.step))
            for name, value in whole.model.state_dict().items():
                expected[name] = decay * expected[name] + (1 - decay) * value
    last = run_folder.find_checkpoint(whole.folder, which="last")
    saved = checkpoint.load_weights(last)
    for name, value in saved.items():
        assert_close(value, expected[name], depth=12)
    assert not torch.equal(saved["embedding.tokens.weight"], whole.model.embedding.tokens.weight)
    list(train(parts, stop=stop_after(7)))
    resumed = resume_run(parts.folder)
    list(train(resumed))
    assert sums(resumed) | {"state.json": 0, "config.json": 0} == sums(whole) | {"state.json": 0, "config.json": 0}

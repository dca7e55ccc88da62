"""What is saved is what training continues with, and never a weight that is no number."""

import math

import pytest
import torch

from lm import checkpoint, run_folder
from lm.config.training import TrainingConfig
from lm.errors import TrainingError
from lm.training.events import Step
from lm.training.loop import train
from lm.training.run_summaries import load_curves
from lm.training.startup import resume_run
from tests.lm.training.conftest import loss_of, stop_after, sums
from tests.tolerances import approx, assert_close


@pytest.mark.parametrize("ema", [0.0, 0.9])
@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_weights_that_are_no_numbers_are_never_saved(make_run, broken, ema):
    """The loss of the step was finite, but not what the step made: neither an evaluation nor a checkpoint takes it."""
    for evaluate_every, problem in ((6, "the validation loss is nan at step 6"), (7, "is no longer finite at step 6")):
        run = make_run(str(evaluate_every), evaluate_every=evaluate_every, ema=ema, checkpoint_every=3)
        events = train(run)
        next(event for event in events if isinstance(event, Step) and event.step == 6)
        run.writer.wait()
        before = sums(run)
        for weights in (run.model.state_dict(), run.average.weights if run.average else {}):
            for value in weights.values():
                value[0] = broken
        with pytest.raises(TrainingError, match=problem):
            list(events)
        assert sums(run) == before
        assert {path.name for path in (run.folder / "checkpoints").iterdir()} == {"step-3"}
        assert not (run.folder / "best").exists()
        assert run.state.best_loss is None
        assert all(math.isfinite(value) for curve in load_curves(run.folder).values() for value in curve.values)


def test_the_last_and_the_best_checkpoints_are_kept(make_run):
    run = make_run(steps=20, evaluate_every=16, checkpoint_every=2, keep=2, learning_rate=0.0)
    list(train(run))
    assert {path.name for path in (run.folder / "checkpoints").iterdir()} == {"step-16", "step-18", "step-20"}
    list(train(resume_run(run.folder, longer=TrainingConfig(steps=40)), stop=stop_after(5)))
    assert {path.name for path in (run.folder / "checkpoints").iterdir()} == {"step-16", "step-24", "step-25"}


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
    evaluated = resumed.state.best_loss
    resumed.model.load_state_dict(saved)
    nats, predicted = loss_of(resumed)
    assert evaluated == approx(nats / predicted, terms=1)

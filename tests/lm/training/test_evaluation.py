"""What evaluating a run costs, by a clock that says what it is told."""

import time

import pytest

from lm.training import evaluation
from lm.training.evaluation import evaluate, measure_cost
from lm.training.events import Evaluation


@pytest.mark.parametrize(("seconds", "looked_at"), [(0.0, 1), (1.9, 1), (2.0, 2), (3.9, 2), (4.0, 3)])
def test_the_loss_of_the_whole_split_takes_what_its_first_batches_do(make_run, monkeypatch, seconds, looked_at):
    """Of batches that take two seconds each, as many are looked at as begin in time, after one that doesn't count."""
    run, modes = make_run(), []
    parts = [part for batch in run.data.validation() for part in batch.split(20)]
    targets = [part.predicted for part in parts]
    assert targets == [320, 320, 256, 5]
    monkeypatch.setattr(run.data, "validation", lambda: iter(parts))

    def timed(work, hardware):
        modes.append(run.model.training)
        assert hardware == run.hardware
        assert work().isfinite()
        return 2.0

    monkeypatch.setattr(evaluation, "time_work", timed)
    found = measure_cost(run, seconds=seconds)
    assert found.loss_seconds == pytest.approx(2.0 * looked_at * 901 / sum(targets[1 : 1 + looked_at]))
    assert found.sentence_seconds == 0
    assert modes == [False] * (1 + looked_at)
    assert run.model.training


def test_an_evaluation_says_how_long_it_took(make_run):
    run, began = make_run(), time.perf_counter()
    (found,) = (event for event in evaluate(run) if isinstance(event, Evaluation))
    assert 0 < found.seconds <= time.perf_counter() - began

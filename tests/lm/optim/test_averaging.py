"""Averages of weights are what they are defined as, and a run with one resumes exactly."""

import pytest
import torch
from torch import nn

from lm import checkpoint
from lm.config.hardware import HardwareConfig
from lm.errors import InputError
from lm.hardware import select_inference_hardware
from lm.optim.averaging import MovingAverage, average_checkpoints, latest_checkpoints
from lm.training.loop import train
from tests.lm.training.runs import resume_run


@pytest.fixture
def model() -> nn.Linear:
    made = nn.Linear(1, 1, bias=False)
    nn.init.constant_(made.weight, 1.0)
    return made


def set_weight(model: nn.Linear, value: float) -> None:
    with torch.no_grad():
        model.weight.fill_(value)


def test_it_follows_by_a_decay_that_grows_to_its_value(model):
    """At first by (1 + step) / (10 + step): 2/11 and 3/12, which is more than 0.2."""
    average = MovingAverage(model, decay=0.2)
    set_weight(model, 12.0)
    average.update(1)
    first = 2 / 11 * 1 + 9 / 11 * 12
    assert average.weights["weight"].item() == pytest.approx(first)
    average.update(2)
    assert average.weights["weight"].item() == pytest.approx(0.2 * first + 0.8 * 12)


def test_the_model_gets_its_own_weights_back(model):
    average = MovingAverage(model, decay=0.9)
    set_weight(model, 5.0)
    with average.swapped_in():
        assert model.weight.item() == 1.0
    assert model.weight.item() == 5.0
    assert average.weights["weight"].item() == 1.0


def test_it_continues_from_what_was_saved(model):
    average = MovingAverage(model, decay=0.9)
    average.load({"weight": torch.full((1, 1), 3.0)})
    assert average.weights["weight"].item() == 3.0
    with pytest.raises(KeyError):
        average.load({})


def test_the_mean_of_the_latest(make_run, tmp_path):
    run = make_run(checkpoint_every=3, keep_checkpoints=0)
    list(train(run))
    chosen = latest_checkpoints(run.folder, 3)
    assert [path.name for path in chosen] == ["step-9", "step-10", "step-12"]
    folder = average_checkpoints(chosen, tmp_path / "mean")
    weights = [checkpoint.load_weights(path) for path in chosen]
    loaded = checkpoint.load_model(tmp_path / "mean", select_inference_hardware(HardwareConfig()))
    assert loaded.folder == folder
    for name, value in loaded.model.state_dict().items():
        expected = torch.stack([each[name] for each in weights]).double().mean(0).float()
        torch.testing.assert_close(value, expected)
    with pytest.raises(InputError, match="has no plan"):
        resume_run(tmp_path / "mean")
    with pytest.raises(InputError, match="holds a run already"):
        average_checkpoints(chosen, run.folder)

"""An average of the weights of all steps, computed by hand, and lent to the model for a while."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lm.optim.moving_average import MovingAverage


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


def test_it_goes_on_from_what_was_saved(model):
    average = MovingAverage(model, decay=0.9)
    average.load({"weight": torch.full((1, 1), 3.0)})
    assert average.weights["weight"].item() == 3.0
    with pytest.raises(KeyError):
        average.load({})

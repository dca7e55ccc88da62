"""How a model is trained, and for how long."""

from __future__ import annotations

import pytest

from lm.config.training import TrainingConfig
from lm.errors import UsageError


@pytest.mark.parametrize(
    ("values", "message"),
    [({"steps": 5, "epochs": 1.0}, "only one of steps, epochs"), ({"epochs": 0}, "epochs must be more than 0")],
)
def test_a_run_has_one_length(values, message):
    with pytest.raises(UsageError, match=message):
        TrainingConfig(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"schedule": "cosine"}, "takes the schedule wsd"),
        ({"decay_fraction": 1.0}, "a decay_fraction below 1"),
        ({"steps": 3}, "only one of steps, budget"),
        ({"budget": "soon"}, r"a time is written like 90s, "),
    ],
)
def test_what_a_budget_does_not_go_with(values, message):
    with pytest.raises(UsageError, match=message):
        TrainingConfig(**{"budget": "1m", "schedule": "wsd", **values})


def test_a_batch_goes_through_twice_with_r_drop():
    assert (TrainingConfig().forward_passes, TrainingConfig(r_drop=0.5).forward_passes) == (1, 2)

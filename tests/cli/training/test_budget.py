"""What is left of a time, and what it is too short for."""

from __future__ import annotations

import pytest

from cli.training import clock
from cli.training.budget import seconds_left, seconds_to_measure, warn_of_few_steps
from lm.errors import UsageError


def test_what_is_left_of_a_budget_shrinks_with_the_clock(monkeypatch):
    monkeypatch.setattr(clock, "elapsed", lambda: 20.0)
    assert seconds_left("1m") == 40.0
    with pytest.raises(UsageError, match=r"10s is too short: 20\.0 s went into getting ready"):
        seconds_left("10s")


def test_measuring_takes_a_small_share_and_little_time():
    assert seconds_to_measure("10s") == pytest.approx(0.1)
    assert seconds_to_measure("10h") == 1.5


def test_few_steps_are_warned_of(capsys):
    warn_of_few_steps(50, "1m is enough for about")
    assert capsys.readouterr().err == ""
    warn_of_few_steps(0.4, "1m is enough for about")
    assert capsys.readouterr().err.startswith("warning 1m is enough for about 1 step only: more time would teach more")

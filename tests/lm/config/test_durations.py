"""Lengths of time as a person writes them."""

from __future__ import annotations

import pytest

from lm.config.training import parse_duration
from lm.errors import UsageError


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("1h30m", 5400), ("1.5h", 5400), ("2m5s", 125), (" 1h ", 3600)]
)
def test_units_add_up(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "0s", "m", "5 minutes", "1m1h", "-3m", "1.m", "ten"])
def test_anything_else_is_refused_with_an_example(text):
    with pytest.raises(UsageError, match="10m"):
        parse_duration(text)

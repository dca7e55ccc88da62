"""Sides that take turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

Timed = Callable[[], float]
"""Does some work once; returns the seconds that counted."""


def alternate(sides: Sequence[Timed], *, seconds: float) -> list[list[float]]:
    """Let sides take turns, so that whatever else the machine does meanwhile slows all of them.

    Args:
        sides: what is compared, or one alone.
        seconds: for each side, about; there is one round at least, after one that does not count.

    Returns:
        the seconds of each side, round by round.
    """
    for side in sides:
        side()
    rounds: list[list[float]] = []
    began = time.perf_counter()
    while not rounds or time.perf_counter() - began < seconds * len(sides):
        rounds.append([side() for side in sides])
    return rounds

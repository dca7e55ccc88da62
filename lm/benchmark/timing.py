"""Work that is timed, and sides that take turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from lm.hardware import Hardware, now

Timed = Callable[[], float]
"""Does some work once; returns the seconds that counted."""


def whole_step(step: Timed, optimizers: Sequence[torch.optim.Optimizer], hardware: Hardware, *, passes: float) -> Timed:
    """What an optimizer step takes that goes through the model so many times as often as the one that is timed.

    The weights are updated once all the same: with one sequence of a batch of 64 that would seem most of the work.
    """
    began, updating = 0.0, 0.0

    def begin(*_: object) -> None:
        nonlocal began
        began = now(hardware)

    def end(*_: object) -> None:
        nonlocal updating
        updating += now(hardware) - began

    for optimizer in optimizers:
        optimizer.register_step_pre_hook(begin)
        optimizer.register_step_post_hook(end)

    def whole() -> float:
        nonlocal updating
        updating = 0.0
        return passes * (step() - updating) + updating

    return whole


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

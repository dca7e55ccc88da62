"""The command line that runs, for commands that run others or themselves once more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

Run = Callable[[Sequence[str]], int]
"""Runs a command line, less the name of `lm`; returns its exit code."""


class CommandLine(NamedTuple):
    """What was typed.

    Attributes:
        arguments: the command line, less the name of `lm`.
        run: runs another one in this process.
        began: when the command began, on the clock of `time.monotonic`.
    """

    arguments: Sequence[str]
    run: Run
    began: float

"""Compile decode kernels in the background of a command, and say so once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cli.console.messages import print_note
from lm.config.model import ModelConfig

_MAX_WAIT_SECONDS = 4.0
"""How long a finished command waits for the compiler."""


@contextmanager
def compiling_in_background(
    config: ModelConfig, device: str, *, is_long_running: bool = False, waits_at_end: bool = True
) -> Iterator[None]:
    """Compile for a model while a command runs, unless that was done before; see `BackgroundCompiler.start`.

    The compiler may take time from a command that is long-running. At the end, unless there is an error, a command
    waits a few seconds for it.
    """
    from lm.engine.background_compiler import VARIABLE, BackgroundCompiler

    compiler = BackgroundCompiler.start(config, device, is_long_running=is_long_running)
    if compiler is None:
        yield
        return
    if compiler.is_first:
        print_note(
            f"compiling faster decode kernels in the background, once for this machine ({VARIABLE}=0 disables it)"
        )
    wait = 0.0
    try:
        yield
        wait = _MAX_WAIT_SECONDS if waits_at_end else 0.0
    finally:
        compiler.stop(wait=wait)

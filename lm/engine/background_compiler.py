"""Compiles the decode step in the background of a command, in a process of low priority that ends with it.

numba saves each function when it is compiled, so the next command continues where this one stopped.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import Self

from lm.config.model import ModelConfig
from lm.engine.compiled.build import compile_decode_step
from lm.engine.selection import COMPILED_SUPPORT, find_unsupported
from lm.errors import InputError
from lm.kernels import code_cache
from lm.processes import available_cores, end_with_parent, python_command

VARIABLE = "LM_BACKGROUND_COMPILE"
"""The environment variable that disables it, with 0, false, no or off."""
_DISABLING = frozenset({"0", "false", "no", "off"})
_NICENESS, _NICENESS_IN_LONG_COMMANDS = 19, 3
"""1% of a core that the command keeps busy, and 34%: with that, training steps on two cores took twice as long."""
_MAX_WAITS = 10
"""Commands that wait for the compiler at their end; on a machine too slow to finish with them, later ones don't."""
_CODE = "from lm.engine.background_compiler import run_compiler; run_compiler(int(sys.argv[2]))"


class BackgroundCompiler:
    """A process that compiles the decode step.

    Attributes:
        is_first: whether no process has begun to compile this version here before.
        may_wait: whether few processes have, so that it is worth waiting for this one to get further.
    """

    def __init__(self, process: subprocess.Popen[bytes], *, is_first: bool, may_wait: bool = True) -> None:
        self.is_first, self.may_wait, self._process = is_first, may_wait, process

    @classmethod
    def start(cls, config: ModelConfig, device: str, *, is_long_running: bool = False) -> Self | None:
        """Start the process.

        Args:
            is_long_running: the command runs so long that the compiler may take time from it.

        Returns:
            None if compiled code exists, is disabled, would not be used by this model and device, cannot be saved, or
            could not be compiled before; and on a single core, where it would delay the command.
        """
        if device != "cpu" or find_unsupported(config, COMPILED_SUPPORT) is not None or available_cores() < 2:
            return None
        if os.environ.get(VARIABLE, "").lower() in _DISABLING:
            return None
        if (
            not code_cache.is_installed()
            or code_cache.is_complete()
            or (is_first := code_cache.create_folder()) is None
        ):
            return None
        niceness = _NICENESS_IN_LONG_COMMANDS if is_long_running else _NICENESS
        try:
            process = subprocess.Popen(
                python_command(_CODE, str(niceness)),
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except OSError:
            return None
        return cls(process, is_first=is_first, may_wait=_count_start() <= _MAX_WAITS)

    def stop(self, *, wait: float = 0.0) -> None:
        """End the process, after at most `wait` seconds in which it may finish."""
        try:
            if wait and self.may_wait:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(wait)
        finally:
            self._process.kill()
            self._process.wait()
            if self._process.stdin is not None:
                self._process.stdin.close()


def _count_start() -> int:
    """Count the processes that began to compile this version here, this one included."""
    file = code_cache.code_folder().parent / "starts"
    try:
        with file.open("ab") as stream:
            stream.write(b".")
        return file.stat().st_size
    except OSError:
        return _MAX_WAITS + 1


def run_compiler(niceness: int) -> None:
    """Compile at a low priority until done, or until standard input closes, as it does when the parent ends."""
    end_with_parent()
    if hasattr(os, "nice"):  # not on Windows
        os.nice(niceness)
    try:
        compile_decode_step(waits=False)
    except (BlockingIOError, InputError):  # another process compiles, or the cache is full
        return
    except Exception:
        code_cache.record_failure()

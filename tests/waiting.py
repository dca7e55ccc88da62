"""Waiting for other processes, as long as a slow machine takes: the limit only ends tests that would hang."""

import os
import time
from collections.abc import Callable
from pathlib import Path

SECONDS = 900


def wait_until(condition: Callable[[], object]) -> None:
    """Return once a condition holds."""
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def wait_for_steps(run: Path, count: int) -> None:
    """Return once a run has logged so many steps and evaluations."""
    wait_until(lambda: logged(run) >= count)


def logged(run: Path) -> int:
    """The number of lines that a run has logged."""
    log = run / "metrics.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def is_alive(process: int) -> bool:
    """Whether there is a process of this number, other than one that nobody has waited for."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{process}/stat")  # where the system tells
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"

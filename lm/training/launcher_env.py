"""The launcher's environment (`torchrun`'s variables), and which rank reports to the user; without torch.

A process without these variables is not distributed.
"""

from __future__ import annotations

import os
from types import SimpleNamespace

START_TIME = "LAUNCHER_BEGAN_AT"
"""Variable with the start of the launching command, in seconds of the machine's monotonic clock."""
reporting = SimpleNamespace(is_first=None)
"""Whether this process was the first to fail; None as long as no process has."""


def world_size() -> int:
    """Number of processes that train together."""
    return int(os.environ.get("WORLD_SIZE", "1")) if os.environ.get("RANK") else 1


def rank() -> int:
    """Rank of this process, over all machines."""
    return int(os.environ["RANK"]) if world_size() > 1 else 0


def local_rank() -> int:
    """Rank of this process among those on this machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_one_machine() -> bool:
    """Whether all processes were started by one launcher."""
    return os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]


def restart_count() -> int:
    """Number of times the launcher has restarted the processes after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def start_time() -> float | None:
    """Return the start time of the launching command; None without our launcher."""
    return float(os.environ[START_TIME]) if START_TIME in os.environ else None


def is_reporting() -> bool:
    """Whether this process reports to the user: rank 0, or the first one that has failed."""
    return rank() == 0 if reporting.is_first is None else reporting.is_first

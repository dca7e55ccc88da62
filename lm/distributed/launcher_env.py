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
    return _env_int("WORLD_SIZE", 1) if "RANK" in os.environ else 1


def rank() -> int:
    """Rank of this process, over all machines."""
    return _env_int("RANK", 0) if world_size() > 1 else 0


def local_rank() -> int:
    """Rank of this process among those on this machine."""
    return _env_int("LOCAL_RANK", rank())


def is_external_launcher() -> bool:
    """Whether this process was started by `torchrun` or another launcher, not by `lm.distributed.launcher`."""
    return {"RANK", "WORLD_SIZE"} <= os.environ.keys() and START_TIME not in os.environ


def silence_torch_logs() -> None:
    """Silence torch's own process logs unless a level is set; call before torch is imported.

    Failures are raised in Python too, and reported in one line.
    """
    if world_size() > 1:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def restart_count() -> int:
    """Number of times the launcher has restarted the processes after a failure."""
    return _env_int("TORCHELASTIC_RESTART_COUNT", 0)


def start_time() -> float | None:
    """Return the start time of the launching command; None without our launcher."""
    return float(os.environ[START_TIME]) if START_TIME in os.environ else None


def is_reporting() -> bool:
    """Whether this process reports to the user: rank 0, or the first one that has failed."""
    return rank() == 0 if reporting.is_first is None else reporting.is_first


def _env_int(name: str, default: int) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else default

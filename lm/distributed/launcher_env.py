"""The launcher's environment (`torchrun`'s variables), and which rank reports to the user; without torch.

A process without these variables is not distributed.
"""

from __future__ import annotations

import os
from types import SimpleNamespace

_START_TIME = "LAUNCHER_BEGAN_AT"


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
    return {"RANK", "WORLD_SIZE"} <= os.environ.keys() and _START_TIME not in os.environ


def silence_torch_logs() -> None:
    """Silence torch's own process logs unless a level is set; call before torch is imported.

    Failures are raised in Python too, and reported in one line.
    """
    if world_size() > 1:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def restart_count() -> int:
    """Number of times the launcher has restarted the processes after a failure."""
    return _env_int("TORCHELASTIC_RESTART_COUNT", 0)


def can_restart() -> bool:
    """Whether the launcher restarts failed processes."""
    return _env_int("TORCHELASTIC_MAX_RESTARTS", 0) > 0


def export_start_time(seconds: float) -> None:
    """Pass the start time of the command to the launched processes, in seconds of the machine's monotonic clock."""
    os.environ[_START_TIME] = repr(seconds)


def clear_start_time() -> None:
    """Undo `export_start_time`."""
    os.environ.pop(_START_TIME, None)


def start_time() -> float | None:
    """Return the start time of the launching command; None without our launcher."""
    return float(os.environ[_START_TIME]) if _START_TIME in os.environ else None


_REPORTING = SimpleNamespace(override=None)


def is_reporting() -> bool:
    """Whether this process reports to the user: rank 0, unless `set_reporting` decided otherwise."""
    return rank() == 0 if _REPORTING.override is None else bool(_REPORTING.override)


def set_reporting(is_reporting: bool | None) -> None:
    """Set whether this process reports to the user; None restores the default."""
    _REPORTING.override = is_reporting


def _env_int(name: str, default: int) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else default

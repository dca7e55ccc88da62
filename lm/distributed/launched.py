"""What the launcher of this process says of it, without torch: which of how many it is, and whether it is to speak.

The variables are those that `torchrun` sets; a process without them is alone.
"""

from __future__ import annotations

import os
from types import SimpleNamespace

_BEGAN = "LAUNCHER_BEGAN_AT"


def size() -> int:
    """How many processes train together."""
    return _number("WORLD_SIZE", 1) if "RANK" in os.environ else 1


def rank() -> int:
    """Which of them this one is, counted from 0 over all machines."""
    return _number("RANK", 0) if size() > 1 else 0


def local_rank() -> int:
    """Which of those on this machine this one is."""
    return _number("LOCAL_RANK", rank())


def by_another() -> bool:
    """Whether a launcher other than ours, which notes when the command began, has started this process."""
    return {"RANK", "WORLD_SIZE"} <= os.environ.keys() and _BEGAN not in os.environ


def quieten() -> None:
    """Keep what torch logs about processes from the user's eyes, unless a level is set; before torch is imported.

    What goes wrong is an error in Python too, and is said in a line.
    """
    if size() > 1:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def restarts() -> int:
    """How often the launcher has restarted these processes, after one of them had failed."""
    return _number("TORCHELASTIC_RESTART_COUNT", 0)


def may_restart() -> bool:
    """Whether the launcher would restart them."""
    return _number("TORCHELASTIC_MAX_RESTARTS", 0) > 0


def note_beginning(seconds: float) -> None:
    """Tell the processes that this one launches when the command began, on the clock that all of a machine share."""
    os.environ[_BEGAN] = repr(seconds)


def forget_beginning() -> None:
    """The opposite of `note_beginning`, once the processes have ended."""
    os.environ.pop(_BEGAN, None)


def beginning() -> float | None:
    """When the command began that launched this process; None where that is not known."""
    return float(os.environ[_BEGAN]) if _BEGAN in os.environ else None


_VOICE = SimpleNamespace(speaks=None)


def speaks() -> bool:
    """Whether what this process has to say is for the user: of several, one speaks for all."""
    return rank() == 0 if _VOICE.speaks is None else bool(_VOICE.speaks)


def let_speak(speaks: bool | None) -> None:
    """Settle whether this process speaks from now on; None: the first one does."""
    _VOICE.speaks = speaks


def _number(name: str, default: int) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else default

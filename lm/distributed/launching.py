"""Start several processes of this machine that train together, by torch's own launcher."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import stat
import sys
import tempfile
import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from lm.distributed import launched
from lm.hardware import MOST_THREADS
from lm.signals import ending

_KILLED = -getattr(signal, "SIGKILL", 9)
"""The exit code of a process that was killed."""


@dataclass(frozen=True)
class Ended:
    """How processes that train together have ended.

    Attributes:
        code: of the first process that failed, or 128 and the number of a signal that came; 0 where all is well.
        were_killed: whether all of them were killed, so that none has said why.
    """

    code: int
    were_killed: bool = False


def launch(command: Sequence[str], *, processes: int, began: float) -> Ended:
    """Run a command in so many processes, each with its share of the threads, and wait until all have ended.

    When one fails the others are ended. A signal is passed on to all of them, and waited for.

    Args:
        command: arguments of Python, such as -m and a module.
        processes: how many.
        began: when a budget began, on the clock of `time.monotonic`.
    """
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, MOST_THREADS // processes)))
    launched.note_beginning(began)
    logging.disable()  # torch's launcher logs what the processes themselves say better
    try:
        with tempfile.TemporaryDirectory(prefix="lm-processes-") as logs:
            config = LaunchConfig(
                min_nodes=1,
                max_nodes=1,
                nproc_per_node=processes,
                run_id=uuid.uuid4().hex,
                rdzv_backend="c10d",
                rdzv_endpoint="localhost:0",
                local_addr="127.0.0.1",
                max_restarts=0,
                logs_specs=DefaultLogsSpecs(log_dir=logs),
                signals_to_handle=_signals(),
            )
            places = (Path(logs, f"pipe-{number}", Path(name).name) for number, name in enumerate(command))
            elastic_launch(config, sys.executable)(*map(_passed_on, command, places))
    except SignalException as error:
        return Ended(128 + int(error.sigval))
    except ChildFailedError as error:
        _, first = error.get_first_failure()
        ended_by = [-int(number) for number in (signal.SIGINT, *ending())]
        code = 128 - first.exitcode if first.exitcode in ended_by else max(first.exitcode, 1)
        return Ended(code, all(failure.exitcode == _KILLED for failure in error.failures.values()))
    finally:
        logging.disable(logging.NOTSET)
        launched.forget_beginning()
        if threads is None:
            del os.environ["OMP_NUM_THREADS"]
    return Ended(0)


def _signals() -> str:
    """The names of the signals that torch's launcher passes on: not SIGHUP where that is ignored."""
    return ",".join(["SIGINT", "SIGQUIT", *(number.name for number in ending())])


def _passed_on(argument: str, place: Path) -> str:
    """An argument, or if it names a pipe, such as the shell's `<(command)`, the same argument with one in its place.

    Only this process has the shell's pipes open; the others open a named pipe, which a thread fills from the shell's.

    Args:
        argument: of the command line; perhaps `--flag=path`.
        place: the named pipe to make.
    """
    flag, equals, path = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    try:
        if not stat.S_ISFIFO(Path(path).stat().st_mode):
            return argument
    except (OSError, ValueError):  # no name of a file
        return argument
    place.parent.mkdir()
    os.mkfifo(place)
    threading.Thread(target=_fill, args=(place, path), daemon=True).start()
    return f"{flag}{equals}{place}"


def _fill(pipe: Path, path: str) -> None:
    """Copy a file or pipe into a named pipe, once that has a reader."""
    with contextlib.suppress(OSError), pipe.open("wb") as copy, Path(path).open("rb") as original:
        shutil.copyfileobj(original, copy)

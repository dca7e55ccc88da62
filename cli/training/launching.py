"""`lm train --processes N`: the same command in N processes of this machine, by torch's own launcher."""

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
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from cli.console.messages import note
from lm.distributed import launched
from lm.hardware import MOST_THREADS
from lm.signals import ending

_KILLED = -getattr(signal, "SIGKILL", 9)
"""The exit code of a process that was killed."""


def launch(arguments: Sequence[str], *, processes: int, began: float) -> int:
    """Run a command line in so many processes, each with its share of the threads, and wait until all have ended.

    When one fails the others are ended. A signal is passed on to all of them, and waited for.

    Args:
        arguments: the command line, less the name of `lm`.
        processes: how many.
        began: when the command began, on the clock of `time.monotonic`.

    Returns:
        The exit code: of the first process that failed, or 128 and the number of a signal that came.
    """
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
            places = (Path(logs, f"pipe-{number}", Path(name).name) for number, name in enumerate(arguments))
            passed_on = map(_passed_on, arguments, places)
            elastic_launch(config, sys.executable)("-m", "cli", *passed_on)
    except SignalException as error:
        return 128 + int(error.sigval)
    except ChildFailedError as error:
        return _exit_code(error)
    finally:
        logging.disable(logging.NOTSET)
    return 0


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


def _exit_code(error: ChildFailedError) -> int:
    """That of the first process that failed; where all of them were killed, none has said so."""
    _, first = error.get_first_failure()
    if all(failure.exitcode == _KILLED for failure in error.failures.values()):
        note(
            "lm: all processes of this training were killed; what was saved is there: go on with --resume, or anew if "
            "nothing was"
        )
    ended_by = [-int(number) for number in (signal.SIGINT, *ending())]
    return 128 - first.exitcode if first.exitcode in ended_by else max(first.exitcode, 1)

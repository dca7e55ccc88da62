"""Launch several training processes on this machine with torch's elastic launcher."""

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

from lm.distributed import launcher_env
from lm.hardware import MAX_THREADS
from lm.signals import STOP_SIGNALS

_KILLED = -signal.SIGKILL
"""Exit code of a killed process."""


@dataclass(frozen=True)
class LaunchResult:
    """Result of a launch.

    Attributes:
        code: exit code of the first process that failed, 128 + the signal number after a signal, 0 on success.
        were_killed: whether all failed processes were killed, so that none has reported an error.
    """

    code: int
    were_killed: bool = False


def launch(command: Sequence[str], *, processes: int, start_time: float) -> LaunchResult:
    """Run a command in several processes, dividing the threads among them, and wait until all have ended.

    When one fails, the others are terminated. Signals are forwarded to all of them.

    Args:
        command: arguments of the Python interpreter, such as `-m` and a module.
        start_time: start of a budget, in seconds of `time.monotonic`.
    """
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, MAX_THREADS // processes)))
    launcher_env.export_start_time(start_time)
    logging.disable()  # the processes report their errors themselves
    try:
        with tempfile.TemporaryDirectory(prefix="lm-processes-") as logs:
            is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
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
                signals_to_handle="SIGINT,SIGTERM" + ("" if is_nohup else ",SIGHUP"),
            )
            pipes = (Path(logs, f"pipe-{number}", Path(name).name) for number, name in enumerate(command))
            elastic_launch(config, sys.executable)(*map(_forward_pipe, command, pipes))
    except SignalException as error:
        return LaunchResult(128 + int(error.sigval))
    except ChildFailedError as error:
        _, first = error.get_first_failure()
        ended_by = [-int(number) for number in STOP_SIGNALS]
        code = 128 - first.exitcode if first.exitcode in ended_by else max(first.exitcode, 1)
        return LaunchResult(code, all(failure.exitcode == _KILLED for failure in error.failures.values()))
    finally:
        logging.disable(logging.NOTSET)
        launcher_env.clear_start_time()
        if threads is None:
            del os.environ["OMP_NUM_THREADS"]
    return LaunchResult(0)


def _forward_pipe(argument: str, pipe: Path) -> str:
    """Return an argument, with a named pipe in place of a pipe such as the shell's `<(command)`.

    Child processes don't inherit the shell's pipes; a thread copies their data into the named pipe.

    Args:
        argument: of the command line; may be `--flag=path`.
    """
    flag, equals, path = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    try:
        if not stat.S_ISFIFO(Path(path).stat().st_mode):
            return argument
    except (OSError, ValueError):  # not a path
        return argument
    pipe.parent.mkdir()
    os.mkfifo(pipe)
    threading.Thread(target=_copy_into_pipe, args=(pipe, path), daemon=True).start()
    return f"{flag}{equals}{pipe}"


def _copy_into_pipe(pipe: Path, path: str) -> None:
    """Copy a file or pipe into a named pipe, once that has a reader."""
    with contextlib.suppress(OSError), pipe.open("wb") as copy, Path(path).open("rb") as original:
        shutil.copyfileobj(original, copy)

"""Training in several processes of this machine, launched by torch; those started from Python run this module.

Of those, rank 0, or the first that fails, writes its events to a named pipe, which the parent reads.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from pathlib import Path

import msgspec

from lm.config.run_spec import RunSpec
from lm.errors import LMError, TrainingError
from lm.processes import handling_signals
from lm.training import launcher_env
from lm.training.run_log import Event


class StopSignals:
    """The first SIGINT or SIGTERM requests a stop after this step; the second ends the process.

    Attributes:
        number: of the first signal; 0 until there is one.
    """

    def __init__(self, *, on_first: Callable[[], None] = lambda: None) -> None:
        """Create the handler; `on_first` is called at the first signal."""
        self.number, self._on_first = 0, on_first

    def handling(self) -> AbstractContextManager[None]:
        """Handle signals within the context."""
        return handling_signals(self._note)

    def _note(self, number: int, _frame: object) -> None:
        if self.number:
            raise SystemExit(128 + number)
        self.number = number
        self._on_first()

    def received(self) -> bool:
        return self.number != 0


def launch(command: Sequence[str], *, processes: int, start_time: float) -> int:
    """Run a command in several processes, dividing the threads among them, and wait until all have ended.

    When one fails, the others are terminated. Signals are forwarded to all of them.

    Args:
        command: arguments of the Python interpreter, such as `-m` and a module.
        start_time: start of a budget, in seconds of `time.monotonic`.

    Returns:
        The exit code of the first process that failed, 128 + the signal number after a signal, 0 on success.
    """
    from torch.distributed import run  # noqa: PLC0415 (slow import)
    from torch.distributed.elastic.multiprocessing import SignalException  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415

    from lm.hardware import MAX_THREADS  # noqa: PLC0415

    before = os.environ.copy()
    os.environ[launcher_env.START_TIME] = repr(start_time)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, MAX_THREADS // processes)))
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    logging.disable()  # the processes report their errors themselves
    signals = "SIGINT,SIGTERM" + ("" if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else ",SIGHUP")
    try:
        with tempfile.TemporaryDirectory(prefix="lm-processes-") as logs:
            options = [f"--nproc-per-node={processes}", f"--log-dir={logs}", f"--signals-to-handle={signals}"]
            options += ["--standalone", "--local-addr=127.0.0.1", "--no-python"]
            run.run(run.parse_args([*options, sys.executable, *command]))
    except SignalException as error:
        return 128 + int(error.sigval)
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
        return code if code > 0 else 128 - code
    finally:
        logging.disable(logging.NOTSET)
        os.environ.clear()
        os.environ.update(before)
    return 0


def train_in_processes(spec: RunSpec, *, on_event: Callable[[Event], None] = lambda _: None) -> Path:
    """Train in `spec.processes` processes; returns the run folder.

    Args:
        spec: of a new run, or of one to resume.
        on_event: called with training events, on a thread.

    Raises:
        LMError: raised by one of the processes.
        TrainingError: the processes were killed.
    """
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lm-ranks-") as folder, ThreadPoolExecutor(1) as thread:
        pipe = Path(folder, "events")
        os.mkfifo(pipe)
        writer = os.open(pipe, os.O_RDWR)  # the reader doesn't wait for processes that fail before they open it
        trained = thread.submit(_read_events, pipe, on_event)
        try:
            command = ["-m", __name__, msgspec.json.encode(spec).decode(), str(pipe)]
            code = launch(command, processes=spec.processes, start_time=start)
        finally:
            os.write(writer, pickle.dumps(None))
            os.close(writer)
    if (run := trained.result()) is None or code:
        raise TrainingError(f"the {spec.processes} processes of this training ended with code {code}")
    return run


def _read_events(pipe: Path, on_event: Callable[[Event], None]) -> Path | None:
    """Pass events on; return the folder of the run, or raise the first error of a rank or of `on_event`."""
    folder: Path | None = None
    problem: Exception | None = None
    with pipe.open("rb") as stream:
        while (event := pickle.load(stream)) is not None:
            if isinstance(event, Path):
                folder = event
            elif isinstance(event, LMError):
                problem = problem or event
            elif problem is None:
                try:
                    on_event(event)
                except Exception as error:
                    problem = error
    if problem is not None:
        raise problem
    return folder


def main(spec: str, pipe: str) -> int:
    """Run one of the processes; returns the exit code."""
    from lm.training.trainer import Started, train_events  # noqa: PLC0415 (the launcher doesn't need it)

    with Path(pipe).open("wb") as stream:

        def send(event: object) -> None:
            stream.write(pickle.dumps(event))
            stream.flush()

        asked, signals = msgspec.json.decode(spec, type=RunSpec), StopSignals()
        try:
            with (
                signals.handling(),
                closing(train_events(asked, stop=signals.received, start_time=launcher_env.start_time())) as training,
            ):
                for event in training:
                    if launcher_env.rank():
                        continue
                    if isinstance(event, Started):
                        send(event.run.folder)
                    elif isinstance(event, Event):
                        send(event)
        except LMError as error:
            if launcher_env.is_reporting():
                send(error)
            return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

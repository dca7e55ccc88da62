"""Training in several processes of this machine, launched by torch; and the signals that stop a training."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from lm.processes import handling_signals
from lm.training import launcher_env


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
        The exit code of a process that failed; 128 + the number of a signal to this process, or of one that killed a
            process, after which others fail; 0 on success.
    """
    from torch.distributed import run  # noqa: PLC0415 (slow import)
    from torch.distributed.elastic.multiprocessing import SignalException  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415

    from lm.hardware import MAX_THREADS  # noqa: PLC0415

    before = os.environ.copy()
    os.environ[launcher_env.START_TIME] = repr(start_time)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, MAX_THREADS // processes)))
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "1800")  # seconds to save after a signal
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
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
        code = min(failure.exitcode for failure in error.failures.values())
        return code if code > 0 else 128 - code
    finally:
        logging.disable(logging.NOTSET)
        os.environ.clear()
        os.environ.update(before)
    return 0

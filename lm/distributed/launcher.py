"""Launch several training processes on this machine with torch's elastic launcher."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Sequence

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from lm.distributed.launcher_env import START_TIME
from lm.errors import TrainingError
from lm.hardware import MAX_THREADS
from lm.signals import STOP_SIGNALS


def launch(command: Sequence[str], *, processes: int, start_time: float) -> int:
    """Run a command in several processes, dividing the threads among them, and wait until all have ended.

    When one fails, the others are terminated. Signals are forwarded to all of them.

    Args:
        command: arguments of the Python interpreter, such as `-m` and a module.
        start_time: start of a budget, in seconds of `time.monotonic`.

    Returns:
        The exit code of the first process that failed, 128 + the signal number after a signal, 0 on success.

    Raises:
        TrainingError: all processes that failed were killed, so that none has reported an error.
    """
    before = os.environ.copy()
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, MAX_THREADS // processes)))
    os.environ[START_TIME] = repr(start_time)
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
            elastic_launch(config, sys.executable)(*command)
    except SignalException as error:
        return 128 + int(error.sigval)
    except ChildFailedError as error:
        if all(failure.exitcode == -signal.SIGKILL for failure in error.failures.values()):
            raise TrainingError("the processes of this training were killed; resume from what was saved") from None
        _, first = error.get_first_failure()
        return 128 - first.exitcode if -first.exitcode in STOP_SIGNALS else max(first.exitcode, 1)
    finally:
        logging.disable(logging.NOTSET)
        os.environ.clear()
        os.environ.update(before)
    return 0

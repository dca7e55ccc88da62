"""`lm train --processes N`: the same command in N processes of this machine, by torch's own launcher."""

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

from cli.console.messages import note
from cli.training import clock
from lm.distributed import launched
from lm.hardware import MOST_THREADS


def launch(arguments: Sequence[str], *, processes: int) -> int:
    """Run a command line in so many processes, each with its share of the threads, and wait until all have ended.

    When one fails the others are ended. A signal is passed on to all of them, and waited for.

    Args:
        arguments: the command line, less the name of `lm`.
        processes: how many.

    Returns:
        The exit code: of the first process that failed, or 128 and the number of a signal that came.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, MOST_THREADS // processes)))
    launched.note_beginning(clock.began())
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
            )
            elastic_launch(config, sys.executable)("-m", "cli", *arguments)
    except SignalException as error:
        return 128 + int(error.sigval)
    except ChildFailedError as error:
        return _exit_code(error)
    finally:
        logging.disable(logging.NOTSET)
    return 0


def _exit_code(error: ChildFailedError) -> int:
    """That of the first process that failed; where all of them were killed, none has said so."""
    _, first = error.get_first_failure()
    if all(failure.exitcode == -signal.SIGKILL for failure in error.failures.values()):
        note(
            "lm: all processes of this training were killed; what was saved is there: go on with --resume, or anew if "
            "nothing was"
        )
    return max(first.exitcode, 1)

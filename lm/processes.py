"""Worker processes: a parallel map with results in order.

A worker process imports only what its work needs, so that work on text never loads torch, and scripts need no
`__main__` guard. It ends with the pool, or with its parent.

Signals that end a process are delayed, or end it immediately in compiled code.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any, TypeVar

from lm.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")

_PENDING_PER_WORKER = 4


def available_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def end_after(wait: Callable[[], object]) -> None:
    """End this process when a function returns that waits in a thread, and holds no lock of the interpreter."""

    def end() -> None:
        with contextlib.suppress(EOFError, OSError):
            wait()
        os._exit(0)

    threading.Thread(target=end, daemon=True).start()


def map_in_processes(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    processes: int,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Result]:
    """Apply a function to items in several processes; yields results in order.

    Args:
        work: a picklable function of a module, or a partial of one.
        items: read a few ahead of the results.
        processes: number of processes; 1 for this process itself.
        environment: variables of the worker processes, set before they import what their work needs.

    Raises:
        InputError: a process was killed.
        Exception: raised by the function, for the first item that failed.
    """
    if processes == 1:
        yield from map(work, items)
        return
    spawn = get_context("spawn")
    theirs, ours = spawn.Pipe(duplex=False)  # workers end when this process, which alone has the other end, closes it
    arguments = (theirs, dict(environment or {}), pickle.dumps(work))
    pool = ProcessPoolExecutor(processes, mp_context=spawn, initializer=_start_worker, initargs=arguments)

    def submit(item: Item) -> Future[Result]:
        """Submit work; it may start a process, which would import a script that is `__main__`."""
        main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:
            return pool.submit(_call, item)
        finally:
            sys.modules["__main__"] = main

    pending: deque[Future[Result]] = deque()
    try:
        for item in items:
            pending.append(submit(item))
            if len(pending) > _PENDING_PER_WORKER * processes:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool:
        raise InputError("a worker process has ended, perhaps because memory ran out; try again with fewer") from None
    finally:
        ours.close()
        pool.shutdown(cancel_futures=True)
        theirs.close()


_work: list[Callable[[Any], Any]] = []


def _start_worker(pipe: Connection, environment: Mapping[str, str], work: bytes) -> None:
    """Set up a worker process; what it prints goes to stderr."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)
    sys.stdout = sys.stderr  # unbuffered
    os.environ.update(environment)
    end_after(pipe.recv)
    _work.append(pickle.loads(work))


def _call(item: Any) -> Any:
    return _work[0](item)


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def handling_signals(handler: Any) -> Iterator[None]:
    """Within the context, SIGINT and SIGTERM have other handlers, unless they are ignored or this is another thread."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in STOP_SIGNALS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):  # None: a handler that is not Python's
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


default_signal_handling = partial(handling_signals, signal.SIG_DFL)
"""Within the context, SIGINT and SIGTERM end the process immediately; ignored signals stay ignored.

For blocking compiled code, in which Python's handlers would not run. Only in the main thread.
"""


@contextmanager
def delayed_interrupt() -> Iterator[None]:
    """Within the context, SIGINT and SIGTERM are delayed until the end of it; only in the main thread.

    For code that is broken by an exception at any point: llvmlite frees an object again if it is interrupted just after
    the first time, and drops exceptions in finalisers.
    """
    received: list[int] = []
    with handling_signals(lambda number, _frame: received.append(number)):
        yield
    for number in received[:1]:
        signal.raise_signal(number)

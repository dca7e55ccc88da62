"""Worker processes and threads: parallel maps with results in order.

A worker process imports only what its work needs, so that work on text never loads torch, and scripts need no
`__main__` guard. It ends with the pool, or with its parent.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache, partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any, TypeVar

from lm.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")
T = TypeVar("T")

ParallelMap = Callable[[Iterable[Item]], Iterator[Result]]
"""A parallel `map`: one result per item, in order."""

_PENDING_PER_WORKER = 4


def available_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def python_command(code: str, *arguments: str) -> list[str]:
    """Return the command of a Python process with the import path of this one.

    Args:
        code: to run; the arguments are `sys.argv[2:]`.
    """
    with_path = f"import json, sys; sys.path[:] = json.loads(sys.argv[1]); {code}"
    return [sys.executable, "-c", with_path, json.dumps(sys.path), *arguments]


def end_with_parent() -> None:
    """End this process when its standard input closes, as it does when the parent ends."""
    end_after(lambda: os.read(sys.stdin.fileno(), 1))  # unbuffered: at the end it must hold no lock of the interpreter


def end_after(wait: Callable[[], object]) -> None:
    """End this process when a function returns that waits in a thread."""

    def end() -> None:
        with contextlib.suppress(EOFError, OSError):
            wait()
        os._exit(0)

    threading.Thread(target=end, daemon=True).start()


def map_on_threads(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    threads: int,
    prepare: Callable[[], object] | None = None,
) -> Iterator[Result]:
    """Apply a function that releases the GIL to items on threads, each of which calls `prepare`; results in order."""
    with ThreadPoolExecutor(threads, initializer=prepare) as pool:
        yield from pool.map(work, items)


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

    Raises:
        InputError: a process was killed.
        Exception: raised by the function, for the first item that failed.
    """
    if processes == 1:
        yield from map(work, items)
        return
    with open_process_map(partial(_identity, work), processes, environment=environment) as process_map:
        yield from process_map(items)


def _identity(work: T) -> T:
    return work


@contextlib.contextmanager
def open_process_map(
    prepare: Callable[[], Callable[[Item], Result]], processes: int, *, environment: Mapping[str, str] | None = None
) -> Iterator[ParallelMap[Item, Result]]:
    """Yield a parallel map over several processes.

    Args:
        prepare: called once in each process, returns the function, whose iterators become lists; picklable.
    """
    spawn = get_context("spawn")
    theirs, ours = spawn.Pipe(duplex=False)  # workers end when this process, which alone has the other end, closes it
    arguments = (theirs, dict(environment or {}), pickle.dumps(prepare))
    pool = ProcessPoolExecutor(processes, mp_context=spawn, initializer=_start_worker, initargs=arguments)

    def submit(item: Item) -> Future[Result]:
        """Submit work; it may start a process, which would import a script that is `__main__`."""
        main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:
            return pool.submit(_call_prepared, item)
        finally:
            sys.modules["__main__"] = main

    def process_map(items: Iterable[Item]) -> Iterator[Result]:
        pending: deque[Future[Result]] = deque()
        for item in items:
            pending.append(submit(item))
            if len(pending) > _PENDING_PER_WORKER * processes:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    try:
        yield process_map
    except BrokenProcessPool:
        raise InputError("a worker process has ended, perhaps because memory ran out; try again with fewer") from None
    finally:
        ours.close()
        pool.shutdown(cancel_futures=True)
        theirs.close()


_prepared: list[bytes] = []


def _start_worker(pipe: Connection, environment: Mapping[str, str], prepare: bytes) -> None:
    """Set up a worker process; what it prints goes to stderr."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)
    sys.stdout = sys.stderr  # unbuffered
    os.environ.update(environment)
    end_after(pipe.recv)
    _prepared.append(prepare)


@cache
def _prepare() -> Callable[[Any], Any]:
    return pickle.loads(_prepared[0])()


def _call_prepared(item: Any) -> Any:
    result = _prepare()(item)
    return [*result] if isinstance(result, Iterator) else result

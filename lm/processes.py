"""Worker processes and threads: parallel maps with results in order.

A worker is a fresh Python process that imports only what its work needs, so that work on text never loads torch, and
scripts need no `__main__` guard. It ends when its standard input closes, as it does when its parent ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from lm.errors import InputError, LMError

Item = TypeVar("Item")
Result = TypeVar("Result")
T = TypeVar("T")

Work = Callable[[Iterator[Item]], Iterator[Result]]
"""Maps an iterator of items to results; not necessarily one per item."""

_Outcome = tuple[Any, Exception | None]
"""A result, or the error in its place."""

ParallelMap = Callable[[Iterable[Item]], Iterator[Result]]
"""A parallel `map`: one result per item, in order."""

_WORKER_CODE = "from lm.processes import run_worker; run_worker(int(sys.argv[2]))"

_REQUEST, _RESULT, _DONE, _FAILED = range(4)


def available_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def python_command(code: str, *arguments: str) -> list[str]:
    """Return the command of a Python process with the import path of this one.

    Args:
        code: to run; the arguments are `sys.argv[2:]`.
    """
    with_path = f"import json, sys; sys.path[:] = json.loads(sys.argv[1]); {code}"
    return [sys.executable, "-c", with_path, json.dumps(sys.path), *arguments]


def end_with_parent() -> None:
    """End this process when its standard input closes, as it does when the parent ends."""
    threading.Thread(target=_exit_at_end_of_input, daemon=True).start()


def _exit_at_end_of_input() -> None:
    with contextlib.suppress(OSError):
        os.read(sys.stdin.fileno(), 1)  # unbuffered: at the end a thread must hold no lock of the interpreter
    os._exit(0)


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
        items: read when a process is free.
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


@contextlib.contextmanager
def open_process_map(
    prepare: Callable[[], Callable[[Item], Result]], processes: int, *, environment: Mapping[str, str] | None = None
) -> Iterator[ParallelMap[Item, Result]]:
    """Yield a parallel map over several processes.

    Args:
        prepare: called once in each process, returns the function; picklable.
    """
    with WorkerPool(partial(_numbered_work, prepare), processes, environment=environment) as workers:
        yield partial(_map_ordered, workers)


def _identity(work: T) -> T:
    return work


def map_on_threads(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    threads: int,
    max_pending: int | None = None,
    prepare: Callable[[], object] | None = None,
) -> Iterator[Result]:
    """Apply a function to items on threads of this process; yields results in order.

    Args:
        work: releases the GIL most of the time, like compiled code.
        max_pending: maximum number of results that wait for the caller [default: unlimited].
        prepare: called once on each thread.

    Raises:
        Exception: raised by the function, for the first item that failed; no further items are started.
    """
    pool = ThreadPoolExecutor(threads, initializer=prepare)
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if max_pending is not None and len(waiting) > max_pending:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


class WorkerPool(Generic[Item, Result]):
    """A pool of worker processes that pull items.

    The parent reads and writes all data, pickled. Workers ignore SIGINT; the parent ends them.
    """

    def __init__(
        self,
        prepare: Callable[[], Work[Item, Result]],
        processes: int,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Create the pool; the processes start when it is entered.

        Args:
            prepare: called once in each process, returns the function that `imap_unordered` calls; picklable.
        """
        self._prepare, self._number, self._environment = prepare, processes, environment or {}
        self._workers: dict[Connection, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        for _ in range(self._number):
            ours, theirs = Pipe()
            with theirs:  # so that EOF is noticed
                self._workers[ours] = subprocess.Popen(
                    python_command(_WORKER_CODE, str(theirs.fileno())),
                    stdin=subprocess.PIPE,
                    env={**os.environ, **self._environment},
                    pass_fds=[theirs.fileno()],
                    process_group=0,
                )
        for pipe in self._workers:
            self._send(pipe, self._prepare)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        for pipe, process in self._workers.items():
            process.kill()
            pipe.close()
            if process.stdin:
                process.stdin.close()
        for process in self._workers.values():
            process.wait()
        self._workers = {}

    def imap_unordered(self, items: Iterable[Item]) -> Iterator[Result]:
        """Yield the results of all items, as they are completed.

        Raises:
            InputError: a worker was killed.
            Exception: raised by a worker.
        """
        source, busy = iter(items), list(self._workers)
        for pipe in busy:
            self._send(pipe, True)
        while busy:
            ready = {id(pipe) for pipe in wait(busy)}
            for pipe in [pipe for pipe in busy if id(pipe) in ready]:
                kind, value = self._receive(pipe)
                if kind == _RESULT:
                    yield value
                elif kind == _REQUEST:
                    self._send(pipe, list(_take_one(source)))
                elif kind == _DONE:
                    busy.remove(pipe)
                else:
                    raise value

    def _send(self, pipe: Connection, message: object) -> None:
        try:
            pipe.send(message)
        except ConnectionError:
            raise self._worker_error(pipe) from None

    def _receive(self, pipe: Connection) -> tuple[int, Any]:
        try:
            kind, value = pipe.recv()
        except (EOFError, ConnectionError):
            raise self._worker_error(pipe) from None
        return kind, value

    def _worker_error(self, pipe: Connection) -> InputError:
        return InputError(
            f"a worker process has ended (exit code {self._workers[pipe].wait()}), perhaps because "
            "memory ran out; try again with fewer",
        )


def _take_one(items: Iterator[T]) -> Iterator[T]:
    """Yield the next item, if there is one."""
    with contextlib.suppress(StopIteration):
        yield next(items)


def _numbered_work(prepare: Callable[[], Callable[[Item], Result]]) -> Work[tuple[int, Item], tuple[int, _Outcome]]:
    """Create the work of `open_process_map`: numbered outcomes."""
    work = prepare()
    return lambda items: ((number, _run_item(work, item)) for number, item in items)


def _run_item(work: Callable[[Item], Result], item: Item) -> _Outcome:
    try:
        return work(item), None
    except Exception as error:  # raised again in order
        return None, _picklable_error(error)


def _map_ordered(workers: WorkerPool[tuple[int, Item], tuple[int, _Outcome]], items: Iterable[Item]) -> Iterator[Any]:
    """Yield numbered outcomes of workers in order; raises their errors."""
    for result, error in in_numbered_order(workers.imap_unordered(enumerate(items))):
        if error is not None:
            raise error
        yield result


def in_numbered_order(results: Iterable[tuple[int, T]]) -> Iterator[T]:
    """Yield numbered results in order from 0; early ones wait."""
    waiting: dict[int, T] = {}
    number = 0
    for index, result in results:
        waiting[index] = result
        while number in waiting:
            yield waiting.pop(number)
            number += 1


def run_worker(descriptor: int) -> None:
    """Run a worker of `WorkerPool`, given the descriptor of its end of the pipe; printed output goes to stderr."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # so that output isn't lost when killed
    end_with_parent()
    pipe = Connection(descriptor)
    with contextlib.suppress(EOFError, ConnectionError):  # the parent has ended
        try:
            work = pipe.recv()()
            while pipe.recv():
                for result in work(_requested_items(pipe)):
                    pipe.send((_RESULT, result))
                pipe.send((_DONE, None))
        except (EOFError, ConnectionError):
            raise
        except Exception as error:
            pipe.send((_FAILED, _picklable_error(error)))


def _requested_items(pipe: Connection) -> Iterator[Any]:
    """Yield items, requesting each when it is needed."""
    while True:
        pipe.send((_REQUEST, None))
        item = pipe.recv()
        if not item:
            return
        yield item[0]


def _picklable_error(error: Exception) -> Exception:
    """Return the error, or if it cannot be pickled an LMError with its message."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return LMError(f"a worker process failed: {type(error).__name__}: {error}")
    return error

"""Work divided among processes or threads: items go in, results come out, and each process is set up once.

A process is a fresh Python that imports what its work needs and nothing else of its caller, so that one who works on
text never loads torch, and a script that calls this needs no guard around its own lines. Its standard input ends when
its parent does, however that ends, and so does it.
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
from multiprocessing import Pipe, connection
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from lm.errors import InputError, LMError

Item = TypeVar("Item")
Result = TypeVar("Result")
T = TypeVar("T")

Work = Callable[[Iterator[Item]], Iterator[Result]]
"""Makes results of items; of how many items each, and in which order, is its own affair."""

Outcome = tuple[Any, Exception | None]
"""A result, or the error that there was in its place."""

Share = Callable[[Iterable[Item]], Iterator[Result]]
"""Makes a result of each item, in their order, somewhere else: what `map` does here."""

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from lm.processes import serve; serve(int(sys.argv[2]))"
)

_WANTED, _RESULT, _DONE, _FAILED = range(4)


def cores() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_order(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    processes: int,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Result]:
    """What a function makes of each item, in the order of the items, by several processes; one is this process itself.

    Args:
        work: a function of a module, or a partial of one; it, the items and the results can be pickled.
        items: the items; each is read when a process is free to work on it.
        processes: how many.
        environment: variables that are set in the processes, where there are several.

    Raises:
        InputError: a process was killed.
        Exception: what the function raised, of the first item for which it did; all processes are ended then.
    """
    if processes == 1:
        yield from map(work, items)
        return
    with mapping(partial(_same, work), processes, environment=environment) as share:
        yield from share(items)


@contextlib.contextmanager
def mapping(
    prepare: Callable[[], Callable[[Item], Result]], processes: int, *, environment: Mapping[str, str] | None = None
) -> Iterator[Share[Item, Result]]:
    """A `map` of several processes, each set up once: results are in the order of the items.

    Args:
        prepare: called once in each process, gives the function; a function of a module, perhaps with arguments
            (`functools.partial`).
        processes: how many.
        environment: variables that are set in them.
    """
    with Workers(partial(_numbered, prepare), processes, environment=environment) as workers:
        yield partial(_in_turn, workers)


def _same(work: T) -> T:
    return work


def on_threads(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    threads: int,
    ahead: int | None = None,
    prepare: Callable[[], object] | None = None,
) -> Iterator[Result]:
    """What a function makes of each item, in the order of the items, by threads of this process.

    Args:
        work: lets go of Python's lock for most of its time, as compiled code does.
        items: the items.
        threads: how many.
        ahead: most results that wait for the caller [default: all of them].
        prepare: called once in each thread.

    Raises:
        Exception: what the function raised, of the first item for which it did; no other item is begun then.
    """
    pool = ThreadPoolExecutor(threads, initializer=prepare)
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if ahead is not None and len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


class Workers(Generic[Item, Result]):
    """Processes that take items as they have time for them.

    The one that shares out reads and writes, and a worker asks it for its next item. Items and results are pickled on
    the way. The interrupt of a terminal is for the one that shares out alone, which ends the others.
    """

    def __init__(
        self,
        prepare: Callable[[], Work[Item, Result]],
        processes: int,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Say what there is to do; the processes begin with the `with`.

        Args:
            prepare: called once in each process, gives what is called there for each `share`; a function of a module,
                perhaps with arguments (`functools.partial`).
            processes: how many.
            environment: variables that are set in them.
        """
        self._prepare, self._number, self._environment = prepare, processes, environment or {}
        self._workers: dict[Connection, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        """Begin the processes."""
        for _ in range(self._number):
            ours, theirs = Pipe()
            with theirs:  # closed here, or their end would not be noticed
                self._workers[ours] = subprocess.Popen(
                    [sys.executable, "-c", _START, json.dumps(sys.path), str(theirs.fileno())],
                    stdin=subprocess.PIPE,
                    env={**os.environ, **self._environment},
                    **_inheriting(theirs),
                )
        for pipe in self._workers:
            self._send(pipe, self._prepare)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        """End the processes at once, whatever they are at."""
        for pipe, process in self._workers.items():
            process.kill()
            pipe.close()
            if process.stdin:
                process.stdin.close()
        for process in self._workers.values():
            process.wait()
        self._workers = {}

    def share(self, items: Iterable[Item]) -> Iterator[Result]:
        """The results of all items, as they come.

        Raises:
            InputError: a worker was killed.
            Exception: what a worker raised.
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
                elif kind == _WANTED:
                    self._send(pipe, list(_first(source)))
                elif kind == _DONE:
                    busy.remove(pipe)
                else:
                    raise value

    def _send(self, pipe: Connection, message: object) -> None:
        try:
            pipe.send(message)
        except ConnectionError:
            raise self._death(pipe) from None

    def _receive(self, pipe: Connection) -> tuple[int, Any]:
        try:
            kind, value = pipe.recv()
        except (EOFError, ConnectionError):
            raise self._death(pipe) from None
        return kind, value

    def _death(self, pipe: Connection) -> InputError:
        """What to raise for a worker that is there no more."""
        return InputError(
            f"a process that shares the work has ended (exit code {self._workers[pipe].wait()}), perhaps because "
            "memory ran out; try again with fewer",
            settings=["processes"],
        )


def _inheriting(pipe: Connection) -> dict[str, Any]:
    """How to start a process that has its end of a pipe, and not the interrupts of the terminal.

    The interrupt is its parent's alone, which ends it.
    """
    if sys.platform != "win32":
        return {"pass_fds": [pipe.fileno()], "process_group": 0}
    os.set_handle_inheritable(pipe.fileno(), True)
    startup = subprocess.STARTUPINFO(lpAttributeList={"handle_list": [pipe.fileno()]})
    return {"startupinfo": startup, "creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}


def _first(items: Iterator[T]) -> Iterator[T]:
    """The next item, or nothing."""
    with contextlib.suppress(StopIteration):
        yield next(items)


def _numbered(prepare: Callable[[], Callable[[Item], Result]]) -> Work[tuple[int, Item], tuple[int, Outcome]]:
    """What workers do where each item has one result: see `mapping`."""
    work = prepare()
    return lambda items: ((number, _outcome(work, item)) for number, item in items)


def _outcome(work: Callable[[Item], Result], item: Item) -> Outcome:
    try:
        return work(item), None
    except Exception as error:  # raised again in its turn
        return None, _sendable(error)


def _in_turn(workers: Workers[tuple[int, Item], tuple[int, Outcome]], items: Iterable[Item]) -> Iterator[Any]:
    """The results of workers whose work is `_numbered`, in the order of the items."""
    for result, error in ordered(workers.share(enumerate(items))):
        if error is not None:
            raise error
        yield result


def ordered(results: Iterable[tuple[int, T]]) -> Iterator[T]:
    """Numbered results in the order of their numbers, from 0 on; those that come early wait."""
    waiting: dict[int, T] = {}
    number = 0
    for place, result in results:
        waiting[place] = result
        while number in waiting:
            yield waiting.pop(number)
            number += 1


def serve(descriptor: int) -> None:
    """The life of a worker, as a process of `Workers`; what is printed goes to standard error.

    Args:
        descriptor: of its end of the pipe; on Windows its handle.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # or what is printed is lost when it is killed
    threading.Thread(target=_end_with_parent, daemon=True).start()
    pipe: Connection = getattr(connection, "PipeConnection", Connection)(descriptor)  # on Windows the former
    with contextlib.suppress(EOFError, ConnectionError):  # there is nobody to work for
        try:
            work = pipe.recv()()
            while pipe.recv():
                for result in work(_wanted(pipe)):
                    pipe.send((_RESULT, result))
                pipe.send((_DONE, None))
        except (EOFError, ConnectionError):
            raise
        except Exception as error:
            pipe.send((_FAILED, _sendable(error)))


def _end_with_parent() -> None:
    """End when standard input does, whatever there is to do."""
    sys.stdin.buffer.read()
    os._exit(0)


def _wanted(pipe: Connection) -> Iterator[Any]:
    """Items, each asked for when it is wanted."""
    while True:
        pipe.send((_WANTED, None))
        item = pipe.recv()
        if not item:
            return
        yield item[0]


def _sendable(error: Exception) -> Exception:
    """An error that arrives as it is, or at least in words."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return LMError(f"a process that shares the work failed: {type(error).__name__}: {error}")
    return error

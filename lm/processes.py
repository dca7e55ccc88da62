"""Work shared out over processes: items go in, results come out, and each process is set up once."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from lm.errors import LMError

Item = TypeVar("Item")
Result = TypeVar("Result")
T = TypeVar("T")

Work = Callable[[Iterator[Item]], Iterator[Result]]
"""Makes results of items; of how many items each, and in which order, is its own affair."""

Share = Callable[[Iterable[Item]], Iterator[Result]]
"""Makes a result of each item, in their order, somewhere else: what `map` does here."""

_PATIENCE = 5.0
"""Seconds that a process is given to end."""

_WANTED, _RESULT, _DONE, _FAILED = range(4)


class Workers(Generic[Item, Result]):
    """Processes that take items as they have time for them.

    The one that shares out reads and writes, and a worker asks it for its next item. Items and results are pickled on
    the way. Ctrl-C is for the one that shares out, which ends the others; they end, too, when it is there no more.
    """

    def __init__(self, prepare: Callable[[], Work[Item, Result]], processes: int) -> None:
        """Say what there is to do; the processes begin with the `with`.

        Args:
            prepare: called once in each process, gives what is called there for each `share`; a function of a module,
                perhaps with arguments (`functools.partial`).
            processes: how many.
        """
        self._prepare, self._number = prepare, processes
        self._workers: dict[Connection, Any] = {}

    def __enter__(self) -> Self:
        """Begin the processes, which do not inherit anything."""
        context = multiprocessing.get_context("spawn")
        with _without_interrupts():
            for _ in range(self._number):
                ours, theirs = context.Pipe()
                process = context.Process(target=_work, args=(theirs, self._prepare), daemon=True)
                process.start()
                theirs.close()  # or its end would not be noticed
                self._workers[ours] = process
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        """End the processes, whatever they are at."""
        for pipe, process in self._workers.items():
            process.terminate()
            pipe.close()
        for process in self._workers.values():
            process.join(_PATIENCE)
            if process.is_alive():
                process.kill()
        self._workers = {}

    def share(self, items: Iterable[Item]) -> Iterator[Result]:
        """The results of all items, as they come.

        Raises:
            LMError: a worker has raised it, or has died.
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

    def _death(self, pipe: Connection) -> LMError:
        """What to raise for a worker that is there no more."""
        process = self._workers[pipe]
        process.join(_PATIENCE)
        code = process.exitcode
        how = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return LMError(
            f"a worker process has ended before its work was done ({how}); there may be too little memory for so many "
            "(--processes)"
        )


def _first(items: Iterator[T]) -> Iterator[T]:
    """The next item, or nothing."""
    with contextlib.suppress(StopIteration):
        yield next(items)


def numbered(work: Callable[[Item], Result]) -> Work[tuple[int, Item], tuple[int, Result]]:
    """What workers do where each item has one result: see `mapped`."""
    return lambda items: ((number, work(item)) for number, item in items)


def mapped(workers: Workers[tuple[int, Item], tuple[int, Result]]) -> Share[Item, Result]:
    """The results of items by workers whose work is `numbered`, in the order of the items."""
    return lambda items: in_order(workers.share(enumerate(items)))


def in_order(results: Iterable[tuple[int, T]]) -> Iterator[T]:
    """Numbered results in the order of their numbers, from 0 on; those that come early wait."""
    waiting: dict[int, T] = {}
    number = 0
    for place, result in results:
        waiting[place] = result
        while number in waiting:
            yield waiting.pop(number)
            number += 1


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ctrl-C waits meanwhile; a process that is begun here never sees it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(pipe: Connection, prepare: Callable[[], Work[Any, Any]]) -> None:
    """The life of a worker."""
    with contextlib.suppress(EOFError, ConnectionError):  # there is nobody to work for
        try:
            work = prepare()
            while pipe.recv():
                for result in work(_wanted(pipe)):
                    pipe.send((_RESULT, result))
                pipe.send((_DONE, None))
        except (EOFError, ConnectionError):
            raise
        except Exception as error:
            pipe.send((_FAILED, _sendable(error)))


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
        return LMError(f"a worker process failed: {type(error).__name__}: {error}")
    return error

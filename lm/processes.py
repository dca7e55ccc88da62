"""Work shared out among processes: a function over items, with the results in the order of the items.

A process is a fresh Python that imports the module of the function and nothing else of its caller, so that one who
works on text never loads torch, and a script that calls this needs no guard around its own lines. Items and results
go through its standard input and output. Its input ends when its parent does, however that ends, and so does it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, TypeVar

from lm.errors import InputError

T = TypeVar("T")
R = TypeVar("R")

_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from lm.processes import serve; serve()"


def cores() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_order(
    work: Callable[[T], R], items: Iterable[T], *, processes: int, environment: Mapping[str, str] | None = None
) -> Iterator[R]:
    """What a function makes of each item, in the order of the items, by several processes; one is this process itself.

    Args:
        work: a function of a module, or a partial of one; it, the items and the results can be pickled.
        items: the items; each is worked on as soon as a process is free.
        processes: how many.
        environment: variables that are set in the processes, where there are several.

    Raises:
        InputError: a process was killed.
        Exception: what the function raised, of the first item for which it did; all processes are ended then.
    """
    if processes == 1:
        yield from map(work, items)
        return
    with contextlib.ExitStack() as opened:
        idle: queue.SimpleQueue[_Process] = queue.SimpleQueue()
        pool = opened.enter_context(ThreadPoolExecutor(processes))
        for _ in range(processes):
            started = _Process(environment or {})
            opened.callback(started.end)  # before the pool waits for its threads: their reading ends with the process
            idle.put(started)

        def ask(item: T) -> R:
            process = idle.get()
            try:
                return process.ask(work, item)
            finally:
                idle.put(process)

        opened.callback(pool.shutdown, wait=False, cancel_futures=True)
        yield from pool.map(ask, items)


class _Process:
    """A process that waits for work."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-c", _START, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
            process_group=0,  # the interrupt of a terminal is its parent's alone, which ends it
        )

    def ask(self, work: Callable[[T], R], item: T) -> R:
        """What the function makes of an item there; raises what it raises."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        try:
            pickle.dump((work, item), self._popen.stdin)
            self._popen.stdin.flush()
            result, error = pickle.load(self._popen.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            raise InputError(
                f"a process that shares the work has ended (exit code {self._popen.wait()}), perhaps because memory "
                "ran out; try again with fewer --processes"
            ) from None
        if error is not None:
            raise error
        return result

    def end(self) -> None:
        """End it at once."""
        self._popen.kill()
        for stream in (self._popen.stdin, self._popen.stdout):
            with contextlib.suppress(OSError):
                if stream:
                    stream.close()
        self._popen.wait()


def serve() -> None:
    """Answer the requests on standard input, as a process of `in_order`; what is printed goes to standard error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    waiting: queue.SimpleQueue[tuple[Callable[[Any], Any], Any]] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(requests, waiting), daemon=True).start()
    while True:
        work, item = waiting.get()
        pickle.dump(_answer(work, item), answers)
        answers.flush()


def _receive(requests: IO[bytes], waiting: queue.SimpleQueue[Any]) -> None:
    """Pass requests on; end the process when there can be no more, whatever it is doing."""
    try:
        while True:
            waiting.put(pickle.load(requests))
    except EOFError:
        os._exit(0)
    except BaseException:  # the parent notices
        traceback.print_exc()
        os._exit(1)


def _answer(work: Callable[[T], R], item: T) -> tuple[R | None, Exception | None]:
    try:
        return work(item), None
    except Exception as error:  # raised again by the parent
        return None, error

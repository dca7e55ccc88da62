"""Processes that take turns, so that each side of a comparison has memory and an allocator of its own."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from lm.hardware import peak_memory

KEPT_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
"""What makes glibc keep freed memory in a process that does not ask for it, as ours does."""


def serve(connection: Connection, works: Mapping[str, Callable[[], Any]]) -> None:
    """Answer each name with what its work gives, and "peak" with the most bytes held, until "end"."""
    while (asked := connection.recv()) != "end":
        connection.send(peak_memory() if asked == "peak" else works[asked]())


class Side:
    """A process that works when it is its turn."""

    def __init__(self, target: Callable[..., None], *given: object, environment: Mapping[str, str]) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        before = dict(os.environ)
        os.environ.update(environment)
        self._process = multiprocessing.get_context("spawn").Process(target=target, args=(theirs, *given))
        self._process.start()
        os.environ.clear()
        os.environ.update(before)

    def ask(self, what: str) -> Any:
        """What `serve` answers."""
        self._connection.send(what)
        return self._connection.recv()

    def end(self) -> None:
        """No more turns."""
        self._connection.send("end")
        self._process.join()

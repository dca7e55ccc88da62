"""Neighbours in groups of about the same size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def grouped(items: Iterable[T], size: Callable[[T], int], *, limit: int) -> Iterator[list[T]]:
    """Lists of items in order, each ended by the one with which their sizes reach a limit."""
    group: list[T] = []
    total = 0
    for item in items:
        group.append(item)
        total += size(item)
        if total >= limit:
            yield group
            group, total = [], 0
    if group:
        yield group

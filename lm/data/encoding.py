"""Items taken together until they hold enough text to be worth a call of the tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

BATCH_CHARACTERS = 1 << 20


def grouped(items: Iterable[T], characters: Callable[[T], int]) -> Iterator[list[T]]:
    """Lists of items in order, each ended by the one with which it has `BATCH_CHARACTERS` by `characters`."""
    group: list[T] = []
    total = 0
    for item in items:
        group.append(item)
        total += characters(item)
        if total >= BATCH_CHARACTERS:
            yield group
            group, total = [], 0
    if group:
        yield group

"""Encoding a corpus: texts are grouped until a call of the tokenizer is worth it, and groups are encoded ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol, TypeVar

from lm.errors import InputError
from lm.processes import on_threads
from lm.text.files import Progress
from lm.text.grouping import grouped

T = TypeVar("T")
R = TypeVar("R")

GROUP_CHARACTERS = 1 << 20
"""So much text keeps all cores of a tokenizer busy."""

_GROUPS_AHEAD = 2  # one group is encoded while the tokens of the other are copied and written


class Surveyed(Protocol):
    """A corpus after one pass over it."""

    @property
    def name(self) -> str:
        """The first few files, for messages."""
        ...

    @property
    def bytes(self) -> int:
        """UTF-8 bytes of all text."""
        ...


class Encodable(Protocol):
    """Part of a corpus: a piece of a document, an example or a pair."""

    @property
    def texts(self) -> Sequence[str]:
        """What is encoded: one text, or two that belong together."""
        ...

    @property
    def place(self) -> str:
        """The file, and the line if there is one, for messages."""
        ...


E = TypeVar("E", bound=Encodable)


def encoded(
    corpus: Surveyed,
    items: Iterable[E],
    encode: Callable[[Sequence[E]], R],
    *,
    progress: Progress | None = None,
) -> Iterator[tuple[list[E], R]]:
    """Groups of items in order, each with what the tokenizer makes of it; encoding runs ahead by a bounded amount.

    Args:
        corpus: the corpus.
        items: all of the corpus, in order.
        encode: called with a group, in a thread of its own.
        progress: called whenever the caller is done with a group.

    Raises:
        InputError: the tokenizer has no token for a character, or the corpus changed since it was surveyed.
    """
    done = 0
    for group, result in encoded_ahead(items, encode):
        yield group, result
        done += sum(map(text_bytes, group))
        if progress:
            progress(done, corpus.bytes)
    if done != corpus.bytes:
        raise InputError(f"{corpus.name}: the corpus changed while it was read; try again")


def encoded_ahead(items: Iterable[E], encode: Callable[[Sequence[E]], R]) -> Iterator[tuple[list[E], R]]:
    """As `encoded`, without looking at how much text there is."""
    groups = grouped(items, _characters, limit=GROUP_CHARACTERS)
    yield from on_threads(partial(_encoded, encode=encode), groups, threads=_GROUPS_AHEAD, ahead=_GROUPS_AHEAD)


def _characters(item: Encodable) -> int:
    return sum(map(len, item.texts))


def text_bytes(item: Encodable) -> int:
    """UTF-8 bytes of an item's texts."""
    return sum(len(text.encode()) for text in item.texts)


def _encoded(group: list[E], encode: Callable[[Sequence[E]], R]) -> tuple[list[E], R]:
    """The group, and the group encoded; the InputError for an item that cannot be encoded names its place."""
    try:
        return group, encode(group)
    except InputError:
        for item in group:
            try:
                encode([item])
            except InputError as error:
                raise error.at(item.place) from None
        raise

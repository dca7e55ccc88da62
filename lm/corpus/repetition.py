"""Duplicated text: repeated documents, and held-out text that occurs in the training split.

Windows of tokens are compared by 64-bit rolling hashes. The hash of the tokens from a to b is the sum of value[token i]
* BASE**(i - a) modulo 2**64, with a pseudo-random value per token (Karp and Rabin 1987). With prefix sums, the hash of
any window takes one subtraction and one multiplication.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lm.corpus.manifest import Repetition
from lm.corpus.shards import TokenReader
from lm.pseudorandom import hash64

WINDOW_BYTES = 200
"""About 50 tokens of English: Lee et al. 2022 (section 4.1) count repetitions of this length or more."""

Hashes = NDArray[np.uint64]
Indices = NDArray[np.int64]

_BASE = 0x9E3779B97F4A7C15  # odd, so that it can be divided by
_BLOCK = 1 << 16  # tokens at a time: few enough for the processor's cache
_SAMPLES = 1 << 14
_SLOT_BITS = 20
_MOST_HELD = 1 << 22  # hashes in memory; more are in a file


@dataclass(frozen=True)
class TokenizedDocuments:
    """The documents of a split.

    Attributes:
        tokens: of all documents, concatenated.
        edges: (documents + 1,) where each document begins, and where the last one ends, special tokens included.
    """

    tokens: TokenReader
    edges: Indices


def count_window_tokens(*, tokens: int, text_bytes: int) -> int:
    """Return the mean number of tokens in WINDOW_BYTES bytes of a text."""
    return max(1, round(WINDOW_BYTES * tokens / max(1, text_bytes)))


def measure_repetition(
    train: TokenizedDocuments,
    held_out: TokenizedDocuments,
    *,
    vocab_size: int,
    window: int,
    folder: Path | None = None,
) -> Repetition:
    """Measure duplicated text, in one pass over each split and in bounded memory.

    The held-out fraction is over all tokens or, if there are many, 16,384 of them at equal distances. A token counts if
    the window that begins with it, or the last window of its document, occurs in the training split; in a shorter
    document, if the training split has the same document.

    Args:
        folder: for a temporary file of hashes of very many documents [default: the system's].
    """
    rolling_hash = RollingHash(vocab_size, window)
    sought, held_out_documents = (
        _HeldOutWindows(held_out, window),
        _DocumentHashes(held_out.edges, rolling_hash, folder),
    )
    for block in rolling_hash.blocks(held_out.tokens):
        held_out_documents.add(block)
        sought.record(block)
    sought.sort()
    train_documents = _DocumentHashes(train.edges, rolling_hash, folder)
    for block in rolling_hash.blocks(train.tokens):
        train_documents.add(block)
        sought.mark_found(block)
    fraction = sought.fraction(held_out_documents.hashes, train_documents.hashes)
    return Repetition(_count_duplicates(train_documents.hashes, held_out_documents.hashes), fraction, window)


def count_copies(
    train: TokenizedDocuments, held_out: TokenizedDocuments, *, vocab_size: int, folder: Path | None = None
) -> Repetition:
    """Count rows that repeat another, such as examples, and the fraction of held-out ones among the training rows.

    Rows may begin alike, so windows within them are not compared; see `measure_repetition` for the arguments.
    """
    rolling_hash = RollingHash(vocab_size, window=1)
    hashes = []
    for split in (train, held_out):
        hashes.append(_DocumentHashes(split.edges, rolling_hash, folder))
        for block in rolling_hash.blocks(split.tokens):
            hashes[-1].add(block)
    train_hashes, held_out_hashes = (rows.hashes for rows in hashes)
    seen = np.isin(held_out_hashes, train_hashes)
    return Repetition(_count_duplicates(train_hashes, held_out_hashes), float(seen.mean()) if len(seen) else None, 0)


def _count_duplicates(*hashes: Hashes) -> int:
    """Count hashes that equal an earlier one, one range of values at a time."""
    total = sum(map(len, hashes))
    ranges = 1 + total // _MOST_HELD
    edges = [(number << 64) // ranges for number in range(ranges + 1)]
    return total - sum(_count_distinct(hashes, low, high - 1) for low, high in itertools.pairwise(edges))


def _count_distinct(hashes: Sequence[Hashes], low: int, high: int) -> int:
    kept, count = np.empty(0, dtype=np.uint64), 0
    held: list[Hashes] = []
    for block in itertools.chain.from_iterable(map(_read_blocks, hashes)):
        held.append(block[(block >= np.uint64(low)) & (block <= np.uint64(high))])
        count += len(held[-1])
        if count > len(kept) + _MOST_HELD:
            kept, held = np.unique(np.concatenate([kept, *held])), []
            count = len(kept)
    return len(np.unique(np.concatenate([kept, *held])))


def _read_blocks(hashes: Hashes) -> Iterator[Hashes]:
    for start in range(0, len(hashes), _MOST_HELD):
        yield hashes[start : start + _MOST_HELD]


@dataclass(frozen=True)
class _HashedBlock:
    """Part of a split.

    Attributes:
        start: its first token.
        stop: the first token of the next block.
        prefix_sums: prefix sums from `start`, beyond `stop` as far as the last window reaches.
        window_hashes: (up to stop - start,) hash of the window at each token.
    """

    start: int
    stop: int
    prefix_sums: Hashes
    window_hashes: Hashes


class RollingHash:
    """Computes the hashes of windows of one length."""

    def __init__(self, vocab_size: int, window: int) -> None:
        self.window = window
        self.values = hash64(np.arange(vocab_size, dtype=np.uint64))
        self.powers = _compute_powers(_BASE, _BLOCK + window)
        self.inverses = _compute_powers(pow(_BASE, -1, 1 << 64), _BLOCK + window)

    def blocks(self, tokens: TokenReader) -> Iterator[_HashedBlock]:
        """Yield a split in blocks of fixed alignment."""
        for start in range(0, len(tokens), _BLOCK):
            stop = min(start + _BLOCK, len(tokens))
            sums = self.prefix_sums(tokens.read(start, min(stop + self.window - 1, len(tokens))))
            yield _HashedBlock(start, stop, sums, self.window_hashes(sums))

    def prefix_sums(self, ids: NDArray[np.integer]) -> Hashes:
        """Return the (tokens + 1,) prefix sums of at most a block and a window of tokens."""
        sums = np.zeros(len(ids) + 1, dtype=np.uint64)
        np.cumsum(self.values[ids] * self.powers[: len(ids)], out=sums[1:])
        return sums

    def window_hashes(self, sums: Hashes) -> Hashes:
        differences = sums[self.window :] - sums[: -self.window]
        return differences * self.inverses[: len(differences)]

    def range_hashes(self, sums: Hashes, begins: Indices, ends: Indices) -> Hashes:
        """Return the hashes of given ranges, given prefix sums."""
        return (sums[ends] - sums[begins]) * self.inverses[begins]


def _compute_powers(base: int, count: int) -> Hashes:
    powers = np.full(count, base, dtype=np.uint64)
    powers[:1] = 1
    return np.cumprod(powers, dtype=np.uint64)


class _DocumentHashes:
    """The hashes of the documents of a split, accumulated block by block."""

    def __init__(self, edges: Indices, rolling_hash: RollingHash, folder: Path | None) -> None:
        self.edges, self.rolling_hash = edges, rolling_hash
        self.hashes = _zeros(len(edges) - 1, folder)

    def add(self, block: _HashedBlock) -> None:
        """Add the part of each document in a block."""
        first = max(0, int(np.searchsorted(self.edges, block.start, side="right")) - 1)
        last = int(np.searchsorted(self.edges[:-1], block.stop))
        edges = self.edges[first : last + 1] - block.start
        begins, ends = np.maximum(edges[:-1], 0), np.minimum(edges[1:], block.stop - block.start)
        parts = self.rolling_hash.range_hashes(block.prefix_sums, begins, ends)
        if len(edges) and edges[0] < 0:  # the first one began in a block before
            parts[:1] *= np.uint64(pow(_BASE, -int(edges[0]), 1 << 64))
        self.hashes[first:last] += parts


def _zeros(count: int, folder: Path | None) -> Hashes:
    """Allocate zeros; a large array is backed by a temporary file."""
    if count <= _MOST_HELD:
        return np.zeros(count, dtype=np.uint64)
    with tempfile.TemporaryFile(dir=folder) as file:
        return np.memmap(file, dtype=np.uint64, mode="w+", shape=(count,))


class _HeldOutWindows:
    """The held-out windows to find in the training split."""

    def __init__(self, held_out: TokenizedDocuments, window: int) -> None:
        begin, end = int(held_out.edges[0]), int(held_out.edges[-1])
        self.count = min(end - begin, _SAMPLES)
        starts = begin + np.arange(self.count) * (end - begin) // max(1, self.count)
        documents = np.searchsorted(held_out.edges, starts, side="right") - 1
        ends = held_out.edges[documents + 1]
        short = ends - held_out.edges[documents] < window
        self.short = documents[short]
        self.starts = np.minimum(starts, ends - window)[~short]
        self.hashes = np.empty(len(self.starts), dtype=np.uint64)

    def record(self, block: _HashedBlock) -> None:
        inside = slice(*np.searchsorted(self.starts, [block.start, block.stop]))
        self.hashes[inside] = block.window_hashes[self.starts[inside] - block.start]

    def sort(self) -> None:
        self.lookup = HashLookup(self.hashes)

    def mark_found(self, block: _HashedBlock) -> None:
        """Mark the windows that occur in a training block."""
        self.lookup.mark(block.window_hashes)

    def fraction(self, held_out: Hashes, train: Hashes) -> float | None:
        """Return the fraction found, given the hashes of all documents."""
        short = held_out[self.short]
        whole = np.zeros(len(short), dtype=bool)
        for block in _read_blocks(train) if len(short) else ():
            whole |= np.isin(short, block)
        n_found = int(self.lookup.is_found.sum()) + int(whole.sum())
        return n_found / self.count if self.count else None


class HashLookup:
    """Looks up a set of hashes in others."""

    def __init__(self, hashes: Hashes) -> None:
        """Prepare to look up hashes, which may repeat."""
        self._sorted, self._places = np.unique(hashes, return_inverse=True)
        self._is_found = np.zeros(len(self._sorted), dtype=bool)
        self._slots = np.zeros(1 << _SLOT_BITS, dtype=bool)  # a few bits already tell most of the text apart
        self._slots[_slot(self._sorted)] = True

    def mark(self, others: Hashes) -> None:
        """Record which hashes occur among others."""
        if len(self._sorted):
            likely = others[self._slots[_slot(others)]]
            nearest = np.minimum(np.searchsorted(self._sorted, likely), len(self._sorted) - 1)
            self._is_found[nearest[self._sorted[nearest] == likely]] = True

    @property
    def is_found(self) -> NDArray[np.bool_]:
        return self._is_found[self._places]


def _slot(hashes: Hashes) -> Hashes:
    return hashes >> np.uint64(64 - _SLOT_BITS)

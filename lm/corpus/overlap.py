"""Overlap: how much of a text is also in a training split, by hashes of its token n-grams; and copies of documents.

N-grams of about 200 bytes, and whole shorter documents, are sampled from the text and looked up in the training split.
The hash of the tokens from a to b is the sum of value[token i] * BASE**(i - a) modulo 2**64, with a pseudo-random value
per token (Karp and Rabin 1987); with prefix sums, that of any range takes a subtraction and a multiplication. Pairs are
compared as a whole, by the hashes in the store.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm.corpus.store import SPLITS, Manifest, Repetition, Split, open_split
from lm.corpus.survey import pair_hash
from lm.pseudorandom import hash64
from lm.text.records import Record
from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer

NGRAM_BYTES = 200
"""About 50 tokens of English: Lee et al. 2022 (section 4.1) count repetitions of this length or more."""

Hashes = NDArray[np.uint64]
Integers = NDArray[np.int64]

_BASE = 0x9E3779B97F4A7C15  # odd, so that it can be divided by
_SAMPLES = 1 << 14  # of a text
_MOST_TOKENS = 1 << 25  # of all texts; the rest is not sampled
_MOST_READ = 1 << 27  # tokens of the training split, which take a second or two; of a larger one, parts are read
_BLOCK = 1 << 16
_MOST_PAIRS = 1 << 15  # of a file
_MIN_FRACTION, _ALWAYS_NOTABLE, _STANDARD_ERRORS = 0.01, 0.5, 3


class NgramHashes:
    """Rolling hashes of n-grams of tokens."""

    def __init__(self, vocab_size: int, length: int) -> None:
        self.length = length
        self._values = hash64(np.arange(vocab_size, dtype=np.uint64))
        self._powers, self._inverses = (
            np.cumprod(np.array([1, *[base] * (_BLOCK + length)], dtype=np.uint64), dtype=np.uint64)
            for base in (_BASE, pow(_BASE, -1, 1 << 64))
        )

    def prefix_sums(self, tokens: NDArray[Any]) -> Hashes:
        """Return (tokens + 1,) prefix sums of at most a block and an n-gram."""
        return np.append(np.uint64(0), np.cumsum(self._values[tokens] * self._powers[: len(tokens)], dtype=np.uint64))

    def ranges(self, sums: Hashes, begins: Integers, ends: Integers) -> Hashes:
        """Return the hashes of ranges, given prefix sums."""
        return (sums[ends] - sums[begins]) * self._inverses[begins]


@dataclass
class _Text:
    """Tokens of a text, and where each of its documents begins."""

    parts: list[NDArray[Any]] = field(default_factory=list)
    edges: list[int] = field(default_factory=list)
    length: int = 0

    def sample(self, ngrams: NgramHashes) -> Hashes:
        """Return the hashes of n-grams, or whole shorter documents, at equal distances."""
        if not self.length:
            return np.empty(0, dtype=np.uint64)
        tokens, edges = np.concatenate(self.parts).astype(np.int64), np.array([*self.edges, self.length])
        offsets = np.linspace(0, self.length, min(self.length, _SAMPLES), endpoint=False, dtype=np.int64)
        documents = np.searchsorted(edges, offsets, side="right") - 1
        begins, ends = edges[documents], edges[documents + 1]
        is_short = ends - begins < ngrams.length
        begins = np.where(is_short, begins, np.minimum(offsets, ends - ngrams.length))
        ends = np.where(is_short, ends, begins + ngrams.length)
        return np.array(
            [ngrams.prefix_sums(tokens[begin:end])[-1] for begin, end in zip(begins, ends, strict=True)],
            dtype=np.uint64,
        )


@dataclass(frozen=True)
class Overlap:
    """The fraction of a text that is in a training split, and the fraction that text of the same source may reach."""

    fraction: float
    usual: float

    @property
    def is_notable(self) -> bool:
        """Whether the text is more than text of the same source."""
        return self.fraction >= max(_MIN_FRACTION, min(_ALWAYS_NOTABLE, self.usual))


def _compare(fraction: float, manifest: Manifest, *, samples: float) -> Overlap:
    """Return an overlap: usual is twice what the held-out split repeats, and three standard errors."""
    repeated = (manifest.repetition and manifest.repetition.held_out) or 0.0
    error = math.sqrt(repeated * (1 - repeated) / samples)
    return Overlap(fraction, 2 * repeated + _STANDARD_ERRORS * error)


class TrainingOverlap:
    """Measures the fraction of texts that is in the training split of a store of text, examples or conversations."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Prepare to measure texts in the tokens of a tokenizer, which made the store too."""
        self._size, self._start, self._end = tokenizer.vocab_size, tokenizer.start_of_text, tokenizer.end_of_text
        self._texts: dict[int, _Text] = {}
        self._room = _MOST_TOKENS

    @property
    def is_full(self) -> bool:
        """Return whether further text would be ignored."""
        return self._room <= 0

    def add(self, file: int, tokens: NDArray[Any], *, starts_document: bool, is_framed: bool = True) -> None:
        """Add tokens of a file, in reading order: of the text alone, or as the store has them if not `is_framed`."""
        if self.is_full:
            return
        text = self._texts.setdefault(file, _Text())
        if starts_document:
            text.edges.append(text.length)
        before = [self._start] if starts_document and is_framed and self._start is not None else []
        after = int(not is_framed and len(tokens) > 0 and tokens[-1] == self._end)
        text.parts.append(np.append(before, tokens[: len(tokens) - after]).astype(np.uint32))
        text.length += len(text.parts[-1])
        self._room -= len(tokens)

    def add_split(self, file: int, split: Split) -> None:
        """Add a split of a store, such as what is held out."""
        tokens = split.read(0, min(len(split), max(0, self._room)))
        edges = [*self._starts(split, 0, tokens).tolist(), len(tokens)]
        for begin, end in itertools.pairwise(edges):
            self.add(file, tokens[begin:end], starts_document=True, is_framed=False)

    def measure(self, train: Split) -> dict[int, Overlap]:
        """Return the overlap of each text; estimated from samples if the training split is very large."""
        ngrams = NgramHashes(self._size, max(1, round(NGRAM_BYTES * train.record.tokens / max(1, train.record.bytes))))
        sampled = {file: text.sample(ngrams) for file, text in self._texts.items()}
        sought = np.unique(np.concatenate([np.empty(0, np.uint64), *sampled.values()]))
        is_found = np.zeros(len(sought) + 1, dtype=bool)
        step = _BLOCK * max(1, -(-len(train) // _MOST_READ))
        for first in range(0, len(train), step) if len(sought) else ():
            tokens = train.read(first, min(first + _BLOCK + ngrams.length - 1, len(train)))
            sums, starts = ngrams.prefix_sums(tokens), self._starts(train, first, tokens)
            ends = starts[1:] - (tokens[starts[1:] - 1] == self._end)
            begins = np.arange(max(0, len(tokens) - ngrams.length + 1))
            for hashes in (
                ngrams.ranges(sums, begins, begins + ngrams.length), ngrams.ranges(sums, starts[:-1], ends)
            ):  # fmt: skip
                places = np.searchsorted(sought, hashes)
                is_found[places[np.append(sought, 0)[places] == hashes]] = True
        read = min(1.0, _BLOCK * -(-len(train) // step) / max(1, len(train)))
        measured = {}
        for file, hashes in sampled.items():
            found = is_found[np.searchsorted(sought, hashes)]
            fraction = min(1.0, float(found.mean()) / read) if len(found) else 0.0
            samples = max(1.0, self._texts[file].length / ngrams.length)
            measured[file] = _compare(fraction, train.manifest, samples=samples)
        return measured

    def _starts(self, split: Split, first: int, tokens: NDArray[Any]) -> Integers:
        """Return where documents or rows begin among tokens from `first` on; of rows, also where the last one ends."""
        if split.manifest.kind == "text":
            starts = np.flatnonzero(tokens == self._start)
            return starts if first or len(starts) else np.zeros(1, dtype=np.int64)
        return split.edges[slice(*np.searchsorted(split.edges, [first, first + len(tokens) + 1]))] - first


def measure_pair_overlap(folder: Path, files: Sequence[Iterable[Record]]) -> dict[int, Overlap]:
    """Return the fraction of the sentence pairs of each file that are in the training split of a store, by file."""
    train = open_split(folder, "train")
    stored, measured = train.column("hash"), {}
    for file, pairs in enumerate(files):
        hashes = [pair_hash(pair) for pair in islice(pairs, _MOST_PAIRS) if not pair.is_blank]
        if hashes:
            fraction = float(np.isin(np.array(hashes, dtype=np.uint64), stored).mean())
            measured[file] = _compare(fraction, train.manifest, samples=len(hashes))
    return measured


def measure_repetition(folder: Path, manifest: Manifest) -> Repetition:
    """Measure the copies of documents in a store, and the fraction of the held-out text in its training split."""
    train, held_out = (Split(folder, manifest, name) for name in SPLITS)
    hashes = [split.column("hash") if split.documents else np.empty(0, np.uint64) for split in (train, held_out)]
    copies = train.documents + held_out.documents - len(np.unique(np.concatenate(hashes)))
    if manifest.kind != "text":
        seen = float(np.isin(hashes[1], hashes[0]).mean()) if held_out.documents else None
        return Repetition(copies, seen, 0)
    if not len(held_out):
        return Repetition(copies, None, 0)
    overlap = TrainingOverlap(Tokenizer.load(folder / FILE_NAME))
    overlap.add_split(0, held_out)
    window = max(1, round(NGRAM_BYTES * train.record.tokens / max(1, train.record.bytes)))
    return Repetition(copies, overlap.measure(train)[0].fraction, window)

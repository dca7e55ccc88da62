"""Overlap: how much of a text is also in a training split, by hashes of its token n-grams; and copies of documents.

N-grams of about 200 bytes, and whole shorter documents, are sampled from the text and looked up in the training split.
The hash of the tokens from a to b is the sum of value[token i] * BASE**(i - a) modulo 2**64, with a pseudo-random value
per token (Karp and Rabin 1987); with prefix sums, that of any range takes a subtraction and a multiplication. Pairs are
compared as a whole, by the hashes in the store.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
_FILTER_BITS = np.uint64((1 << 18) - 1)  # of hashes, by which most of the training split is passed over
MOST_PAIRS = 1 << 15  # of a file
_MIN_FRACTION, _ALWAYS_NOTABLE, _STANDARD_ERRORS = 0.01, 0.5, 3


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


def _ngram_length(train: Split) -> int:
    return max(1, round(NGRAM_BYTES * train.record.tokens / max(1, train.record.bytes)))


class TrainingOverlap:
    """Measures the fraction of texts that is in the training split of a store of text, examples or conversations."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Prepare to measure texts in the tokens of a tokenizer, which made the store too."""
        self._size, self._start, self._end = tokenizer.vocab_size, tokenizer.start_of_text, tokenizer.end_of_text
        self._texts = defaultdict[int, list[NDArray[np.uint32]]](list)  # documents, or parts of long ones
        self._room = _MOST_TOKENS

    @property
    def is_full(self) -> bool:
        """Return whether further text would be ignored."""
        return self._room <= 0

    def add(self, file: int, tokens: NDArray[Any], *, starts_document: bool, is_framed: bool = True) -> None:
        """Add tokens of a file, in reading order: of the text alone, or as the store has them if not `is_framed`."""
        if self.is_full:
            return
        before = [self._start] if starts_document and is_framed and self._start is not None else []
        after = int(not is_framed and len(tokens) > 0 and tokens[-1] == self._end)
        self._texts[file].append(np.append(before, tokens[: len(tokens) - after]).astype(np.uint32))
        self._room -= len(tokens)

    def add_split(self, file: int, split: Split) -> None:
        """Add a split of a store, such as what is held out."""
        tokens = split.read(0, min(len(split), max(0, self._room)))
        edges = [*self._starts(split, 0, tokens).tolist(), len(tokens)]
        for begin, end in itertools.pairwise(edges):
            self.add(file, tokens[begin:end], starts_document=True, is_framed=False)

    def measure(self, train: Split) -> dict[int, Overlap]:
        """Return the overlap of each text; estimated from samples if the training split is very large."""
        length, values = _ngram_length(train), hash64(np.arange(self._size, dtype=np.uint64))
        powers, inverses = (
            np.cumprod(np.array([1, *[base] * (_BLOCK + length)], dtype=np.uint64), dtype=np.uint64)
            for base in (_BASE, pow(_BASE, -1, 1 << 64))
        )
        sampled = {file: self._sample(text, values, powers[:length]) for file, text in self._texts.items()}
        sought = np.unique(np.concatenate([np.empty(0, np.uint64), *sampled.values()]))
        is_found, passes = np.zeros(len(sought), dtype=bool), np.zeros(int(_FILTER_BITS) + 1, dtype=bool)
        passes[sought & _FILTER_BITS] = True
        step = _BLOCK * max(1, -(-len(train) // _MOST_READ))
        for first in range(0, len(train), step) if len(sought) else ():
            tokens = train.read(first, min(first + _BLOCK + length - 1, len(train)))
            sums = np.append(np.uint64(0), np.cumsum(values[tokens] * powers[: len(tokens)], dtype=np.uint64))
            starts, n_ngrams = self._starts(train, first, tokens), max(0, len(tokens) - length + 1)
            ends = starts[1:] - (tokens[starts[1:] - 1] == self._end)
            ngrams = (sums[length:] - sums[:n_ngrams]) * inverses[:n_ngrams]
            documents = (sums[ends] - sums[starts[:-1]]) * inverses[starts[:-1]]
            hashes = np.concatenate([ngrams, documents])
            hashes = hashes[passes[hashes & _FILTER_BITS]]
            places = np.minimum(np.searchsorted(sought, hashes), len(sought) - 1)
            is_found[places[sought[places] == hashes]] = True
        read = min(1.0, _BLOCK * -(-len(train) // step) / max(1, len(train)))
        measured = {}
        for file, hashes in sampled.items():
            found = is_found[np.searchsorted(sought, hashes)]
            fraction = min(1.0, float(found.mean()) / read) if len(found) else 0.0
            samples = max(1.0, sum(map(len, self._texts[file])) / length)
            measured[file] = _compare(fraction, train.manifest, samples=samples)
        return measured

    @staticmethod
    def _sample(documents: list[NDArray[np.uint32]], values: Hashes, powers: Hashes) -> Hashes:
        """Return the hashes of n-grams, or whole shorter documents, at equal distances."""
        tokens, edges = np.concatenate(documents), np.cumsum([0, *map(len, documents)])
        offsets = np.linspace(0, len(tokens), min(len(tokens), _SAMPLES), endpoint=False, dtype=np.int64)
        numbers = np.searchsorted(edges, offsets, side="right") - 1
        first, end = edges[numbers], edges[numbers + 1]
        places = np.maximum(np.minimum(offsets, end - len(powers)), first)[:, None] + np.arange(len(powers))
        inside = values[tokens[np.minimum(places, len(tokens) - 1)]] * powers
        return np.where(places < end[:, None], inside, np.uint64(0)).sum(axis=1, dtype=np.uint64)

    def _starts(self, split: Split, first: int, tokens: NDArray[Any]) -> Integers:
        """Return where documents or rows begin among tokens from `first` on; of rows, also where the last one ends."""
        if split.manifest.kind == "text":
            starts = np.flatnonzero(tokens == self._start)
            return starts if first or len(starts) else np.zeros(1, dtype=np.int64)
        return split.edges[slice(*np.searchsorted(split.edges, [first, first + len(tokens) + 1]))] - first


def measure_pair_overlap(folder: Path, files: Mapping[int, Sequence[Record]]) -> dict[int, Overlap]:
    """Return the fraction of the sentence pairs of each file that are in the training split of a store, by file."""
    train = open_split(folder, "train")
    stored, measured = train.column("hash"), {}
    for file, pairs in files.items():
        hashes = [pair_hash(pair) for pair in pairs if not pair.is_blank]
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
    return Repetition(copies, overlap.measure(train)[0].fraction, _ngram_length(train))

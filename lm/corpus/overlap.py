"""Estimate how much of a text, or of sentence pairs, is in the training data of a run, by looking up its tokens.

Sampled windows of about 200 bytes, and whole shorter documents, are looked up by 64-bit hashes. Text of the same source
has some of them in common with the training text, such as licences and phrases. The held-out split tells how much.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm.corpus.manifest import SplitName
from lm.corpus.ragged import RaggedArray
from lm.corpus.repetition import Hashes, HashLookup, RollingHash, count_window_tokens
from lm.corpus.shards import TokenReader, open_split, read_manifest
from lm.corpus.tokenized_examples import open_examples
from lm.corpus.tokenized_pairs import SideName, StoredPairs, open_pairs
from lm.pseudorandom import hash64
from lm.text.parallel_text import SentencePair
from lm.tokenizer.tokenizer import Tokenizer

_SAMPLES = 4096  # of a file
_MOST_TOKENS = 1 << 25  # of all files; the rest is not sampled
_MOST_READ = 1 << 27  # tokens of the training split, which take a second or two; of a larger one, parts are read
_PART = 1 << 12  # tokens of such a part
_MOST_PAIRS, _MOST_PAIRS_READ, _PAIRS_AT_ONCE = 1 << 15, 1 << 21, 1 << 14  # of a file; of the training split
_WHOLE = 1 << 16
_MIN_FRACTION, _ALWAYS_NOTABLE = 0.01, 0.5
_STANDARD_ERRORS = 3


@dataclass(frozen=True)
class Overlap:
    """How much of a file is in a training split.

    Attributes:
        usual: the fraction that text of the same source may reach, from what the held-out split has in common with
            the training split: twice that, and three standard errors for a short file.
    """

    fraction: float
    usual: float

    @classmethod
    def compared_with(cls, repeated: float, fraction: float, *, samples: float) -> Overlap:
        """Return the overlap of independent samples, given what is repeated of the held-out split."""
        error = math.sqrt(repeated * (1 - repeated) / samples)
        return cls(fraction, 2 * repeated + _STANDARD_ERRORS * error)

    @property
    def is_notable(self) -> bool:
        """Whether the file is more than text of the same source."""
        return self.fraction >= max(_MIN_FRACTION, min(_ALWAYS_NOTABLE, self.usual))


@dataclass
class _TokenSample:
    """The beginning of a file as one token sequence, with special tokens as in shards.

    Attributes:
        edges: where each document begins.
        is_framed: whether start and end tokens are around documents; not around conversations.
    """

    parts: list[NDArray[Any]] = field(default_factory=list)
    edges: list[int] = field(default_factory=list)
    length: int = 0
    is_framed: bool = True

    def add(self, tokens: NDArray[Any]) -> None:
        self.parts.append(tokens)
        self.length += len(tokens)


class TrainingOverlap:
    """Measures the fraction of each file that is in the training split of prepared tokens, of text or examples."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Prepare to measure files in the tokens of a tokenizer, which made the training splits too."""
        self._size = tokenizer.vocab_size
        start, end = tokenizer.start_of_text, tokenizer.end_of_text
        self._start, self._end = _as_token_array(start), _as_token_array(None if end == start else end)
        self._texts: dict[int, _TokenSample] = {}
        self._room = _MOST_TOKENS

    @property
    def is_full(self) -> bool:
        """Return whether further text would be ignored."""
        return self._room <= 0

    def add(self, file: int, tokens: NDArray[Any], *, starts_document: bool, is_framed: bool = True) -> None:
        """Add tokens of a file, in reading order; conversations are not framed by start and end tokens."""
        if self.is_full:
            return
        text = self._texts.setdefault(file, _TokenSample(is_framed=is_framed))
        if starts_document:
            if text.edges and is_framed:
                text.add(self._end)
            text.edges.append(text.length)
            if is_framed:
                text.add(self._start)
        text.add(tokens.astype(np.uint32))
        self._room -= len(tokens)

    def add_held_out(self, file: int, folder: Path) -> None:
        """Add the validation split of prepared tokens; raises the errors of `open_split`."""
        held_out = open_split(folder, "validation")
        ids = held_out.read(0, min(len(held_out), self._room)).astype(np.uint32)
        if len(ids) and np.isin(ids[-1], self._end):
            ids = ids[:-1]  # `_sampled` adds it
        text = self._texts.setdefault(file, _TokenSample())
        starts = np.flatnonzero(np.isin(ids, self._start)) + text.length
        text.edges += sorted({text.length, *starts.tolist()})
        text.add(ids)
        self._room -= len(ids)

    def measure(self, folder: Path) -> dict[int, Overlap]:
        """Return the overlap of each file; estimated from samples if the training split is very large.

        Raises:
            InputError: the folder has no prepared tokens, or they are damaged.
        """
        manifest = read_manifest(folder)
        record, repetition = manifest.splits["train"], manifest.repetition
        rolling_hash = RollingHash(self._size, count_window_tokens(tokens=record.tokens, text_bytes=record.bytes))
        sampled = {file: self._sampled(text, rolling_hash) for file, text in self._texts.items()}
        lookup = HashLookup(np.concatenate([np.empty(0, np.uint64), *sampled.values()]))
        train = open_split(folder, "train")
        edges = _read_edges(folder) if manifest.kind == "conversations" else None
        for first, ids in _read_overlapping(train, rolling_hash.window):
            sums = rolling_hash.prefix_sums(ids)
            lookup.mark(rolling_hash.window_hashes(sums))
            if edges is None:
                starts = np.flatnonzero(np.isin(ids, self._start))
            else:
                starts = edges[(edges >= first) & (edges <= first + len(ids))] - first
            lookup.mark(rolling_hash.range_hashes(sums, starts[:-1], starts[1:]))
        read = min(1.0, _MOST_READ / max(1, len(train)))
        is_found, measured = lookup.is_found, {}
        repeated = (repetition.held_out if repetition is not None else None) or 0.0
        for file, hashes in sampled.items():
            fraction = min(1.0, float(is_found[: len(hashes)].mean()) / read) if len(hashes) else 0.0
            windows = max(1.0, self._texts[file].length / rolling_hash.window)
            measured[file] = Overlap.compared_with(repeated, fraction, samples=windows)
            is_found = is_found[len(hashes) :]
        return measured

    def _sampled(self, text: _TokenSample, rolling_hash: RollingHash) -> Hashes:
        """Hash windows, or whole shorter documents, at equal distances."""
        ids = np.concatenate([*text.parts, *([self._end] if text.is_framed else [])]).astype(np.int64)
        offsets = np.linspace(0, text.length, min(text.length, _SAMPLES), endpoint=False, dtype=np.int64)
        edges = np.array([*text.edges, len(ids)])
        documents = np.searchsorted(edges, offsets, side="right") - 1
        begins, ends = edges[documents], edges[documents + 1]
        begins = np.where(ends - begins < rolling_hash.window, begins, np.minimum(offsets, ends - rolling_hash.window))
        ends = np.minimum(ends, begins + rolling_hash.window)
        return np.array(
            [rolling_hash.prefix_sums(ids[begin:end])[-1] for begin, end in zip(begins, ends, strict=True)],
            dtype=np.uint64,
        )


class PairOverlap:
    """Measures the fraction of each file's sentence pairs that are in the training split of prepared pairs."""

    def __init__(self) -> None:
        self._pairs: dict[int, list[SentencePair]] = {}

    def add(self, file: int, pairs: Iterable[SentencePair]) -> None:
        self._pairs[file] = [pair for pair in islice(pairs, _MOST_PAIRS) if pair.source and pair.target]

    def measure(self, folder: Path) -> dict[int, Overlap]:
        """Return the overlap of each file; estimated from samples if the training split is very large.

        Raises:
            InputError: the folder has no prepared pairs, or they are damaged.
        """
        stored = open_pairs(folder)
        size = len(stored.sentences("train", "source"))
        held_out = _hash_stored(stored, "validation", np.arange(len(stored.sentences("validation", "source"))))
        hashes = [_hash_texts(stored, pairs) for pairs in self._pairs.values()]
        wanted = HashLookup(np.concatenate([held_out, *hashes]))
        step = _PAIRS_AT_ONCE * max(1, -(-size // _MOST_PAIRS_READ))
        numbers = [np.arange(first, min(first + _PAIRS_AT_ONCE, size)) for first in range(0, size, step)]
        for some in numbers:
            wanted.mark(_hash_stored(stored, "train", some))
        read = sum(map(len, numbers)) / max(1, size)
        is_repeated, *is_found = np.split(wanted.is_found, np.cumsum([len(held_out), *map(len, hashes[:-1])]))
        repeated = float(is_repeated.mean()) / read if len(is_repeated) else 0.0
        return {
            file: Overlap.compared_with(repeated, min(1.0, float(of_file.mean()) / read), samples=len(of_file))
            for file, of_file in zip(self._pairs, is_found, strict=True)
            if len(of_file)
        }


def _hash_texts(stored: StoredPairs, pairs: Sequence[SentencePair]) -> Hashes:
    sources = (stored.source_tokenizer or stored.tokenizer).encode_batch([pair.source for pair in pairs])
    targets = stored.tokenizer.encode_batch([pair.target for pair in pairs])
    return _hash_pairs(RaggedArray.from_rows(sources), RaggedArray.from_rows(targets))


def _hash_stored(stored: StoredPairs, split: SplitName, numbers: NDArray[np.int64]) -> Hashes:
    def tokens(side: SideName) -> RaggedArray:
        sentences = stored.sentences(split, side)
        words = sentences.words.take(numbers)
        return sentences.table.take(words.values).merge_rows(words.ends)

    return _hash_pairs(tokens("source"), tokens("target"))


def _hash_pairs(sources: RaggedArray, targets: RaggedArray) -> Hashes:
    """Return a hash of each pair that doesn't depend on the direction."""
    return hash64(_hash_rows(sources)) + hash64(_hash_rows(targets))


def _hash_rows(rows: RaggedArray) -> Hashes:
    starts = rows.ends - rows.lengths()
    keys = hash64(rows.values.astype(np.uint64)) ^ rows.positions().astype(np.uint64)
    sums = np.append(np.uint64(0), np.cumsum(hash64(keys)))
    return sums[rows.ends] - sums[starts]


def _as_token_array(index: int | None) -> NDArray[np.uint32]:
    return np.array([] if index is None else [index], dtype=np.uint32)


def _read_edges(folder: Path) -> NDArray[np.int64]:
    """Return where each conversation of the training split begins, and where the last one ends."""
    return np.append(0, open_examples(folder, "train").records["end"]).astype(np.int64)


def _read_overlapping(tokens: TokenReader, window: int) -> Iterator[tuple[int, NDArray[np.integer]]]:
    """Yield all tokens in parts that overlap by a window, with their start; sampled parts if there are very many."""
    is_whole = len(tokens) <= _MOST_READ
    size = _WHOLE if is_whole else _PART
    step = size if is_whole else size * len(tokens) // _MOST_READ
    for start in range(0, len(tokens), step):
        yield start, tokens.read(start, min(start + size + window - 1, len(tokens)))

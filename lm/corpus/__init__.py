"""Corpora: read once (`survey`), encoded (`encode`), and stored in chunks (`prepare`); here is the store itself.

Start with `survey.Corpus`, `prepare.prepare_corpus` and `Split`. Must not import `lm.data`. A store is chunk folders of
arrays, final when written, listed in `store.json`, written last. A chunk has for each split some `COLUMNS` as
`SPLIT-COLUMN.npy`, `validation.jsonl` with the held-out texts, rows and pairs, and `chunk.json` with counts and
checksums. The tokens of text are framed by start and end tokens; those of pairs are bare. Windows run over chunks.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from lm import files
from lm.config.run_config import DataConfig, DataKind
from lm.errors import InputError
from lm.tokenizer import FILE_NAME, Tokenizer

Integers = NDArray[np.int64]
Indices = NDArray[np.uint64]


@dataclass(frozen=True)
class RaggedArray:
    """Rows of integers, or of integer vectors.

    Attributes:
        values: all rows concatenated, possibly memory-mapped; a second dimension holds vectors.
        ends: (rows,) where each row ends in `values`.
    """

    values: NDArray[Any]
    ends: NDArray[Any]

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int] | Sequence[Sequence[int]] | NDArray[Any]]) -> RaggedArray:
        values = _concatenate([np.asarray(row, dtype=np.int64) for row in rows])
        return cls(values, np.cumsum([len(row) for row in rows], dtype=np.int64))

    @classmethod
    def concatenate(cls, parts: Sequence[RaggedArray]) -> RaggedArray:
        lengths = [part.lengths() for part in parts]
        return cls(_concatenate([part.values for part in parts]), np.cumsum(_concatenate(lengths)))

    @classmethod
    def join_rows(cls, parts: Sequence[RaggedArray]) -> RaggedArray:
        """Join the rows of several arrays of as many rows, row by row."""
        rows, count = len(parts[0]), len(parts)
        order = np.arange(count * rows).reshape(count, rows).T.ravel()
        return cls.concatenate(parts).take(order).merge_rows(np.arange(count, count * rows + 1, count))

    def __len__(self) -> int:
        return len(self.ends)

    def lengths(self) -> Integers:
        return np.diff(self.ends, prepend=0)

    def positions(self) -> Integers:
        """Return (values,) positions of the values in their rows."""
        return concatenate_ranges(np.zeros(len(self), dtype=np.int64), self.lengths())

    def row(self, number: int) -> NDArray[Any]:
        start = self.ends[number - 1] if number else 0
        return self.values[start : self.ends[number]]

    def take(self, rows: NDArray[Any]) -> RaggedArray:
        """Copy rows in the given order."""
        rows = rows.astype(np.int64)  # the row before the first is none, not the last number of an unsigned type
        starts = np.where(rows > 0, self.ends[rows - 1], 0)
        lengths = self.ends[rows] - starts
        ends = np.cumsum(lengths)
        return RaggedArray(self.values[concatenate_ranges(starts, lengths)].astype(np.int64), ends)

    def merge_rows(self, ends: NDArray[Any]) -> RaggedArray:
        """Merge neighbouring rows; `ends` has the row index where each group ends."""
        return RaggedArray(self.values, np.append(0, self.ends)[ends])

    def wrap_rows(self, before: Any, after: Any) -> RaggedArray:
        """Prepend and append the same values to each row."""
        frame = RaggedArray.from_rows([np.reshape(side, (-1, *self.values.shape[1:])) for side in (before, after)])
        first = np.zeros(len(self), dtype=np.int64)
        return RaggedArray.join_rows([frame.take(first), self, frame.take(first + 1)])

    def to_padded(self, value: int) -> Integers:
        """Return a dense (rows, longest[, size]) array, padded with `value`."""
        lengths = self.lengths()
        filled = np.full((len(self), int(lengths.max(initial=0)), *self.values.shape[1:]), value, dtype=np.int64)
        filled[np.arange(filled.shape[1]) < lengths[:, None]] = self.values
        return filled


def _concatenate(parts: Sequence[NDArray[Any]]) -> Integers:
    return np.concatenate(parts).astype(np.int64, copy=False) if parts else np.empty(0, dtype=np.int64)


def concatenate_ranges(starts: Integers, lengths: Integers) -> Integers:
    """Concatenate the ranges of integers with these starts and lengths."""
    ends = np.cumsum(lengths)
    offsets = np.repeat(starts - (ends - lengths), lengths)
    return offsets + np.arange(len(offsets))


def hash64(x: Indices) -> Indices:
    """Hash 64-bit integers bijectively (finaliser of SplitMix64, Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


MANIFEST, CHUNK = "store.json", "chunk.json"
SOURCE_TOKENIZER = "source_tokenizer.json"
HELD_OUT_FILE = "validation.jsonl"

SplitName = Literal["train", "validation"]
SPLITS: tuple[SplitName, ...] = ("train", "validation")

COLUMNS: Mapping[str, str | None] = {
    "tokens": None, "passages": "<u8", "ends": "<i8", "learned": "<i4", "bytes": "<i4",
    "completion": "<i4", "replies": "<i4", "words": "?", "source_tokens": None, "source_ends": "<i8",
    "source_words": "?", "places": "<i4",
}  # fmt: skip
"""Columns with their dtypes; that of token IDs depends on the vocabulary. A kind of data has some of them.

tokens          all tokens; of pairs, those of the targets
passages        hashes of some passages of text, see `lm.corpus.survey.hash_records`; those of rows and pairs
ends            where each row ends in `tokens`
learned, bytes  how many tokens of an example or a conversation are learned, and their UTF-8 bytes
completion      number of the completion of an example in the chunk's record
replies         UTF-8 bytes that each token of the assistant spells, -1 for others
words           whether a token of a pair begins a word
source_...      the same of the sources of pairs
places          (source tokens, 3) tree positions, if there are trees
"""


@dataclass(frozen=True)
class SplitRecord:
    """What a split, or a chunk of it, holds.

    Attributes:
        documents: documents, rows or pairs.
        tokens: special tokens included; of pairs, bare tokens of the targets.
        bytes: UTF-8 bytes of the text; of pairs, of the targets.
        left_out: pairs of which a side is blank or has too many tokens, or whose lengths differ too much.
    """

    documents: int = 0
    tokens: int = 0
    bytes: int = 0
    source_tokens: int = 0
    source_bytes: int = 0
    left_out: int = 0


@dataclass(frozen=True)
class ChunkRecord:
    """A chunk: its folder, counts, checksums, and the different completions of its examples, None if too many."""

    name: str
    splits: dict[SplitName, SplitRecord]
    sha256: dict[str, str]
    completions: list[str] | None = None


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Contents of `store.json`.

    Attributes:
        key: hash of everything that the data depend on.
        tokenizer: checksum of the tokenizer (`Tokenizer.sha256`).
        config: how files were read, and what was held out.
        languages: of sources and targets of pairs, if known.
        closing: token that ends each split of text, if the start token of a document ends the previous one.
        tokenizers: checksums of the files of tokenizers.
        repeated: fraction of the held-out text that also occurs in the training split; None without held-out text.
    """

    kind: DataKind
    key: str
    tokenizer: str
    config: DataConfig
    languages: tuple[str | None, str | None]
    has_dependency_heads: bool
    closing: int | None
    chunks: tuple[ChunkRecord, ...] = ()
    tokenizers: dict[str, str] = field(default_factory=dict)
    repeated: float | None = None
    format_version: Literal[7] = 7

    @cached_property
    def splits(self) -> dict[SplitName, SplitRecord]:
        totals: dict[SplitName, Counter[str]] = {split: Counter() for split in SPLITS}
        for split, total in totals.items():
            for chunk in self.chunks:
                total.update(vars(chunk.splits[split]))
            total["tokens"] += self.closing is not None and total["documents"] > 0
        return {split: SplitRecord(**total) for split, total in totals.items()}

    @property
    def sha256(self) -> dict[str, str]:
        """Return the checksum of each file, by its path in the folder."""
        chunks = {f"{chunk.name}/{name}": value for chunk in self.chunks for name, value in chunk.sha256.items()}
        return {**self.tokenizers, **chunks}

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the manifest of a store; InputError if it is missing, damaged or of another version."""
        try:
            return msgspec.convert(files.read_json(folder / MANIFEST), cls)
        except (InputError, msgspec.ValidationError) as error:
            raise InputError(f"{folder}: holds no prepared data of this version of lm ({error})") from None


def is_store(folder: Path) -> bool:
    """Whether a folder holds a store, which may be unfinished."""
    return (folder / MANIFEST).is_file() or any(folder.glob(f"*/{CHUNK}"))


_OPEN_FILES = 64  # of a split, as each takes a file descriptor


class Split:
    """A split of a store, memory-mapped.

    Attributes:
        documents: documents, rows or pairs.
        bytes: UTF-8 bytes of the text.
    """

    def __init__(self, folder: Path, manifest: Manifest, name: SplitName) -> None:
        self.manifest, self.name = manifest, name
        self.record = manifest.splits[name]
        self.documents, self.bytes = self.record.documents, self.record.bytes
        self._folder = folder
        self._chunks = [chunk for chunk in manifest.chunks if chunk.splits[name].tokens]
        records = [chunk.splits[name] for chunk in self._chunks]
        self._starts = np.cumsum([0, *(record.tokens for record in records)])
        self._rows = np.cumsum([0, *(record.documents for record in records)])
        self._open = lru_cache(_OPEN_FILES)(self._load)
        self.column = cache(self._column)

    def __len__(self) -> int:
        return self.record.tokens

    def _load(self, number: int, column: str) -> NDArray[Any]:
        path = self._folder / self._chunks[number].name / f"{self.name}-{column}.npy"
        array: NDArray[Any] = np.load(path, mmap_mode="r")
        return array

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Copy (stop - start,) tokens, across chunks."""
        first, last = int(np.searchsorted(self._starts, start, side="right")) - 1, np.searchsorted(self._starts, stop)
        parts = [
            self._open(number, "tokens")[max(start - self._starts[number], 0) : stop - self._starts[number]]
            for number in range(first, min(int(last), len(self._chunks)))
        ]
        closing = np.full(int(stop > self._starts[-1]), self.manifest.closing or 0)
        return np.concatenate([*parts, closing], dtype=np.int64)

    def parts(self, column: str) -> Iterator[NDArray[Any]]:
        """Yield a column, chunk by chunk."""
        return (self._open(number, column) for number in range(len(self._chunks)))

    def _column(self, name: str) -> NDArray[Any]:
        """Return a column of all chunks."""
        return np.concatenate([*self.parts(name)] or [np.empty(0, dtype=np.int64)])

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """(rows,) tokens of each row."""
        return self.row_lengths("ends")

    def row_lengths(self, ends: str) -> NDArray[np.int64]:
        return np.concatenate([np.empty(0, dtype=np.int64), *(np.diff(part, prepend=0) for part in self.parts(ends))])

    def take(self, rows: NDArray[np.int64], column: str = "tokens", ends: str = "ends") -> RaggedArray:
        """Copy values of rows, in the given order."""
        chunks = np.searchsorted(self._rows, rows, side="right") - 1
        order, parts = [np.empty(0, dtype=np.int64)], []
        for number in np.unique(chunks).tolist():
            order.append(np.flatnonzero(chunks == number))
            stored = RaggedArray(self._open(number, column), self._open(number, ends))
            parts.append(stored.take(rows[order[-1]] - self._rows[number]))
        return RaggedArray.concatenate(parts).take(np.argsort(np.concatenate(order), kind="stable"))

    def find_overlap(self, hashes: NDArray[np.uint64]) -> float:
        """Return the fraction of hashes of passages, rows or pairs (`lm.corpus.survey.hash_records`) that it has."""
        sought = np.unique(hashes)
        is_found = np.zeros(len(sought), dtype=bool)
        for stored in self.parts("passages"):
            places = np.searchsorted(sought, stored) % len(sought)
            is_found[places[sought[places] == stored]] = True
        return float(is_found.mean())

    def is_notable(self, overlap: float) -> bool:
        """Return whether a text overlaps with it clearly more than text of the same source does."""
        return overlap >= max(0.05, min(0.5, 2 * (self.manifest.repeated or 0)))

    def completions(self) -> list[str] | None:
        """Return the completion of each example; None if there are too many different ones."""
        found: list[str] = []
        for chunk, numbers in zip(self._chunks, self.parts("completion"), strict=True):
            if chunk.completions is None:
                return None
            found += [chunk.completions[number] for number in numbers.tolist()]
        return found


def open_split(folder: Path | str, split: SplitName) -> Split:
    """Open a split of a store; InputError if the folder has none, or it is damaged."""
    return Split(Path(folder), Manifest.read(Path(folder)), split)


def open_tokenizers(folder: Path, manifest: Manifest) -> tuple[Tokenizer, Tokenizer | None]:
    """Load the tokenizer of a store, of its targets if it holds pairs, and that of the sources if separate."""
    has_own = SOURCE_TOKENIZER in manifest.tokenizers
    return Tokenizer.load(folder / FILE_NAME), Tokenizer.load(folder / SOURCE_TOKENIZER) if has_own else None


def read_held_out(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the held-out texts, rows or pairs, as in JSON Lines."""
    for chunk in Manifest.read(folder).chunks:
        with (folder / chunk.name / HELD_OUT_FILE).open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)


def verify_checksums(folder: Path, sha256: Mapping[str, str]) -> None:
    """Raise InputError if a file is missing or has another checksum."""

    def is_intact(name: str) -> bool:
        with contextlib.suppress(OSError):
            return files.sha256(folder / name) == sha256[name]
        return False

    with ThreadPoolExecutor() as pool:
        intact = pool.map(is_intact, sha256)
    if damaged := [name for name, is_same in zip(sha256, intact, strict=True) if not is_same]:
        raise InputError(f"{folder / damaged[0]}: missing or damaged (by its checksum); prepare the corpus again")

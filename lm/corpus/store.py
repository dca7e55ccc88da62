"""The store of a prepared corpus: chunk folders of arrays, final when written, listed in `store.json`, written last.

A chunk has for each split

    tokens, hash                       of text, examples and conversations; hashes of documents
    ends, learned, bytes               of examples and conversations: where each row ends, how many of its tokens are
                                       learned and the UTF-8 bytes of these
    label                              of examples: numbers of labels, unless there are too many different ones
    replies                            of conversations: bytes that each token of the assistant spells, -1 for others
    ends, words, source, source_ends, source_words, places
                                       of sentence pairs: `tokens` are those of the targets; which tokens begin a word;
                                       tree positions of the source tokens, if there are trees

as `SPLIT-NAME.npy`, `validation.jsonl` with the text of held-out rows and pairs, and `chunk.json` with counts and
checksums. The tokens of text are framed by start and end tokens; those of pairs are bare. Windows run over chunks.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from lm import files, processes
from lm.config.data import DataConfig, DataKind
from lm.corpus.ragged import RaggedArray
from lm.errors import InputError
from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer

VERSION = 4
"""Format version of the files."""

MANIFEST, CHUNK = "store.json", "chunk.json"
SOURCE_TOKENIZER = "source_tokenizer.json"
HELD_OUT_FILE = "validation.jsonl"

SplitName = Literal["train", "validation"]
SPLITS: tuple[SplitName, ...] = ("train", "validation")


@dataclass(frozen=True)
class SourceRecord:
    """A source file: its name, decompressed bytes, and checksum of these."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class SplitRecord:
    """What a split, or a chunk of it, holds.

    Attributes:
        documents: documents, rows or pairs.
        tokens: special tokens included; of pairs, bare tokens of the targets.
        bytes: UTF-8 bytes of the text; of pairs, of the targets.
        blank: pairs left out because a side is blank.
        too_long: pairs left out because a side has too many tokens.
        ratio: pairs left out because of their length ratio.
    """

    documents: int = 0
    tokens: int = 0
    bytes: int = 0
    source_tokens: int = 0
    source_bytes: int = 0
    blank: int = 0
    too_long: int = 0
    ratio: int = 0

    @property
    def bytes_per_token(self) -> float:
        return (self.bytes + self.source_bytes) / max(1, self.tokens + self.source_tokens)


@dataclass(frozen=True)
class ChunkRecord:
    """A chunk: its folder, counts, checksums, and the labels that its rows refer to, None if there are too many."""

    name: str
    splits: dict[SplitName, SplitRecord]
    sha256: dict[str, str]
    labels: list[str] | None = None


@dataclass(frozen=True)
class Repetition:
    """Duplicated text in a corpus.

    Attributes:
        documents: documents, of both splits, that equal an earlier one.
        held_out: fraction of the held-out text that also occurs in the training split, in windows of `window` tokens;
            of rows and pairs, the fraction that are also in the training split; None without held-out text.
        window: tokens of a window; 0 for rows and pairs.
    """

    documents: int
    held_out: float | None
    window: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Contents of `store.json`.

    Attributes:
        key: hash of everything that the data depend on.
        sources: files that the data were made from.
        validation_sources: the files of the validation split, if it has its own.
        tokenizer: checksum of the tokenizer (`Tokenizer.sha256`).
        config: how files were read, and what was held out.
        languages: of sources and targets of pairs, if known.
        closing: token that ends each split of text, if the start token of a document ends the previous one.
        part: number of a part, from 1, and how many there are; such a store is to be joined with the others.
    """

    kind: DataKind
    key: str
    sources: tuple[SourceRecord, ...] = ()
    validation_sources: tuple[SourceRecord, ...] = ()
    tokenizer: str
    vocab_size: int
    config: DataConfig = field(default_factory=DataConfig)
    languages: tuple[str | None, str | None] = (None, None)
    has_dependency_heads: bool = False
    closing: int | None = None
    chunks: tuple[ChunkRecord, ...]
    tokenizers: dict[str, str] = field(default_factory=dict)
    repetition: Repetition | None = None
    part: tuple[int, int] | None = None
    format_version: int = VERSION

    @cached_property
    def splits(self) -> dict[SplitName, SplitRecord]:
        totals: dict[SplitName, Counter[str]] = {split: Counter() for split in SPLITS}
        for split, total in totals.items():
            for chunk in self.chunks:
                total.update(vars(chunk.splits[split]))
            total["tokens"] += self.closing is not None and total["documents"] > 0
        return {split: SplitRecord(**total) for split, total in totals.items()}

    @property
    def labels(self) -> int:
        """Return the number of distinct labels; 0 if there are none, or too many."""
        if any(chunk.labels is None for chunk in self.chunks):
            return 0
        return len({label for chunk in self.chunks for label in chunk.labels or ()})

    @property
    def sha256(self) -> dict[str, str]:
        """Return the checksum of each file, by its path in the folder."""
        chunks = {f"{chunk.name}/{name}": value for chunk in self.chunks for name, value in chunk.sha256.items()}
        return {**self.tokenizers, **chunks}

    @classmethod
    def read(cls, folder: Path, *, may_be_part: bool = False) -> Manifest:
        """Read the manifest of a store; InputError if it is missing, damaged, or of a part."""
        path = folder / MANIFEST
        if not path.is_file():
            raise InputError(f"{folder}: not a folder of prepared data (it has no {MANIFEST})")
        values = files.read_json(path)
        version = values.get("format_version") if isinstance(values, dict) else None
        if version != VERSION:
            raise InputError(f"{path}: format version {version} is not {VERSION}; prepare the corpus again")
        try:
            manifest = msgspec.convert(values, cls)
        except (msgspec.ValidationError, TypeError) as error:
            raise InputError(f"{path}: damaged ({error}); prepare the corpus again") from None
        if manifest.part is not None and not may_be_part:
            number, count = manifest.part
            raise InputError(f"{folder}: holds part {number} of {count} of a corpus; join the parts")
        return manifest


def is_store(folder: Path) -> bool:
    """Whether a folder holds a store, which may be unfinished."""
    return (folder / MANIFEST).is_file() or any(folder.glob(f"*/{CHUNK}"))


def token_dtype(vocab_size: int) -> str:
    return "<u2" if vocab_size <= 1 << 16 else "<u4"


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
        self._chunks = [chunk for chunk in manifest.chunks if chunk.splits[name].documents or chunk.splits[name].tokens]
        records = [chunk.splits[name] for chunk in self._chunks]
        self._starts = np.cumsum([0, *(record.tokens for record in records)])
        self._rows = np.cumsum([0, *(record.documents for record in records)])
        self._open = lru_cache(_OPEN_FILES)(self._load)
        self.column = cache(self._column)

    def __len__(self) -> int:
        return self.record.tokens

    def _load(self, number: int, column: str) -> NDArray[Any]:
        path = self._folder / self._chunks[number].name / f"{self.name}-{column}.npy"
        try:
            array: NDArray[Any] = np.load(path, mmap_mode="r")
        except (OSError, ValueError, EOFError):
            raise InputError(f"{path}: missing or damaged; prepare the corpus again") from None
        return array

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Copy (stop - start,) tokens, across chunks; IndexError if the range is not within the split."""
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"tokens {start} to {stop} of {len(self)}")
        out = np.full(stop - start, self.manifest.closing or 0, dtype=np.int64)  # which is after the last chunk
        first, last = int(np.searchsorted(self._starts, start, side="right")) - 1, np.searchsorted(self._starts, stop)
        for number in range(first, min(int(last), len(self._chunks))):
            offset = int(self._starts[number])
            part = self._open(number, "tokens")[max(start - offset, 0) : stop - offset]
            position = max(offset - start, 0)
            out[position : position + len(part)] = part
        return out

    def _column(self, name: str) -> NDArray[Any]:
        """Return a column of values per document, of all chunks."""
        arrays = [self._open(number, name) for number in np.flatnonzero(np.diff(self._rows)).tolist()]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays or [np.empty(0, dtype=np.int64)])

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """(rows,) tokens of each row."""
        return self._lengths("ends")

    @cached_property
    def edges(self) -> NDArray[np.int64]:
        """(rows + 1,) where each row begins, and where the last one ends."""
        return np.append(0, np.cumsum(self.lengths))

    @cached_property
    def source_lengths(self) -> NDArray[np.int64]:
        return self._lengths("source_ends")

    def _lengths(self, ends: str) -> NDArray[np.int64]:
        arrays = [np.diff(self._open(number, ends), prepend=0) for number in range(len(self._chunks))]
        return np.concatenate([np.empty(0, dtype=np.int64), *arrays])

    def take(self, rows: NDArray[np.int64], column: str = "tokens", ends: str = "ends") -> RaggedArray:
        """Copy values of rows, in the given order."""
        chunks = np.searchsorted(self._rows, rows, side="right") - 1
        order, parts = [np.empty(0, dtype=np.int64)], []
        for number in np.unique(chunks).tolist():
            order.append(np.flatnonzero(chunks == number))
            stored = RaggedArray(self._open(number, column), self._open(number, ends))
            parts.append(stored.take(rows[order[-1]] - self._rows[number]))
        return RaggedArray.concatenate(parts).take(np.argsort(np.concatenate(order), kind="stable"))

    @cached_property
    def labels(self) -> NDArray[np.object_] | None:
        """(examples,) label of each example; None if there are too many."""
        if self.manifest.kind != "examples" or not self.manifest.labels:
            return None
        parts: list[NDArray[np.object_]] = [np.empty(0, dtype=object)]
        for number, chunk in enumerate(self._chunks):
            parts.append(np.array(chunk.labels, dtype=object)[self._open(number, "label")])
        return np.concatenate(parts)


def open_split(folder: Path | str, split: SplitName) -> Split:
    """Open a split of a store; InputError if the folder has none, or it is damaged."""
    return Split(Path(folder), Manifest.read(Path(folder)), split)


def open_tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer | None]:
    """Load the tokenizer of a store, of its targets if it holds pairs, and that of the sources if separate."""
    own = folder / SOURCE_TOKENIZER
    return Tokenizer.load(folder / FILE_NAME), Tokenizer.load(own) if own.is_file() else None


def read_held_out(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the held-out rows or pairs, as in JSON Lines."""
    for chunk in Manifest.read(folder).chunks:
        with (folder / chunk.name / HELD_OUT_FILE).open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)


@dataclass(frozen=True)
class PreparedFolder:
    """A folder of prepared data.

    Attributes:
        chunks_reused: how many of its chunks existed already, after an interruption.
    """

    folder: Path
    manifest: Manifest
    reused: bool
    chunks_reused: int = 0


def write_chunk(
    folder: Path,
    columns: Mapping[str, NDArray[Any]],
    splits: dict[SplitName, SplitRecord],
    *,
    texts: Sequence[str] = (),
    labels: list[str] | None = None,
) -> ChunkRecord:
    """Write the files of a chunk into a folder that it replaces; the folder has its name once it is complete."""
    new = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    for name, values in columns.items():
        np.save(new / f"{name}.npy", values)
    (new / HELD_OUT_FILE).write_text("".join(texts), encoding="utf-8", newline="\n")
    checksums = {path.name: files.sha256(path) for path in sorted(new.iterdir())}
    record = ChunkRecord(folder.name, splits, checksums, labels)
    files.write_json(new / CHUNK, msgspec.to_builtins(record))
    for path in new.iterdir():
        files.sync(path)
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)
    files.sync(folder.parent)
    return record


def load_chunk(folder: Path) -> ChunkRecord | None:
    """Return the record of a complete chunk; None unless all checksums match."""
    with contextlib.suppress(InputError, OSError, msgspec.ValidationError):
        record = msgspec.convert(files.read_json(folder / CHUNK), ChunkRecord)
        if all(files.sha256(folder / name) == expected for name, expected in record.sha256.items()):
            return record
    return None


def save_tokenizers(folder: Path, *tokenizers: Tokenizer | None) -> dict[str, str]:
    """Save the tokenizers of a store, replacing others; returns their checksums by name."""
    checksums = {}
    for name, tokenizer in itertools.zip_longest((FILE_NAME, SOURCE_TOKENIZER), tokenizers):
        (folder / name).unlink(missing_ok=True)
        if tokenizer is not None:
            tokenizer.save(folder / name)
            checksums[name] = files.sha256(folder / name)
    return checksums


def write_store(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, which completes a store; removes chunks of others."""
    kept = {chunk.name for chunk in manifest.chunks}
    for path in folder.iterdir():
        if path.is_dir() and path.name not in kept:
            shutil.rmtree(path)
    files.write_json(folder / MANIFEST, msgspec.to_builtins(manifest))


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Create a folder for a store, and lock it; waits for other processes that make the same store."""
    files.make_folder(folder.absolute())
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


_SECONDS_TO_RESUME = 14 * 24 * 3600
"""Age of unfinished stores in the cache that counts as abandoned."""


def cache_folder(key: str, *, root: Path | None = None) -> Path:
    """Return the cache folder for a key, which need not exist; removes old unfinished folders beside it."""
    folder = (root or files.cache_root()) / "tokens" / key[:32]
    for other in folder.parent.glob("*"):
        with contextlib.suppress(OSError):
            if not (other / MANIFEST).is_file() and other.stat().st_mtime < time.time() - _SECONDS_TO_RESUME:
                shutil.rmtree(other, ignore_errors=True)
    return folder


_HASHED_EACH_TIME = 1 << 26
"""Bytes: what is not larger is hashed each time, which takes a tenth of a second or two."""


def verify_checksums(folder: Path, sha256: Mapping[str, str], *, advice: str = "prepare the corpus again") -> None:
    """Raise InputError if a file is missing or has another checksum.

    The cache records that a large folder was verified; it isn't hashed again while its files are unchanged.
    """
    try:
        states = {name: (folder / name).stat() for name in sha256}
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}; {advice}") from None
    is_large = sum(state.st_size for state in states.values()) > _HASHED_EACH_TIME
    changing = [[state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino] for state in states.values()]
    record = files.cache_root() / "verified" / hash_values(str(folder.resolve()), dict(sha256), changing)[:32]
    if is_large and record.exists():
        return
    paths = [folder / name for name in sha256]
    hashes = processes.map_on_threads(files.sha256, paths, threads=processes.available_cores())
    for name, actual in zip(sha256, hashes, strict=True):
        if actual != sha256[name]:
            raise InputError(f"{folder / name}: damaged (its checksum differs from the recorded one); {advice}")
    if is_large:
        with contextlib.suppress(OSError):  # the cache cannot be written to: it is hashed again next time
            record.parent.mkdir(parents=True, exist_ok=True)
            record.touch()


def hash_values(*values: Any) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()

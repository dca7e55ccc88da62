"""The store of a prepared corpus: chunk folders of arrays, final when written, listed in `store.json`, written last.

A chunk has for each split

    tokens, hash                       of text, examples and conversations; hashes of documents
    ends, learned, bytes, file, line   of examples and conversations: where each row ends, how many of its tokens are
                                       learned and the UTF-8 bytes of these, and where the row is from
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
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from lm import files, locks, processes
from lm.config.data import DataConfig, DataKind
from lm.corpus.ragged import RaggedArray
from lm.errors import InputError
from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer

VERSION = 3
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
        longest: tokens of the longest side of a pair.
        blank: pairs left out because a side is blank.
        too_long: pairs left out because a side has too many tokens.
        ratio: pairs left out because of their length ratio.
    """

    documents: int = 0
    tokens: int = 0
    bytes: int = 0
    source_tokens: int = 0
    source_bytes: int = 0
    longest: int = 0
    blank: int = 0
    too_long: int = 0
    ratio: int = 0

    def __add__(self, other: SplitRecord) -> SplitRecord:
        sums = {one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)}
        return SplitRecord(**{**sums, "longest": max(self.longest, other.longest)})

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
        totals = {}
        for split in SPLITS:
            total = sum((chunk.splits[split] for chunk in self.chunks), SplitRecord())
            totals[split] = total + SplitRecord(tokens=int(self.closing is not None and total.documents > 0))
        return totals

    @property
    def supervised(self) -> bool:
        return self.kind in ("examples", "conversations")

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

    def to_dict(self) -> dict[str, Any]:
        values: dict[str, Any] = msgspec.to_builtins(self)
        return values

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the manifest of a store; InputError if it is missing, damaged, or of a part."""
        manifest = cls.read_part(folder)
        if manifest.part is not None:
            raise InputError(
                f"{folder}: holds part {manifest.part[0]} of {manifest.part[1]} of a corpus; join the parts"
            )
        return manifest

    @classmethod
    def read_part(cls, folder: Path) -> Manifest:
        """Read the manifest of a store, which may be a part."""
        path = folder / MANIFEST
        if not path.is_file():
            raise InputError(f"{folder}: not a folder of prepared data (it has no {MANIFEST})")
        values = files.read_json(path)
        version = values.get("format_version") if isinstance(values, dict) else None
        if version != VERSION:
            raise InputError(f"{path}: format version {version} is not {VERSION}; prepare the corpus again")
        try:
            return msgspec.convert(values, cls)
        except (msgspec.ValidationError, TypeError) as error:
            raise InputError(f"{path}: damaged ({error}); prepare the corpus again") from None


def has_manifest(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


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
        out = np.empty(stop - start, dtype=np.int64)
        if stop > self._starts[-1] and self.manifest.closing is not None:
            out[-1] = self.manifest.closing
        number = int(np.searchsorted(self._starts, start, side="right")) - 1
        while number < len(self._chunks) and self._starts[number] < stop:
            offset = int(self._starts[number])
            part = self._open(number, "tokens")[max(start - offset, 0) : stop - offset]
            position = max(offset - start, 0)
            out[position : position + len(part)] = part
            number += 1
        return out

    def column(self, name: str) -> NDArray[Any]:
        """Return a column of values per document, of all chunks."""
        arrays = [self._open(number, name) for number in range(len(self._chunks)) if np.diff(self._rows)[number]]
        return np.concatenate(arrays) if len(arrays) != 1 else arrays[0]

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """(rows,) tokens of each row."""
        return self._column_lengths("ends")

    @cached_property
    def edges(self) -> NDArray[np.int64]:
        """(rows + 1,) where each row begins, and where the last one ends."""
        return np.append(0, np.cumsum(self.lengths))

    @cached_property
    def source_lengths(self) -> NDArray[np.int64]:
        return self._column_lengths("source_ends")

    def _column_lengths(self, ends: str) -> NDArray[np.int64]:
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
    return record


def load_chunk(folder: Path) -> ChunkRecord | None:
    """Return the record of a complete chunk; None unless all checksums match."""
    with contextlib.suppress(InputError, OSError, msgspec.ValidationError):
        record = msgspec.convert(files.read_json(folder / CHUNK), ChunkRecord)
        if all(files.sha256(folder / name) == expected for name, expected in record.sha256.items()):
            return record
    return None


def write_store(folder: Path, manifest: Manifest, *tokenizers: Tokenizer | None) -> Manifest:
    """Write tokenizers and manifest, which complete a store; removes what is no chunk of it."""
    kept, checksums = {chunk.name for chunk in manifest.chunks}, {}
    for path in folder.iterdir():
        if path.is_dir() and path.name not in kept:
            shutil.rmtree(path)
    for name, tokenizer in zip((FILE_NAME, SOURCE_TOKENIZER), tokenizers, strict=False):
        if tokenizer is not None:
            tokenizer.save(folder / name)
            checksums[name] = files.sha256(folder / name)
    manifest = replace(manifest, tokenizers=checksums)
    files.write_json(folder / MANIFEST, manifest.to_dict())
    return manifest


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


_SECONDS_TO_RESUME = 14 * 24 * 3600
"""Age of finished chunks in the cache that counts as abandoned."""


@contextlib.contextmanager
def unfinished_folder(destination: Path) -> Iterator[Path]:
    """Create or reuse the locked folder beside `destination` in which a store is made; waits for other processes.

    It stays after an interruption, so that the work can be resumed, unless it is empty.
    """
    folder = destination.with_name(f".{destination.name}.parts")
    while True:
        files.make_folder(folder.absolute())
        with (
            contextlib.suppress(BlockingIOError, FileNotFoundError),
            locks.open_folder_for_locking(folder) as descriptor,
        ):
            locks.try_lock(descriptor)
            if locks.is_same_folder(folder, descriptor):
                try:
                    yield folder
                finally:
                    with contextlib.suppress(OSError):  # it is not empty, or has its name
                        folder.rmdir()
                return
        time.sleep(0.1)


def move_into_place(unfinished: Path, destination: Path) -> None:
    """Rename a complete store to its name, replacing a folder with that name."""
    files.sync(unfinished)
    replaced = unfinished.with_name(f"{unfinished.name}-replaced")
    with contextlib.suppress(FileNotFoundError):
        destination.rename(replaced)
    unfinished.rename(destination)
    files.sync(destination.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def cache_folder(key: str, *, root: Path | None = None) -> Path:
    """Return the cache folder for a key, which need not exist; removes old unfinished folders beside it."""
    folder = (root or files.cache_root()) / "tokens" / key[:32]
    for abandoned in folder.parent.glob(".*.parts"):
        with contextlib.suppress(OSError):
            if abandoned.stat().st_mtime < time.time() - _SECONDS_TO_RESUME:
                shutil.rmtree(abandoned, ignore_errors=True)
    return folder


def hash_inputs(*inputs: Any) -> str:
    """Hash everything that prepared data depend on: contents of files, not names or times."""
    return hashlib.sha256(json.dumps([VERSION, *inputs]).encode()).hexdigest()


_HASHED_EACH_TIME = 1 << 26
"""Bytes: folders up to this size are hashed each time, which takes a tenth of a second or two."""


def verify_checksums(folder: Path, sha256: Mapping[str, str], *, advice: str = "prepare the corpus again") -> None:
    """Raise InputError if a file is missing or has another checksum.

    The cache records that a large folder was verified; it isn't hashed again while its files are unchanged.
    """
    try:
        state = {name: _file_state(folder / name) for name in sha256}
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}; {advice}") from None
    is_large = sum(size for size, *_ in state.values()) > _HASHED_EACH_TIME
    verified = {"folder": str(folder.resolve()), "sha256": dict(sha256), "files": state}
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:32]
    record = files.cache_root() / "verified" / f"{name}.json"
    with contextlib.suppress(InputError, OSError):
        if is_large and files.read_json(record) == verified:
            return
    paths = [folder / name for name in sha256]
    hashes = processes.map_on_threads(files.sha256, paths, threads=processes.available_cores())
    for name, actual in zip(sha256, hashes, strict=True):
        if actual != sha256[name]:
            raise InputError(f"{folder / name}: damaged (its checksum differs from the recorded one); {advice}")
    if is_large:
        with contextlib.suppress(OSError, InputError):  # the cache cannot be written to: it is hashed again next time
            record.parent.mkdir(parents=True, exist_ok=True)
            files.write_json(record, verified)


def _file_state(path: Path) -> list[int]:
    """Return what changes with every write to a file."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def list_changed_sources(folder: Path) -> list[str]:
    """Return the files that prepared data were made from and that differ now; not those that are gone.

    Sizes are compared, and checksums of files that are newer than the store, up to 64 MiB each.
    """
    manifest, made_at = Manifest.read(folder), (folder / MANIFEST).stat().st_mtime_ns
    return [one.path for one in (*manifest.sources, *manifest.validation_sources) if _has_changed(one, made_at)]


def _has_changed(record: SourceRecord, made_at: int) -> bool:
    path = Path(record.path)
    with contextlib.suppress(OSError, InputError):
        status = path.stat()
        if status.st_size != record.size:
            return True
        if status.st_mtime_ns > made_at and status.st_size <= _HASHED_EACH_TIME:
            return files.sha256(path) != record.sha256
    return False

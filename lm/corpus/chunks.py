"""Chunks of a corpus: each is tokenized by itself, by any process on any machine, and together they are the corpus.

Chunks follow from the files alone, never from how many processes work on them, so that the tokens don't either.

A chunk has a folder on disk that is named by its key, and is complete if it exists, so that no chunk is made twice. It
holds the tokens of the chunk, split by split, and a record with the checksums of its files.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lm import files, processes
from lm.config import options
from lm.corpus.corpus import Corpus
from lm.corpus.manifest import SplitName
from lm.errors import InputError, UsageError
from lm.text.documents import Survey, grouped, spans
from lm.text.files import FileSpan, TextFile
from lm.tokenizer.tokenizer import Tokenizer

CHUNK_BYTES = 1 << 23
"""The least size of a chunk, but the last: seconds of work, which is what an interruption can cost."""

_MOST_CHUNKS = 4096
_ALL_HASHES = 1 << 64
_KEY_VERSION = 1  # raised when the same chunk becomes other files
_OF_EXAMPLES = 2  # the same, of examples alone


@dataclass(frozen=True)
class HeldOut:
    """Which documents of a corpus are held out.

    Attributes:
        bound: those whose hash lies below it.
        boundary: instead of that, those that begin here or later, in bytes of the text of all files.
        share: instead of both, this share of few examples, which are one chunk then; it has to see all their hashes.
    """

    bound: int
    boundary: int | None = None
    share: Fraction | None = None


@dataclass(frozen=True)
class FileSection:
    """A file or part of one, which begins and ends with documents, and which of these are held out.

    Attributes:
        file: the file.
        number: of the file in the corpus; files for validation are counted after the others.
        identity: a hash of the file, and how it is read.
        size: in bytes, decompressed; of row groups about.
        held_out: which documents; a boundary is counted from the beginning of the stretch.
        span: the part of the file; None for all of it.
    """

    file: TextFile
    number: int
    identity: str
    size: int
    held_out: HeldOut
    span: FileSpan | None = None


@dataclass(frozen=True)
class Chunk:
    """Neighbouring stretches of a corpus.

    Attributes:
        stretches: in order.
        separator: the line that ends a document within a text file.
    """

    stretches: tuple[FileSection, ...]
    separator: str

    def key(self, tokenizer: str) -> str:
        """A hash of all that the tokens of the chunk depend on, given the hash of the tokenizer."""
        read = [
            [found.identity, found.number, *_settings(found.held_out), _bounds(found.span)] for found in self.stretches
        ]
        supervised = [found.file.supervised and _OF_EXAMPLES for found in self.stretches[:1]]
        described = json.dumps([_KEY_VERSION, tokenizer, self.separator, supervised, read])
        return hashlib.sha256(described.encode()).hexdigest()


def _settings(held_out: HeldOut) -> tuple[int, int | None, str]:
    return held_out.bound, held_out.boundary, str(held_out.share)


def _bounds(span: FileSpan | None) -> list[int] | None:
    return None if span is None else [span.start, span.stop]


def chunks_of(corpus: Corpus, held_out: HeldOut) -> list[Chunk]:
    """The chunks of a corpus in order, files for validation last.

    Args:
        corpus: the corpus.
        held_out: what of `corpus.files` is held out.
    """
    every = [*corpus.files, *corpus.validation_files]
    total = sum(map(_size, every))
    size = max(CHUNK_BYTES, total // _MOST_CHUNKS) if held_out.share is None else total + 1
    stretches = _stretches(corpus, held_out, size)
    groups = grouped(stretches, lambda stretch: stretch.size, limit=size)
    return [Chunk(tuple(group), corpus.config.separator) for group in groups]


def _stretches(corpus: Corpus, held_out: HeldOut, size: int) -> Iterator[FileSection]:
    position = 0
    for number, found in enumerate(corpus.files):
        if held_out.boundary is not None:
            here = HeldOut(held_out.bound, held_out.boundary - position)
            yield FileSection(found.file, number, found.identity, _size(found), here)
        else:
            yield from _divided(found, number, held_out, corpus.config.separator, size)
        position += found.bytes
    for number, found in enumerate(corpus.validation_files, len(corpus.files)):
        yield from _divided(found, number, HeldOut(_ALL_HASHES), corpus.config.separator, size)


def _size(found: Survey) -> int:
    """Bytes of a file, decompressed: at least those of its text."""
    return max(found.size, found.bytes)


def _divided(found: Survey, number: int, held_out: HeldOut, separator: str, size: int) -> Iterator[FileSection]:
    """The stretches of a file."""
    cuts: Sequence[FileSpan] | None = spans(found.file, separator, size=size)
    if cuts is None:
        yield FileSection(found.file, number, found.identity, _size(found), held_out)
        return
    share = _size(found) / cuts[-1].stop  # 1, unless spans count row groups
    for span in cuts:
        yield FileSection(found.file, number, found.identity, round((span.stop - span.start) * share), held_out, span)


_RECORD = "part.json"
_KEY_DIGITS = 32
_NEW = ".new-"

Done = Callable[[int], None]
"""Called with the bytes of text of each group that is done."""


@dataclass(frozen=True)
class ChunkSplit:
    """What a chunk adds to a split.

    Attributes:
        documents: that begin in the chunk.
        bytes: UTF-8 bytes of their text.
    """

    documents: int
    bytes: int


@dataclass(frozen=True)
class StoredChunk:
    """A chunk that is made.

    Attributes:
        folder: where its files are.
        splits: what it adds to each split.
        found: whether it was there already.
    """

    folder: Path
    splits: dict[SplitName, ChunkSplit]
    found: bool = field(default=False, compare=False)

    @property
    def bytes(self) -> int:
        """UTF-8 bytes of its text."""
        return sum(split.bytes for split in self.splits.values())

    def array(self, split: SplitName, name: str) -> npt.NDArray[Any]:
        """One of its arrays, read through mmap."""
        array: npt.NDArray[Any] = np.load(self.folder / array_name(split, name), mmap_mode="r")
        return array


class ChunkWriter(Protocol):
    """Writes the arrays of a chunk into an empty folder, and says what it adds to each split."""

    def __call__(
        self, chunk: Chunk, tokenizer: Tokenizer, folder: Path, done: Done | None
    ) -> dict[SplitName, ChunkSplit]:
        """Call `done`, if there is one, whenever a group of texts is written."""
        ...


def array_name(split: SplitName, name: str) -> str:
    """The file name of an array of a chunk."""
    return f"{split}-{name}.npy"


def chunk_name(chunk: Chunk, tokenizer: str) -> str:
    """The name of a chunk's folder, given the hash of the tokenizer."""
    return chunk.key(tokenizer)[:_KEY_DIGITS]


def stored_chunks(
    chunks: Sequence[Chunk],
    tokenizer: Tokenizer,
    write: ChunkWriter,
    *,
    folder: Path,
    saved: Path,
    workers: int | None = None,
    done: Done | None = None,
) -> Iterator[StoredChunk]:
    """The chunks in order, each found in a folder or made there.

    Args:
        chunks: of a corpus.
        tokenizer: what makes the tokens.
        write: what writes a chunk.
        folder: of the chunks' folders.
        saved: the file of the tokenizer.
        workers: how many processes [default: as many as there are processors].
        done: called as text is done; where there are several processes, chunk by chunk.

    Raises:
        InputError: the tokenizer has no token for a character, or a process was killed.
    """
    _remove_begun(folder)
    cores = processes.cores()
    used = max(1, min(workers or cores, len(chunks)))
    if used == 1:
        for chunk in chunks:
            yield _find_or_make(chunk, write=write, tokenizer=tokenizer, folder=folder, done=done)
        return
    work = partial(_find_or_make, write=write, tokenizer=saved, folder=folder)
    threads = {"RAYON_NUM_THREADS": str(max(1, cores // used))}
    try:
        for stored in processes.in_order(work, chunks, processes=used, environment=threads):
            yield stored
            if done:
                done(stored.bytes)
    finally:
        _remove_begun(folder)


def _remove_begun(folder: Path) -> None:
    """Remove what a process that was killed has begun."""
    for begun in folder.glob(f"*{_NEW}*"):
        shutil.rmtree(begun, ignore_errors=True)


def _find_or_make(
    chunk: Chunk, *, write: ChunkWriter, tokenizer: Tokenizer | Path, folder: Path, done: Done | None = None
) -> StoredChunk:
    loaded = _loaded(tokenizer) if isinstance(tokenizer, Path) else tokenizer
    name = chunk_name(chunk, loaded.sha256)
    if (found := find_chunk(folder / name)) is not None:
        if done:
            done(found.bytes)
        return found
    new = folder / f"{name}{_NEW}{secrets.token_hex(4)}"
    new.mkdir()
    try:
        splits = write(chunk, loaded, new, done)
        _write_record(new, splits)
        if (folder / name).exists():  # and is damaged
            shutil.rmtree(folder / name)
        new.rename(folder / name)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return StoredChunk(folder / name, splits)


@cache
def _loaded(path: Path) -> Tokenizer:
    return Tokenizer.load(path)


def _write_record(folder: Path, splits: Mapping[SplitName, ChunkSplit]) -> None:
    sums = {path.name: files.sha256(path) for path in folder.iterdir()}
    described = {split: asdict(record) for split, record in splits.items()}
    (folder / _RECORD).write_text(json.dumps({"splits": described, "sha256": sums}))  # sums tell whether all is there


def find_chunk(folder: Path) -> StoredChunk | None:
    """The chunk in a folder, if all its files are as they were written."""
    try:
        record = files.read_json(folder / _RECORD)
        whole = all(files.sha256(folder / name) == expected for name, expected in record["sha256"].items())
        splits = {split: options.build(ChunkSplit, values, where=split) for split, values in record["splits"].items()}
    except (InputError, UsageError, OSError, KeyError, TypeError, AttributeError):
        return None
    return StoredChunk(folder, splits, found=True) if whole else None


def read_array(array: npt.NDArray[Any], *, block: int = 1 << 20) -> Iterator[npt.NDArray[Any]]:
    """An array in blocks, so that little of it is in memory at a time."""
    for start in range(0, len(array), block):
        yield array[start : start + block]

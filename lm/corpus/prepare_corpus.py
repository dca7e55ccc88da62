"""Tokenize a corpus of text or examples into a folder, chunk by chunk, or find it there."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import secrets
import shutil
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Protocol

import numpy as np

from lm import processes
from lm.config.data import DataConfig
from lm.corpus import repetition
from lm.corpus.manifest import MANIFEST, SPLITS, DataKind, Manifest, SourceRecord, SplitName, SplitRecord
from lm.corpus.prepared_folder import (
    Preparation,
    PreparedFolder,
    cache_folder,
    hash_inputs,
    remove_abandoned,
    remove_leftover_parts,
    resumable_folder,
)
from lm.corpus.repetition import TokenizedDocuments
from lm.corpus.shards import (
    ArrayWriter,
    ChunkSplit,
    ShardWriter,
    StoredChunk,
    TokenShards,
    WrittenShards,
    array_file_name,
    load_chunk,
    merged_splits,
    read_in_blocks,
    read_manifest,
    token_dtype,
    write_chunk_record,
)
from lm.corpus.text_corpus import (
    BytesCallback,
    Chunk,
    ChunkInput,
    Corpus,
    HeldOutRule,
    chunk_name,
    compute_hash_bound,
    hash_text,
    split_at,
    split_into_chunks,
    write_splits,
)
from lm.corpus.tokenized_conversations import (
    HELD_OUT_FILE,
    holds_conversations,
    merge_conversation_chunks,
    write_conversation_chunk,
)
from lm.corpus.tokenized_examples import (
    LABELS_FILE,
    choose_held_out_examples,
    merge_example_chunks,
    write_example_chunk,
)
from lm.errors import InputError
from lm.text import documents
from lm.text.documents import FileSummary, TextPiece
from lm.text.text_files import ProgressCallback
from lm.tokenizer.chat_template import CONFIG_FILE
from lm.tokenizer.tokenizer import FILE_NAME, Ids, Tokenizer, split_into_pieces

_TOKEN_FILES = re.compile(
    r"(train|validation)-\w+\.npy|"
    + "|".join(map(re.escape, (MANIFEST, FILE_NAME, CONFIG_FILE, LABELS_FILE, HELD_OUT_FILE)))
)
"""The names of the files in a folder of prepared tokens."""


class ChunkWriter(Protocol):
    """Tokenizes a chunk into an empty folder, and returns what it adds to each split."""

    def __call__(
        self, chunk: Chunk, tokenizer: Tokenizer, folder: Path, done: BytesCallback | None
    ) -> dict[SplitName, ChunkSplit]:
        """Write the chunk; calls `done`, if given, with the bytes of each group of texts."""
        ...


@dataclass(frozen=True)
class PreparationStages:
    """The steps for a kind of data.

    Attributes:
        held_out: chooses the held-out documents.
        join: merges all chunks, in order, into shards in an empty folder.
    """

    held_out: Callable[[Corpus], HeldOutRule]
    write: ChunkWriter
    join: Callable[[Iterable[StoredChunk], Tokenizer, Path], WrittenShards]


def select_stages(kind: DataKind) -> PreparationStages:
    if kind == "conversations":
        return PreparationStages(choose_held_out_examples, write_conversation_chunk, merge_conversation_chunks)
    if kind == "examples":
        return PreparationStages(choose_held_out_examples, write_example_chunk, merge_example_chunks)
    return PreparationStages(choose_held_out_text, write_text_chunk, merge_text_chunks)


def find_kind(corpus: Corpus) -> DataKind:
    """Return the kind of data that a corpus becomes; InputError if some files hold conversations and others not."""
    if holds_conversations(corpus):
        return "conversations"
    return "examples" if corpus.config.supervised else "text"


@dataclass(frozen=True)
class PreparationInputs:
    """What tokens are made from, apart from the tokenizer."""

    key: str
    config: DataConfig
    kind: DataKind
    name: str
    bytes: int
    sources: tuple[SourceRecord, ...]
    validation_sources: tuple[SourceRecord, ...]

    @classmethod
    def from_corpus(cls, corpus: Corpus, tokenizer: Tokenizer) -> PreparationInputs:
        contents = [[summary.identity for summary in group] for group in (corpus.files, corpus.validation_files)]
        key = hash_inputs(tokenizer.sha256, corpus.config.separator, str(corpus.fraction), *contents)
        sources = _source_records(corpus.files), _source_records(corpus.validation_files)
        return cls(key, corpus.config, find_kind(corpus), corpus.name, corpus.bytes, *sources)

    def manifest(self, written: WrittenShards, tokenizer: Tokenizer) -> Manifest:
        """Build the manifest; InputError if no tokens are left to train on."""
        config = self.config
        if not written.splits["train"].tokens:
            raise InputError(
                f"no text is left to train on: validation {config.validation} takes all", settings=["validation"]
            )
        return Manifest(
            key=self.key,
            tokenizer=tokenizer.sha256,
            vocab_size=tokenizer.vocab_size,
            dtype=token_dtype(tokenizer.vocab_size),
            separator=config.separator,
            validation=config.validation,
            kind=self.kind,
            sources=self.sources,
            validation_sources=self.validation_sources,
            splits=written.splits,
            repetition=written.repetition,
            text_column=config.text_column,
            label_column=config.label_column,
            keep_line_ends=config.keep_line_ends,
            strip_gutenberg=config.strip_gutenberg,
            labels=written.labels,
        )


def _source_records(surveys: Sequence[FileSummary]) -> tuple[SourceRecord, ...]:
    return tuple(SourceRecord(summary.file.name, summary.size, summary.sha256, summary.read_as) for summary in surveys)


def prepare_corpus(
    corpus: Corpus,
    tokenizer: Tokenizer,
    *,
    folder: Path | None = None,
    force: bool = False,
    root: Path | None = None,
    processes: int | None = None,
    progress: ProgressCallback | None = None,
) -> PreparedFolder[Manifest]:
    """Tokenize a corpus of text or examples into a folder, or load it."""
    preparation = select_stages(find_kind(corpus))
    held_out = preparation.held_out(corpus)

    def stored(unfinished: Path, saved: Path) -> Iterator[StoredChunk]:
        chunks, done = split_into_chunks(corpus, held_out), accumulate_progress(progress, corpus.bytes)
        yield from tokenize_chunks(
            chunks, tokenizer, preparation.write, folder=unfinished, saved=saved, workers=processes, done=done
        )

    origin = PreparationInputs.from_corpus(corpus, tokenizer)
    return merge_chunks(origin, tokenizer, stored, folder=folder, force=force, root=root)


def accumulate_progress(progress: ProgressCallback | None, total: int) -> BytesCallback | None:
    """Return a function that adds up bytes and reports progress."""
    done = 0

    def add(more: int) -> None:
        nonlocal done
        done += more
        if progress:
            progress(done, total)

    return add if progress else None


def merge_chunks(
    origin: PreparationInputs,
    tokenizer: Tokenizer,
    stored: Callable[[Path, Path], Iterator[StoredChunk]],
    *,
    folder: Path | None = None,
    force: bool = False,
    root: Path | None = None,
) -> PreparedFolder[Manifest]:
    """Load a folder of tokens, or merge it from chunks."""
    destination = folder or cache_folder("tokens", origin.key, root=root)
    n_reused = 0
    with contextlib.ExitStack() as stack:  # until the folder has its name, what is finished stays

        def make(partial: Path) -> Manifest:
            nonlocal n_reused
            unfinished = stack.enter_context(resumable_folder(destination.resolve()))
            tokenizer.save(partial / FILE_NAME)
            chunks = _ChunkCounter(stored(unfinished, partial / FILE_NAME))
            written = select_stages(origin.kind).join(chunks, tokenizer, partial)
            if chunks.bytes != origin.bytes:
                shutil.rmtree(unfinished)
                raise InputError(f"{origin.name}: the corpus changed while it was read; try again")
            n_reused = chunks.reused
            return origin.manifest(written, tokenizer)

        preparation = Preparation(origin.key, read_manifest, make)
        damage = complete = None
        try:
            complete = preparation.check(destination)
        except InputError as error:
            damage = error
        if complete is not None:
            remove_leftover_parts(destination.resolve())
        elif folder is not None:
            _refuse_other_files(folder, force=force, damage=damage)
            remove_abandoned(folder.resolve().parent, folder.resolve().name)
        return dataclasses.replace(preparation.load_or_prepare(destination), chunks_reused=n_reused)


class _ChunkCounter:
    """Counts chunks as they come."""

    def __init__(self, chunks: Iterator[StoredChunk]) -> None:
        self._chunks = chunks
        self.bytes = self.reused = 0

    def __iter__(self) -> Iterator[StoredChunk]:
        for chunk in self._chunks:
            yield chunk
            self.bytes += chunk.bytes
            self.reused += chunk.is_reused


def _refuse_other_files(folder: Path, *, force: bool, damage: InputError | None) -> None:
    """Raise InputError if a folder holds anything but prepared tokens, or these without `force`."""
    present = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if present and not (MANIFEST in present and all(map(_TOKEN_FILES.fullmatch, present))):
        raise InputError(f"{folder}: already exists, and holds no prepared tokens; choose another folder")
    if present and not force and damage is not None:
        raise InputError(str(damage), settings=["force"])
    if present and not force:
        problem = f"{folder}: holds other tokens already; choose another folder, or replace them"
        raise InputError(problem, settings=["force"])


_INCOMPLETE_PREFIX = ".new-"


def tokenize_chunks(
    chunks: Sequence[Chunk],
    tokenizer: Tokenizer,
    write: ChunkWriter,
    *,
    folder: Path,
    saved: Path,
    workers: int | None = None,
    done: BytesCallback | None = None,
) -> Iterator[StoredChunk]:
    """Yield the chunks in order, loaded from a folder or tokenized into it.

    Args:
        saved: the tokenizer's file.
        workers: number of processes [default: one per processor].
        done: called with the bytes done; by several processes, chunk by chunk.

    Raises:
        InputError: a character has no token, or a process was killed.
    """
    _remove_incomplete(folder)
    cores = processes.available_cores()
    used = max(1, min(workers or cores, len(chunks)))
    if used == 1:
        for chunk in chunks:
            yield _load_or_tokenize(chunk, write=write, tokenizer=tokenizer, folder=folder, done=done)
        return
    work = partial(_load_or_tokenize, write=write, tokenizer=saved, folder=folder)
    threads = {"RAYON_NUM_THREADS": str(max(1, cores // used))}
    try:
        for stored in processes.map_in_processes(work, chunks, processes=used, environment=threads):
            yield stored
            if done:
                done(stored.bytes)
    finally:
        _remove_incomplete(folder)


def _remove_incomplete(folder: Path) -> None:
    """Remove incomplete chunks of killed processes."""
    for incomplete in folder.glob(f"*{_INCOMPLETE_PREFIX}*"):
        shutil.rmtree(incomplete, ignore_errors=True)


def _load_or_tokenize(
    chunk: Chunk, *, write: ChunkWriter, tokenizer: Tokenizer | Path, folder: Path, done: BytesCallback | None = None
) -> StoredChunk:
    loaded = _load_tokenizer(tokenizer) if isinstance(tokenizer, Path) else tokenizer
    name = chunk_name(chunk, loaded.sha256)
    if (stored := load_chunk(folder / name)) is not None:
        if done:
            done(stored.bytes)
        return stored
    new = folder / f"{name}{_INCOMPLETE_PREFIX}{secrets.token_hex(4)}"
    new.mkdir()
    try:
        splits = write(chunk, loaded, new, done)
        write_chunk_record(new, splits)
        if (folder / name).exists():  # and is damaged
            shutil.rmtree(folder / name)
        new.rename(folder / name)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return StoredChunk(folder / name, splits)


@cache
def _load_tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.load(path)


_HASHED_CHARACTERS = 1 << 14
_TOKENS, _EDGES = "tokens", "edges"


@dataclass(frozen=True, slots=True)
class SplitPiece:
    """A piece of a document with its split and file."""

    split: SplitName
    location: str
    piece: TextPiece

    @property
    def texts(self) -> tuple[str]:
        return (self.piece.text,)


def choose_held_out_text(corpus: Corpus) -> HeldOutRule:
    """Return which documents of running text are held out.

    With a fraction, a document is held out if a hash of its first 16,384 characters is below it, so that it stays in
    its split when others are added. If documents are too few or too large for that to hold out about the fraction of
    the bytes, the end of each file is held out, where a new document begins.
    """
    by_hash = not corpus.fraction or (not corpus.has_few_documents and corpus.is_split_evenly)
    return HeldOutRule(compute_hash_bound(corpus.fraction), end=None if by_hash else corpus.fraction)


def read_split_pieces(chunk_input: ChunkInput, separator: str, tokenizer: Tokenizer) -> Iterator[SplitPiece]:
    """Yield the pieces of an input with their splits; each document is in one split."""
    bound, boundary = chunk_input.held_out.bound, chunk_input.boundary
    pieces: Iterable[TextPiece] = documents.read_pieces(chunk_input.file, separator, file_range=chunk_input.file_range)
    if boundary is not None:
        pieces = split_at(pieces, boundary)

    def is_held_out(piece: TextPiece) -> bool:
        return hash_text(piece.text[:_HASHED_CHARACTERS]) < bound if boundary is None else position >= boundary

    position = 0
    split: SplitName = "train"
    for piece in split_into_pieces(pieces, tokenizer):
        if piece.starts_document:
            split = "validation" if is_held_out(piece) else "train"
        position += len(piece.text.encode())
        yield SplitPiece(split, chunk_input.file.name, piece)


def write_text_chunk(
    chunk: Chunk, tokenizer: Tokenizer, folder: Path, done: BytesCallback | None
) -> dict[SplitName, ChunkSplit]:
    """Tokenize a chunk of running text into an empty folder, with the document boundaries.

    Each document is written as its tokens after the start token. If that is not also the end token, an end token
    follows each document but the last; if it is, the start token of the next document ends the previous one. The end
    token of a split is added when chunks are merged.
    """

    def encode(group: Sequence[SplitPiece]) -> list[Ids]:
        tokens = tokenizer.encode_batch([item.piece.context + item.piece.text for item in group])
        return [ids[item.piece.context_tokens :] for item, ids in zip(group, tokens, strict=True)]

    items = (
        item for chunk_input in chunk.inputs for item in read_split_pieces(chunk_input, chunk.separator, tokenizer)
    )
    return write_splits(items, encode, partial(_TextChunkWriter, folder, tokenizer), done)


class _DocumentFrame:
    """The special tokens around documents.

    Attributes:
        start: before each document.
        between: after each document that is followed by another.
        end: after the last document.
        own_start: how many tokens of `start` belong to the document they start: all, if there is a separate end token,
            else none, for they end the previous one.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        start, end = tokenizer.start_of_text, tokenizer.end_of_text
        self.start = np.array([] if start is None else [start], dtype=np.uint32)
        self.end = np.array([] if end is None else [end], dtype=np.uint32)
        self.between = self.end[:0] if start == end else self.end
        self.own_start = 0 if start == end else len(self.start)


class _TextChunkWriter:
    """Writes what a chunk adds to one split."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, split: SplitName) -> None:
        dtype, path = token_dtype(tokenizer.vocab_size), folder / array_file_name(split, _TOKENS)
        self._tokens = ArrayWriter(path, dtype=dtype, lasting=False)
        self._edges = ArrayWriter(folder / array_file_name(split, _EDGES), dtype="int64", lasting=False)
        self._frame = _DocumentFrame(tokenizer)
        self._begins = array("q")
        self._bytes = 0

    def add(self, item: SplitPiece, ids: Ids) -> None:
        piece = item.piece
        if piece.starts_document:
            if self._begins:
                self._tokens.append(self._frame.between)
            self._tokens.append(self._frame.start)
            self._begins.append(len(self._tokens) - self._frame.own_start)
        self._tokens.append(ids)
        self._bytes += len(piece.text.encode())

    def close(self) -> ChunkSplit:
        self._edges.append(np.array(self._begins, dtype=np.int64))
        for writer in (self._tokens, self._edges):
            writer.close()
        return ChunkSplit(len(self._begins), self._bytes)

    def discard(self) -> None:
        for writer in (self._tokens, self._edges):
            writer.discard()


def merge_text_chunks(chunks: Iterable[StoredChunk], tokenizer: Tokenizer, folder: Path) -> WrittenShards:
    with merged_splits(chunks, partial(_SplitMerger, folder, tokenizer)) as splits:
        train, held_out = (
            TokenizedDocuments(
                TokenShards(folder, split, splits[split], mapped=False),
                np.load(folder / array_file_name(split, _EDGES), mmap_mode="r"),
            )
            for split in SPLITS
        )
        window = repetition.count_window_tokens(tokens=splits["train"].tokens, text_bytes=splits["train"].bytes)
        repeated = repetition.measure_repetition(
            train, held_out, vocab_size=tokenizer.vocab_size, window=window, folder=folder
        )
        return WrittenShards(splits, repeated)


class _SplitMerger:
    """Merges one split of all chunks.

    A temporary file has where each document begins and, when closed, where the last one ends. A start token belongs to
    its document if there is a separate end token; else the next start token, which ends it, does.
    """

    def __init__(self, folder: Path, tokenizer: Tokenizer, split: SplitName) -> None:
        self._split: SplitName = split
        self._shards = ShardWriter(folder, split, dtype=token_dtype(tokenizer.vocab_size))
        self._frame = _DocumentFrame(tokenizer)
        self._edges = folder / array_file_name(split, _EDGES)
        self._begins = ArrayWriter(self._edges, dtype="int64", lasting=False)
        self._tokens = self._bytes = 0

    def add(self, chunk: StoredChunk) -> None:
        if not chunk.splits[self._split].documents:
            return
        if len(self._begins):
            self._append(self._frame.between)
        for edges in read_in_blocks(chunk.array(self._split, _EDGES)):
            self._begins.append(edges + self._tokens)
        for ids in read_in_blocks(chunk.array(self._split, _TOKENS)):
            self._append(ids)
        self._bytes += chunk.splits[self._split].bytes

    def close(self) -> SplitRecord:
        documents = len(self._begins)
        if documents:
            self._append(self._frame.end)
        self._shards.close()
        self._begins.append(np.array([self._tokens]))
        self._begins.close()
        return SplitRecord(documents, self._tokens, self._bytes, tuple(self._shards.shards))

    def _append(self, ids: Ids) -> None:
        self._shards.append(ids)
        self._tokens += len(ids)

    def discard(self) -> None:
        self._shards.discard()
        self._begins.discard()
        self._edges.unlink(missing_ok=True)

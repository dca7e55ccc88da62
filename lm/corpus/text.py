"""From running text to token shards: documents one after another, each in the split that it belongs to."""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from lm.corpus import repetition
from lm.corpus.chunks import Chunk, ChunkSplit, Done, FileSection, HeldOut, StoredChunk, array_name, read_array
from lm.corpus.corpus import Corpus, divided_at, encoded_ahead, hash_bound, text_bytes, text_hash
from lm.corpus.manifest import SPLITS, Repetition, SplitName, SplitRecord
from lm.corpus.repetition import Documents
from lm.corpus.shards import ArrayWriter, ShardWriter, Tokens, WrittenTokens, token_dtype
from lm.text import documents
from lm.text.documents import Fragment
from lm.tokenizer.pieces import Piece, pieces
from lm.tokenizer.tokenizer import Ids, Tokenizer

_HASHED_CHARACTERS = 1 << 14
_TOKENS, _EDGES = "tokens", "edges"


@dataclass(frozen=True, slots=True)
class SplitPiece:
    """A piece of a document, the split it belongs to, and the file it is from."""

    split: SplitName
    place: str
    piece: Piece

    @property
    def texts(self) -> tuple[str]:
        """The text of the piece."""
        return (self.piece.text,)


def held_out_text(corpus: Corpus) -> HeldOut:
    """Which documents of a corpus of running text are held out.

    With a fraction, a document is held out if a hash of its first 16,384 characters falls below it; or, where there
    are few documents, if it begins at or beyond the boundary, which ends the document that it falls into.
    """
    few = corpus.fraction and corpus.has_few_documents
    boundary = int(corpus.files_bytes * (1 - corpus.fraction)) if few else None
    return HeldOut(hash_bound(corpus.fraction), boundary)


def split_pieces(stretch: FileSection, separator: str, tokenizer: Tokenizer) -> Iterator[SplitPiece]:
    """All pieces of a stretch of a corpus with the splits they belong to; each document belongs to one."""
    bound, boundary = stretch.held_out.bound, stretch.held_out.boundary
    fragments: Iterable[Fragment] = documents.fragments(stretch.file, separator, span=stretch.span)
    if boundary is not None:
        fragments = divided_at(fragments, boundary)

    def is_held_out(piece: Piece) -> bool:
        return text_hash(piece.text[:_HASHED_CHARACTERS]) < bound if boundary is None else position >= boundary

    position = 0
    split: SplitName = "train"
    for piece in pieces(fragments, tokenizer):
        if piece.starts_document:
            split = "validation" if is_held_out(piece) else "train"
        position += len(piece.text.encode())
        yield SplitPiece(split, stretch.file.name, piece)


def write_text(chunk: Chunk, tokenizer: Tokenizer, folder: Path, done: Done | None) -> dict[SplitName, ChunkSplit]:
    """Write the tokens of a chunk of running text, and where its documents begin, into an empty folder.

    Each document is written as its tokens after the tokenizer's start-of-text token. Where that is not also the
    end-of-text token, the latter stands between documents; where it is, the start token of the next document ends the
    one before. The token that ends a split is not a chunk's.
    """
    with contextlib.ExitStack() as opened:
        writers = {split: _ChunkWriter(folder, split, tokenizer) for split in SPLITS}
        for writer in writers.values():
            opened.callback(writer.discard)
        items = (item for found in chunk.stretches for item in split_pieces(found, chunk.separator, tokenizer))
        for group, tokens in encoded_ahead(items, partial(_encode, tokenizer)):
            for item, ids in zip(group, tokens, strict=True):
                writers[item.split].add(item.piece, ids)
            if done:
                done(sum(map(text_bytes, group)))
        return {split: writer.close() for split, writer in writers.items()}


def _encode(tokenizer: Tokenizer, group: Sequence[SplitPiece]) -> list[Ids]:
    tokens = tokenizer.encode_batch([item.piece.context + item.piece.text for item in group])
    return [ids[item.piece.context_tokens :] for item, ids in zip(group, tokens, strict=True)]


class _Frame:
    """The tokens around documents.

    Attributes:
        start: before each document.
        between: after each document that another one follows, before the start of that.
        end: after the last document.
        own_start: how many tokens of `start` belong to the document that they start: all, if it has an end token of its
            own; else none, for they end the one before.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        start, end = tokenizer.start_of_text, tokenizer.end_of_text
        self.start = np.array([] if start is None else [start], dtype=np.uint32)
        self.end = np.array([] if end is None else [end], dtype=np.uint32)
        self.between = self.end[:0] if start == end else self.end
        self.own_start = 0 if start == end else len(self.start)


class _ChunkWriter:
    """Writes what a chunk adds to one split."""

    def __init__(self, folder: Path, split: SplitName, tokenizer: Tokenizer) -> None:
        dtype, path = token_dtype(tokenizer.vocab_size), folder / array_name(split, _TOKENS)
        self._tokens = ArrayWriter(path, dtype=dtype, lasting=False)
        self._edges = ArrayWriter(folder / array_name(split, _EDGES), dtype="int64", lasting=False)
        self._frame = _Frame(tokenizer)
        self._begins = array("q")
        self._bytes = 0

    def add(self, piece: Piece, ids: Ids) -> None:
        """Write a piece, given its tokens."""
        if piece.starts_document:
            if self._begins:
                self._tokens.append(self._frame.between)
            self._tokens.append(self._frame.start)
            self._begins.append(len(self._tokens) - self._frame.own_start)
        self._tokens.append(ids)
        self._bytes += len(piece.text.encode())

    def close(self) -> ChunkSplit:
        """Finish the arrays."""
        self._edges.append(np.array(self._begins, dtype=np.int64))
        for writer in (self._tokens, self._edges):
            writer.close()
        return ChunkSplit(len(self._begins), self._bytes)

    def discard(self) -> None:
        """Close files that are still open because writing has failed."""
        for writer in (self._tokens, self._edges):
            writer.discard()


def join_text(chunks: Iterable[StoredChunk], tokenizer: Tokenizer, folder: Path) -> WrittenTokens:
    """Write the shards of running text of both splits, given all chunks in order."""
    with contextlib.ExitStack() as opened:
        joined = {split: _JoinedSplit(folder, split, tokenizer) for split in SPLITS}
        for split in joined.values():
            opened.callback(split.remove)
        for chunk in chunks:
            for split in joined.values():
                split.add(chunk)
        splits: dict[str, SplitRecord] = {name: split.close() for name, split in joined.items()}
        return WrittenTokens(splits, _repetition(folder, joined, splits, tokenizer))


class _JoinedSplit:
    """One split of all chunks.

    Attributes:
        edges: a file of where each document begins and, when closed, where the last one ends. A start token belongs to
            its document if it has an end token of its own; else the next start token, which ends it, does.
    """

    def __init__(self, folder: Path, split: SplitName, tokenizer: Tokenizer) -> None:
        self._split: SplitName = split
        self._shards = ShardWriter(folder, split, dtype=token_dtype(tokenizer.vocab_size))
        self._frame = _Frame(tokenizer)
        self.edges = folder / array_name(split, _EDGES)
        self._begins = ArrayWriter(self.edges, dtype="int64", lasting=False)
        self._tokens = self._bytes = 0

    def add(self, chunk: StoredChunk) -> None:
        """Write what a chunk adds."""
        if not chunk.splits[self._split].documents:
            return
        if len(self._begins):
            self._append(self._frame.between)
        for edges in read_array(chunk.array(self._split, _EDGES)):
            self._begins.append(edges + self._tokens)
        for ids in read_array(chunk.array(self._split, _TOKENS)):
            self._append(ids)
        self._bytes += chunk.splits[self._split].bytes

    def close(self) -> SplitRecord:
        """Finish the shards; they are on disk when this returns."""
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

    def remove(self) -> None:
        """Remove what does not stay; close a file that is still open because writing has failed."""
        self._shards.discard()
        self._begins.discard()
        self.edges.unlink(missing_ok=True)


def _repetition(
    folder: Path, joined: Mapping[SplitName, _JoinedSplit], splits: Mapping[str, SplitRecord], tokenizer: Tokenizer
) -> Repetition:
    train, held_out = (
        Documents(Tokens(folder, split, splits[split], mapped=False), np.load(joined[split].edges, mmap_mode="r"))
        for split in SPLITS
    )
    stretch = repetition.stretch_tokens(tokens=splits["train"].tokens, text_bytes=splits["train"].bytes)
    return repetition.measure(train, held_out, vocab_size=tokenizer.vocab_size, stretch=stretch, folder=folder)

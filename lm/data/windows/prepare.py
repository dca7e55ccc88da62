"""From running text to token shards: documents one after another, each in the split that it belongs to."""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from lm.data.array_writer import token_dtype
from lm.data.corpus import Corpus
from lm.data.held_out import divided_at, hash_bound, text_hash
from lm.data.manifest import SPLITS, Repetition, SplitName, SplitRecord
from lm.data.prepare import WrittenTokens
from lm.data.shards import ShardWriter, Tokens
from lm.data.tokenizing import encoded
from lm.data.windows import repetition
from lm.data.windows.repetition import Documents
from lm.text import documents
from lm.text.documents import Fragment
from lm.text.files import Progress
from lm.tokenizer.pieces import Piece, pieces
from lm.tokenizer.tokenizer import Ids, Tokenizer

_HASHED_CHARACTERS = 1 << 14


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


def split_pieces(corpus: Corpus, tokenizer: Tokenizer) -> Iterator[SplitPiece]:
    """All pieces of a corpus with the splits they belong to; each document belongs to one.

    With a fraction, a document is held out if a hash of its first 16,384 characters falls below it; or, where there
    are few documents, if it begins at or beyond the boundary, which ends the document that it falls into.
    """
    boundary, bound = _boundary(corpus), hash_bound(corpus.fraction)

    def is_held_out(piece: Piece) -> bool:
        return text_hash(piece.text[:_HASHED_CHARACTERS]) < bound if boundary is None else position >= boundary

    position = 0
    for found in corpus.files:
        fragments: Iterable[Fragment] = documents.fragments(found.file, corpus.config.separator)
        if boundary is not None:
            fragments = divided_at(fragments, boundary - position)
        split: SplitName = "train"
        for piece in pieces(fragments, tokenizer):
            if piece.starts_document:
                split = "validation" if is_held_out(piece) else "train"
            position += len(piece.text.encode())
            yield SplitPiece(split, found.file.name, piece)
    for found in corpus.validation_files:
        for piece in pieces(documents.fragments(found.file, corpus.config.separator), tokenizer):
            yield SplitPiece("validation", found.file.name, piece)


def _boundary(corpus: Corpus) -> int | None:
    """Where validation begins, in bytes of text, if the end of the text is held out."""
    if not corpus.fraction or not corpus.has_few_documents:
        return None
    return int(corpus.files_bytes * (1 - corpus.fraction))


def write_text(corpus: Corpus, tokenizer: Tokenizer, progress: Progress | None, folder: Path) -> WrittenTokens:
    """Write the shards of running text of both splits into an empty folder.

    Each document is written as its tokens after the tokenizer's start-of-text token. Where that is not also the
    end-of-text token, the latter follows; where it is, the start token of the next document ends the one before, and
    another start token ends the split. The arguments and errors are those of `lm.data.kinds.prepare_corpus`.
    """
    with contextlib.ExitStack() as opened:
        writers = {split: _SplitWriter(folder, split, tokenizer) for split in SPLITS}
        for writer in writers.values():
            opened.callback(writer.discard)
        items = split_pieces(corpus, tokenizer)
        for group, tokens in encoded(corpus, items, partial(_encode, tokenizer), progress=progress):
            for item, ids in zip(group, tokens, strict=True):
                writers[item.split].add(item.piece, ids)
        splits: dict[str, SplitRecord] = {split: writer.close() for split, writer in writers.items()}
        return WrittenTokens(splits, _repetition(folder, writers, splits, tokenizer))


def _encode(tokenizer: Tokenizer, group: Sequence[SplitPiece]) -> list[Ids]:
    tokens = tokenizer.encode_batch([item.piece.context + item.piece.text for item in group])
    return [ids[item.piece.context_tokens :] for item, ids in zip(group, tokens, strict=True)]


def _repetition(
    folder: Path, writers: Mapping[SplitName, _SplitWriter], splits: Mapping[str, SplitRecord], tokenizer: Tokenizer
) -> Repetition:
    train, held_out = (
        Documents(Tokens(folder, split, splits[split]), np.array(writers[split].edges)) for split in SPLITS
    )
    stretch = repetition.stretch_tokens(tokens=splits["train"].tokens, text_bytes=splits["train"].bytes)
    return repetition.measure(train, held_out, vocab_size=tokenizer.vocab_size, stretch=stretch)


class _SplitWriter:
    """Writes the documents of one split, with the tokens that start and end each.

    Attributes:
        edges: where each document begins and, when closed, where the last one ends. A start token belongs to its
            document if it has an end token of its own; else the next start token, which ends it, does.
    """

    def __init__(self, folder: Path, split: SplitName, tokenizer: Tokenizer) -> None:
        self._shards = ShardWriter(folder, split, dtype=token_dtype(tokenizer.vocab_size))
        start, end = tokenizer.start_of_text, tokenizer.end_of_text
        self._start = np.array([] if start is None else [start], dtype=np.uint32)
        self._end = np.array([] if end is None else [end], dtype=np.uint32)
        self._between = self._start if start == end else np.concatenate([self._end, self._start])
        self._documents = self._tokens = self._bytes = 0
        self._own_start = 0 if start == end else len(self._start)
        self.edges = array("q")

    def add(self, piece: Piece, ids: Ids) -> None:
        """Write a piece, given its tokens."""
        if piece.starts_document:
            self._append(self._between if self._documents else self._start)
            self._documents += 1
            self.edges.append(self._tokens - self._own_start)
        self._append(ids)
        self._bytes += len(piece.text.encode())

    def close(self) -> SplitRecord:
        """Finish the shards; they are on disk when this returns."""
        if self._documents:
            self._append(self._end)
        self._shards.close()
        self.edges.append(self._tokens)
        return SplitRecord(self._documents, self._tokens, self._bytes, tuple(self._shards.shards))

    def _append(self, ids: Ids) -> None:
        self._shards.append(ids)
        self._tokens += len(ids)

    def discard(self) -> None:
        """Close a file that is still open because writing has failed."""
        self._shards.discard()

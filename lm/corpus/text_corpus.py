"""A scanned corpus: statistics, held-out split, tokenizer training, and division into chunks.

Texts are held out for validation by hashes, so that equal texts are in the same split; what is hashed depends on the
kind of data. If that divides running text unevenly, as with few documents, the end of each file is held out instead.

Chunks are tokenized independently, by any process on any machine. They depend on the files alone, not on the number of
processes, so neither do the tokens.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Protocol, TypeVar

from lm import processes
from lm.config.data import DataConfig
from lm.config.tokenizer import END_OF_TEXT, MASK, TokenizerConfig
from lm.corpus.manifest import SPLITS, SplitName
from lm.corpus.shards import ChunkSplit
from lm.errors import Advice, InputError, UsageError
from lm.processes import map_on_threads
from lm.text import documents
from lm.text.documents import FileSummary, TextPiece, group_by_size, split_into_ranges
from lm.text.rows import FIELD, list_label_fields
from lm.text.text_files import (
    FileRange,
    ProgressCallback,
    TextFile,
    are_conversations,
    drop_unreadable,
    find_text_files,
    try_to_read,
)
from lm.tokenizer.tokenizer import Tokenizer, split_into_pieces
from lm.tokenizer.training import load_or_train

_MANY_ESCAPES = 10
FEW_DOCUMENTS = 100
"""With fewer documents, examples or pairs, hashes split them too unevenly."""


def parse_held_out_fraction(validation: str) -> Fraction | None:
    """Return the fraction in `--validation`; None if it names files.

    Raises:
        UsageError: it is not in [0, 1).
    """
    try:
        fraction = Fraction(validation)
    except (ValueError, ZeroDivisionError):
        return None
    if not 0 <= fraction < 1:
        raise UsageError(
            f"validation must be a fraction from 0 to below 1, or files, not {validation}", settings=["validation"]
        )
    return fraction


def hash_text(text: str) -> int:
    """Hash a text uniformly to 0 … 2**64 - 1; it is held out if the hash is below a bound."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def compute_hash_bound(fraction: Fraction, few: Iterable[int] | None = None) -> int:
    """Return the bound below which hashes are held out.

    Args:
        few: all hashes, if there are fewer than `FEW_DOCUMENTS`: that fraction of the different ones, but at least one,
            is held out.
    """
    if not fraction or few is None:
        return math.ceil(fraction * 2**64)
    distinct = sorted(set(few))
    return distinct[max(1, int(len(distinct) * fraction))] if len(distinct) > 1 else 0


def split_at(pieces: Iterable[TextPiece], boundary: int) -> Iterator[TextPiece]:
    """Start a new document at a boundary (in bytes), or at the first character after it."""
    for piece in pieces:
        data = piece.text.encode()
        while 0 < boundary < len(data) and data[boundary] & 0xC0 == 0x80:  # inside a character
            boundary += 1
        if 0 < boundary < len(data):
            yield TextPiece(data[:boundary].decode(), piece.starts_document)
            yield TextPiece(data[boundary:].decode(), starts_document=True)
        else:
            yield TextPiece(piece.text, piece.starts_document or boundary == 0)
        boundary -= len(data)


_MAX_DEVIATION = Fraction(1, 3)  # relative standard deviation of the held-out fraction of bytes
_MULTIPROCESSING_BYTES = 1 << 26  # worth the start of processes


@dataclass(frozen=True)
class Corpus:
    """Scanned files of text or examples.

    Attributes:
        files: the corpus, without validation files.
        validation_files: the files of the validation split, if it has its own.
    """

    files: tuple[FileSummary, ...]
    validation_files: tuple[FileSummary, ...]
    config: DataConfig

    @property
    def name(self) -> str:
        return ", ".join(summary.file.name for summary in self.files[:3])

    @property
    def fraction(self) -> Fraction:
        """Return the held-out fraction of `files`; 0 if the validation split has its own files."""
        return parse_held_out_fraction(self.config.validation) or Fraction(0)

    @property
    def bytes(self) -> int:
        return self.files_bytes + sum(summary.bytes for summary in self.validation_files)

    @property
    def files_bytes(self) -> int:
        return sum(summary.bytes for summary in self.files)

    @property
    def notes(self) -> list[Advice]:
        """Return notes about normalisation and guesses that the user might not expect."""
        all_files, notes = [*self.files, *self.validation_files], []
        if changed := [summary for summary in all_files if summary.changes.line_ends or summary.changes.mark]:
            ends, marks = (any(getattr(summary.changes, name) for summary in changed) for name in ("line_ends", "mark"))
            descriptions = [*(["with line feeds alone"] * ends), *(["without the byte order mark"] * marks)]
            text = f"{_name_first(changed)}: read {' and '.join(descriptions)}, and bits per byte count that text"
            notes.append(Advice(text, settings=["keep_line_ends"]))
        books = [summary for summary in all_files if summary.changes.is_book]
        if books and self.config.strip_gutenberg:
            notes.append(Advice(f"{_name_first(books)}: read without Project Gutenberg's header and licence"))
        elif books:
            first = _name_first(books)
            text = f"{first}: Project Gutenberg's header and licence are part of the text, and can be left out"
            notes.append(Advice(text, settings=["strip_gutenberg"]))
        if escaped := [summary for summary in all_files if summary.changes.escapes >= _MANY_ESCAPES]:
            total = sum(summary.changes.escapes for summary in escaped)
            first = _name_first(escaped)
            notes.append(
                Advice(f"{first}: {total:,} escape sequences of a terminal, such as colours, are learned as text")
            )
        notes += [
            summary.file.describe_malformed(summary.changes) for summary in all_files if summary.changes.malformed
        ]
        if named := _describe_guessed_fields(all_files):
            notes.append(
                Advice(named, settings=["text_column", "label_column"] if self.config.supervised else ["text_column"])
            )
        return notes

    @property
    def has_few_documents(self) -> bool:
        """Return whether `files` have too few documents to be split evenly by hashes."""
        return sum(summary.documents for summary in self.files) < FEW_DOCUMENTS

    @property
    def is_split_evenly(self) -> bool:
        """Return whether hashes of documents are likely to hold out about the fraction of the bytes.

        If each document is held out with probability p, the variance of the held-out bytes is p (1 - p) times the sum
        of the squared sizes.
        """
        squared_bytes = sum(summary.squared_bytes for summary in self.files)
        variance = self.fraction * (1 - self.fraction) * squared_bytes
        return variance <= (_MAX_DEVIATION * self.fraction * self.files_bytes) ** 2


def _name_first(summaries: Sequence[FileSummary]) -> str:
    others = f" and {len(summaries) - 1:,} other file{'s' * (len(summaries) > 2)}" if len(summaries) > 1 else ""
    return summaries[0].file.name + others


def _describe_guessed_fields(summaries: Sequence[FileSummary]) -> str:
    """Name the columns of text and labels that were guessed from unusual names."""
    for file in (summary.file for summary in summaries if not summary.file.holds_conversations):
        if (
            file.supervised
            and None in (file.data.text_column, file.data.label_column)
            and file.label_fields is not None
        ):
            return f"{file.name}: the text is in column {file.label_fields[0]!r}, the label in {file.label_fields[1]!r}"
        if not file.supervised and file.holds_rows and file.data.text_column is None and file.text_field != FIELD:
            return f"{file.name}: the text is in column {file.text_field!r}"
    return ""


def describe_ignored_labels(corpus: Corpus) -> list[Advice]:
    """Return a note on the columns of labels in the first file that has some, if only texts are learned."""
    for file in (summary.file for summary in corpus.files if summary.file.holds_rows and not summary.file.supervised):
        labels = [] if file.holds_conversations else list_label_fields(file.field_names)
        if ignored := [repr(name) for name in labels if name != file.text_field]:
            columns = f"column{'s' * (len(ignored) > 1)} {', '.join(ignored)}"
            text = f"{file.name}: only the text is learned; the labels in {columns} are learned in supervised training"
            return [Advice(text, settings=["supervised", *["label_column"] * (len(ignored) > 1)])]
    return []


def scan_corpus(files: Sequence[TextFile], config: DataConfig, *, workers: int | None = None) -> Corpus:
    """Read every file once. Files that are also named as validation are removed from the rest.

    Args:
        workers: maximum number of processes, for large corpora [default: one per processor].

    Raises:
        InputError: a file is not text, or there is no text at all.
        UsageError: the validation fraction is not in [0, 1).
    """
    held_out: list[TextFile] = []
    if parse_held_out_fraction(config.validation) is None:
        held_out = find_text_files([config.validation], config, files[0].reading if files else None)
    are_conversations([*files, *held_out])
    held_out_paths = {file.path.resolve() for file in held_out}
    kept = [file for file in files if file.path.resolve() not in held_out_paths]
    if files and not kept:
        raise InputError(f"no text is left to train on: {config.validation} is all there is", settings=["validation"])
    summaries = _scan_files(kept, config.separator, workers)
    return Corpus(summaries, _scan_files(held_out, config.separator, workers), config)


def _scan_files(files: Sequence[TextFile], separator: str, workers: int | None) -> tuple[FileSummary, ...]:
    is_little = sum(file.path.stat().st_size for file in files) < _MULTIPROCESSING_BYTES
    used = 1 if is_little else max(1, min(workers or processes.available_cores(), len(files)))
    scan = partial(try_to_read, read=partial(documents.scan_file, separator=separator))
    results = list(processes.map_in_processes(scan, files, processes=used))
    surveys = tuple(replace(result, file=file) for file, result in drop_unreadable(files, results))
    if files and not any(results.bytes for results in surveys):
        raise InputError(f"{', '.join(file.name for file in files[:3])}: the corpus is empty; there is no text")
    return surveys


CHUNK_BYTES = 1 << 23
"""Minimum size of a chunk, except the last: seconds of work, which an interruption can lose."""

_MAX_CHUNKS = 4096
_KEY_DIGITS = 32
_ALL_HASHES = 1 << 64
_KEY_VERSION = 1  # raised when the same chunk becomes other files
_EXAMPLES_KEY_VERSION = 3  # the same, of examples alone


@dataclass(frozen=True)
class HeldOutRule:
    """Which documents of a corpus are held out.

    Attributes:
        bound: those whose hash is below it.
        end: instead, this fraction of the bytes of each file, at its end.
        fraction: instead of both, this fraction of few examples, which then form one chunk, as all hashes are needed.
    """

    bound: int
    end: Fraction | None = None
    fraction: Fraction | None = None


@dataclass(frozen=True)
class ChunkInput:
    """A file or part of one, from the start of one document to the end of another, and what is held out of it.

    Attributes:
        number: of the file in the corpus; validation files are counted last.
        identity: checksum of the file, and how it is decoded.
        size: decompressed bytes; approximate for row groups.
        file_range: the part of the file; None for all of it.
        boundary: byte of its text at which the held-out end begins, if its end is held out.
    """

    file: TextFile
    number: int
    identity: str
    size: int
    held_out: HeldOutRule
    file_range: FileRange | None = None
    boundary: int | None = None


@dataclass(frozen=True)
class Chunk:
    """Consecutive inputs: files of a corpus or ranges of them.

    Attributes:
        separator: the line that ends a document within a text file.
    """

    inputs: tuple[ChunkInput, ...]
    separator: str

    def key(self, tokenizer: str) -> str:
        """Hash everything that the tokens of the chunk depend on, given the checksum of the tokenizer."""
        read = [
            [
                chunk_input.identity,
                chunk_input.number,
                chunk_input.held_out.bound,
                chunk_input.boundary,
                str(chunk_input.held_out.fraction),
                chunk_input.file_range and [chunk_input.file_range.start, chunk_input.file_range.stop],
            ]
            for chunk_input in self.inputs
        ]
        supervised = [chunk_input.file.supervised and _EXAMPLES_KEY_VERSION for chunk_input in self.inputs[:1]]
        described = json.dumps([_KEY_VERSION, tokenizer, self.separator, supervised, read])
        return hashlib.sha256(described.encode()).hexdigest()


def split_into_chunks(corpus: Corpus, held_out: HeldOutRule) -> list[Chunk]:
    """Divide a corpus into chunks, in order, validation files last.

    Args:
        held_out: what is held out of `corpus.files`.
    """
    all_files = [*corpus.files, *corpus.validation_files]
    total = sum(map(_decompressed_size, all_files))
    size = max(CHUNK_BYTES, total // _MAX_CHUNKS) if held_out.fraction is None else total + 1
    inputs = _list_inputs(corpus, held_out, size)
    groups = group_by_size(inputs, lambda chunk_input: chunk_input.size, limit=size)
    return [Chunk(tuple(group), corpus.config.separator) for group in groups]


def _list_inputs(corpus: Corpus, held_out: HeldOutRule, size: int) -> Iterator[ChunkInput]:
    for number, summary in enumerate(corpus.files):
        if held_out.end is not None:
            boundary = int(summary.bytes * (1 - held_out.end))
            file_size = _decompressed_size(summary)
            yield ChunkInput(summary.file, number, summary.identity, file_size, held_out, boundary=boundary)
        else:
            yield from _split_file(summary, number, held_out, corpus.config.separator, size)
    for number, summary in enumerate(corpus.validation_files, len(corpus.files)):
        yield from _split_file(summary, number, HeldOutRule(_ALL_HASHES), corpus.config.separator, size)


def _decompressed_size(summary: FileSummary) -> int:
    """Return the decompressed bytes of a file, at least those of its text."""
    return max(summary.size, summary.bytes)


def _split_file(
    summary: FileSummary, number: int, held_out: HeldOutRule, separator: str, size: int
) -> Iterator[ChunkInput]:
    cuts: Sequence[FileRange] | None = split_into_ranges(summary.file, separator, size=size)
    if cuts is None:
        yield ChunkInput(summary.file, number, summary.identity, _decompressed_size(summary), held_out)
        return
    fraction = _decompressed_size(summary) / cuts[-1].stop  # 1, unless ranges count row groups
    for file_range in cuts:
        yield ChunkInput(
            summary.file,
            number,
            summary.identity,
            round((file_range.stop - file_range.start) * fraction),
            held_out,
            file_range,
        )


def chunk_name(chunk: Chunk, tokenizer: str) -> str:
    """Return the folder name of a chunk, given the checksum of the tokenizer."""
    return chunk.key(tokenizer)[:_KEY_DIGITS]


def read_training_texts(corpus: Corpus) -> Iterator[str]:
    """Yield the text of `corpus.files` in pieces cut between words, for training a tokenizer."""
    for summary in corpus.files:
        for piece in split_into_pieces(documents.read_pieces(summary.file, corpus.config.separator), tokenizer=None):
            yield piece.text


def read_beginnings(corpus: Corpus, *, limit: int) -> Iterator[str]:
    """Yield the same initial fraction of each of `corpus.files`, about `limit` bytes in all."""
    fraction = min(1.0, limit / max(1, corpus.files_bytes))
    for summary in corpus.files:
        remaining, parts = math.ceil(fraction * summary.bytes), []
        for piece in documents.read_pieces(summary.file, corpus.config.separator):
            part = piece.text.encode()[:remaining].decode(errors="ignore")
            parts.append(part)
            remaining -= len(piece.text.encode())
            if remaining <= 0:
                break
        yield "".join(parts)


def load_or_train_tokenizer(
    corpus: Corpus,
    config: TokenizerConfig,
    *,
    special_tokens: Sequence[str] = (),
    unknown: str | None = None,
    has_mask: bool = False,
) -> Tokenizer:
    """Train a tokenizer on `corpus.files`, or load it from the cache.

    For examples it always has an end token, which ends a completion; for a masked model also a mask.

    Raises:
        InputError: there is no text.
        UsageError: the settings contradict each other.
    """
    needed = (END_OF_TEXT, MASK) if has_mask else (END_OF_TEXT,) if corpus.config.supervised else ()
    return load_or_train(
        lambda: read_training_texts(corpus),
        config,
        identity=[corpus.config.separator, *(summary.identity for summary in corpus.files)],
        corpus_bytes=corpus.files_bytes,
        special_tokens=special_tokens or needed,
        unknown=unknown,
    )


T = TypeVar("T")
R = TypeVar("R")

GROUP_CHARACTERS = 1 << 20
"""Enough text to keep all cores of a tokenizer busy."""

_PREFETCHED_GROUPS = 2  # one group is encoded while the tokens of the other are copied and written


BytesCallback = Callable[[int], None]
"""Called with the bytes of text of each group that is done."""


class ScannedCorpus(Protocol):
    """A scanned corpus of any kind."""

    @property
    def name(self) -> str: ...

    @property
    def bytes(self) -> int: ...


class Encodable(Protocol):
    """A piece of a document, an example, a conversation or a sentence pair."""

    @property
    def split(self) -> SplitName: ...

    @property
    def texts(self) -> Sequence[str]:
        """Return the texts to encode: one, or a pair."""
        ...

    @property
    def location(self) -> str:
        """Return the file, and the line if there is one, for messages."""
        ...


E = TypeVar("E", bound=Encodable)


def encode_groups(
    corpus: ScannedCorpus,
    items: Iterable[E],
    encode: Callable[[Sequence[E]], R],
    *,
    progress: ProgressCallback | None = None,
) -> Iterator[tuple[list[E], R]]:
    """Yield groups of items with their encoding, in order; encoding is prefetched in a thread.

    Args:
        items: all of the corpus, in order.
        encode: called with a group, in another thread.
        progress: called when the caller is done with a group.

    Raises:
        InputError: a character has no token, or the corpus has changed since it was scanned.
    """
    done = 0
    for group, result in encode_groups_unchecked(items, encode):
        yield group, result
        done += sum(map(count_text_bytes, group))
        if progress:
            progress(done, corpus.bytes)
    if done != corpus.bytes:
        raise InputError(f"{corpus.name}: the corpus changed while it was read; try again")


def encode_groups_unchecked(items: Iterable[E], encode: Callable[[Sequence[E]], R]) -> Iterator[tuple[list[E], R]]:
    """Encode as `encode_groups`, without comparing the amount of text."""
    groups = group_by_size(items, lambda item: sum(map(len, item.texts)), limit=GROUP_CHARACTERS)
    yield from map_on_threads(
        partial(_encode_group, encode=encode), groups, threads=_PREFETCHED_GROUPS, max_pending=_PREFETCHED_GROUPS
    )


def count_text_bytes(item: Encodable) -> int:
    return sum(len(text.encode()) for text in item.texts)


def _encode_group(group: list[E], encode: Callable[[Sequence[E]], R]) -> tuple[list[E], R]:
    """Return the group and its encoding; the InputError for an item names its location."""
    try:
        return group, encode(group)
    except InputError:
        for item in group:
            try:
                encode([item])
            except InputError as error:
                raise error.at(item.location) from None
        raise


E_contra = TypeVar("E_contra", bound=Encodable, contravariant=True)
R_contra = TypeVar("R_contra", contravariant=True)


class SplitWriter(Protocol[E_contra, R_contra]):
    """Writes what a chunk adds to one split."""

    def add(self, item: E_contra, encoded: R_contra, /) -> None: ...

    def close(self) -> ChunkSplit: ...

    def discard(self) -> None: ...


def write_splits(
    items: Iterable[E],
    encode: Callable[[Sequence[E]], Sequence[R]],
    create: Callable[[SplitName], SplitWriter[E, R]],
    done: BytesCallback | None,
) -> dict[SplitName, ChunkSplit]:
    """Encode the items of a chunk in groups, and write them with a writer for each split."""
    with contextlib.ExitStack() as stack:
        writers: dict[SplitName, SplitWriter[E, R]] = {}
        for split in SPLITS:
            writers[split] = create(split)
            stack.callback(writers[split].discard)
        for group, encoded in encode_groups_unchecked(items, encode):
            for item, tokens in zip(group, encoded, strict=True):
                writers[item.split].add(item, tokens)
            if done:
                done(sum(map(count_text_bytes, group)))
        return {split: writer.close() for split, writer in writers.items()}

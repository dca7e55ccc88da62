"""A corpus that has been read once: counts and checksums, what is held out, and its records with their splits."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np
import tokenizers
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from lm import files, processes
from lm.config.run_config import (
    END_OF_TEXT,
    MASK,
    DataConfig,
    DataKind,
    ParallelTextConfig,
    TokenizerConfig,
)
from lm.corpus import SplitName, hash64
from lm.corpus.encode import Tokenizers
from lm.errors import InputError, UsageError
from lm.files import sha256
from lm.text import Record
from lm.text.find import find_text_files
from lm.text.parallel_text import Source
from lm.tokenizer import FILE_NAME, Tokenizer, split_into_pieces
from lm.tokenizer.chat_template import format_language_tag
from lm.tokenizer.training import train

FEW_DOCUMENTS = 100
"""With fewer documents, rows or pairs, hashes split them too unevenly."""

PASSAGE_BYTES = 200
"""About 50 tokens of English: Lee et al. 2022 (section 4.1) count repetitions of this length or more."""

_MULTIPLIER, _LIMIT = np.uint32(0x9E3779B1), np.uint32((1 << 32) // 128)
_WORD_KEYS = hash64(np.arange(PASSAGE_BYTES // 8, dtype=np.uint64))
_HASHED_CHARACTERS = 1 << 14
_ALL_HASHES = 1 << 64
_MAX_DEVIATION = Fraction(1, 3)  # relative standard deviation of the held-out fraction of bytes
_MULTIPROCESSING_BYTES = 1 << 26  # worth the start of processes

Hashes = NDArray[np.uint64]


@dataclass(frozen=True)
class Summary:
    """Counts and checksums from one pass over a file, or over the files of a parallel text.

    Attributes:
        checksums: of the files.
        documents: documents, rows or pairs.
        bytes: UTF-8 bytes of the normalised text; of a parallel text, of the targets.
        squared_bytes: sum over the documents of their bytes squared.
        notes: what was skipped.
        is_held_out: whether it is a file of the validation split.
    """

    source: Source
    checksums: tuple[str, ...]
    documents: int
    bytes: int
    source_bytes: int
    squared_bytes: int
    notes: tuple[str, ...]
    is_held_out: bool = False

    @property
    def all_bytes(self) -> int:
        return self.bytes + self.source_bytes


class Item(NamedTuple):
    """A record with its split."""

    split: SplitName
    record: Record


@dataclass(frozen=True)
class Corpus:
    """The files of a corpus, read once.

    Attributes:
        languages: of sources and targets of pairs, if known.
    """

    kind: DataKind
    summaries: tuple[Summary, ...]
    config: DataConfig
    languages: tuple[str | None, str | None]

    @property
    def sources(self) -> list[Summary]:
        """Return the files of the corpus, without validation files."""
        return [summary for summary in self.summaries if not summary.is_held_out]

    @property
    def fraction(self) -> Fraction:
        """Return the held-out fraction of `sources`; 0 if the validation split has its own files.

        By default it is a tenth of up to a megabyte. Of larger corpora the held-out bytes grow with the square root of
        the size, so that evaluations stay a small part of the training time.
        """
        if len(self.sources) < len(self.summaries):
            return Fraction(0)
        validation = self.config.validation or f"{100 / max(1e6, self.files_bytes) ** 0.5:.2g}"
        return _parse_fraction(validation) or Fraction(0)

    @property
    def files_bytes(self) -> int:
        return sum(summary.all_bytes for summary in self.sources)

    @property
    def bytes(self) -> int:
        return sum(summary.all_bytes for summary in self.summaries)

    @property
    def has_dependency_heads(self) -> bool:
        return all(summary.source.heads is not None for summary in self.summaries)

    def identity(self, summaries: Sequence[Summary]) -> list[object]:
        """Return what determines the records of files: checksums, and how they are read."""
        return [[one.checksums, _reading(one.source), one.is_held_out] for one in summaries]

    @property
    def notes(self) -> list[str]:
        """Return what was skipped, by file."""
        return [note for summary in self.summaries for note in summary.notes]

    def records(self, tokenizer: Tokenizer) -> Iterator[Item]:
        """Yield all records with their splits, in order; documents of text in pieces that can be tokenized alone.

        Rows and pairs are held out by hashes, so that equal ones, or pairs of the same source, are in the same split.
        So are documents of text; if they are too few or too uneven, the end of each file is held out instead.
        """
        for summary in self.summaries:
            bound, end = (_ALL_HASHES, None) if summary.is_held_out else self._held_out
            boundary = None if end is None else int(summary.bytes * (1 - end))
            records = summary.source.records()
            if self.kind == "text":
                records = split_into_pieces(records if boundary is None else _split_at(records, boundary), tokenizer)
            split: SplitName = "train"
            position = 0
            for record in records:
                if record.starts:
                    is_held_out = _split_hash(record) < bound if boundary is None else position >= boundary
                    split = "validation" if is_held_out else "train"
                if boundary is not None:
                    position += len(record.text.encode())
                yield Item(split, record)

    @cached_property
    def _held_out(self) -> tuple[int, Fraction | None]:
        """Return the bound below which hashes are held out, and the fraction of the end of files instead."""
        fraction, few = self.fraction, sum(summary.documents for summary in self.sources) < FEW_DOCUMENTS
        if self.kind == "text":
            squared_bytes = sum(summary.squared_bytes for summary in self.sources)
            variance = fraction * (1 - fraction) * squared_bytes  # of the held-out bytes
            is_even = variance <= (_MAX_DEVIATION * fraction * self.files_bytes) ** 2
            if fraction and (few or not is_even):
                return 0, fraction
        elif fraction and few:  # that fraction of the distinct ones, but at least one
            records = itertools.chain.from_iterable(summary.source.records() for summary in self.sources)
            distinct = sorted({_split_hash(record) for record in records if not record.is_blank})
            return (distinct[max(1, int(len(distinct) * fraction))] if len(distinct) > 1 else 0), None
        return math.ceil(fraction * _ALL_HASHES), None


def hash_text(text: str) -> int:
    """Hash a text uniformly to 0 … 2**64 - 1; it is held out if the hash is below a bound."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def hash_records(records: Sequence[Record], kind: DataKind) -> Hashes:
    """Return the hashes by which records are found in the training split of a store of a kind.

    Text is found by passages of 200 bytes, of which about one in 128 is hashed: those whose first four bytes have a
    certain hash, so that the same passages are chosen wherever a text stands (Schleimer et al. 2003, Winnowing), and at
    least one of each text, however short. Examples, conversations and sentence pairs are found as a whole, pairs in
    either direction.
    """
    if kind == "pairs":
        return np.array([sum(map(hash_text, record.texts)) % _ALL_HASHES for record in records], dtype=np.uint64)
    if kind != "text":
        return np.array([_split_hash(record) for record in records], dtype=np.uint64)
    texts = [record.text.encode().ljust(PASSAGE_BYTES, b"\0") for record in records]
    data, ends = b"".join(texts), np.cumsum([*map(len, texts)])
    beginnings = [np.frombuffer(data, "<u4", (len(data) - offset) // 4, offset) for offset in range(4)]
    chosen = np.concatenate(
        [4 * np.flatnonzero(words * _MULTIPLIER < _LIMIT) + offset for offset, words in enumerate(beginnings)]
    )
    numbers = np.searchsorted(ends, chosen, side="right")
    is_inside = chosen + PASSAGE_BYTES <= ends[numbers]
    first = np.delete(np.append(0, ends[:-1]), np.unique(numbers[is_inside]))  # of texts without a chosen one
    places = np.append(chosen[is_inside], first)
    passages = sliding_window_view(np.frombuffer(data, np.uint8), PASSAGE_BYTES)[places].view("<u8")
    return hash64(passages ^ _WORD_KEYS).sum(axis=1, dtype=np.uint64)


def _split_hash(record: Record) -> int:
    """Hash what decides the split of a record: pairs of the same source are in the same one."""
    if record.kind == "conversations":
        return hash_text(record.to_json())
    if record.source is not None:
        return hash_text(record.source)
    return hash_text("\0".join(record.texts) if len(record.parts) > 1 else record.text[:_HASHED_CHARACTERS])


def _split_at(records: Iterable[Record], boundary: int) -> Iterator[Record]:
    """Start a new document at a boundary (in bytes), or at the first character after it."""
    for record in records:
        data = record.text.encode()
        while 0 < boundary < len(data) and data[boundary] & 0xC0 == 0x80:  # inside a character
            boundary += 1
        if 0 < boundary < len(data):
            yield Record.of_text(data[:boundary].decode(), starts=record.starts)
            yield Record.of_text(data[boundary:].decode())
        else:
            yield record._replace(starts=record.starts or boundary == 0)
        boundary -= len(data)


def _parse_fraction(validation: str) -> Fraction | None:
    """Return the fraction to hold out; None if `validation` names files; UsageError if it is not in [0, 1)."""
    try:
        fraction = Fraction(validation)
    except (ValueError, ZeroDivisionError):
        return None
    if not 0 <= fraction < 1:
        raise UsageError(f"validation must be a fraction from 0 to below 1, or files, not {validation}")
    return fraction


def scan_corpus(
    sources: Sequence[Source],
    config: DataConfig,
    parallel: ParallelTextConfig | None = None,
    *,
    held_out: Sequence[Source] = (),
    workers: int | None = None,
) -> Corpus:
    """Read every file once. Files that are also held out are removed from the rest.

    Args:
        config: what is held out, if `held_out` is not given: a fraction, or files.
        parallel: the languages of pairs, if the names of files or columns don't tell.
        workers: maximum number of processes, for large corpora [default: one per processor].

    Raises:
        InputError: a file is not text, there is no text at all, or files hold different kinds of records.
        UsageError: the validation fraction is not in [0, 1).
    """
    if not held_out and config.validation and _parse_fraction(config.validation) is None:
        held_out = find_text_files([config.validation], config, sources[0].files[0].reading)
    held_out_paths = {file.path.resolve() for each in held_out for file in each.files}
    kept = [source for source in sources if held_out_paths.isdisjoint(file.path.resolve() for file in source.files)]
    if len(kinds := {source.kind for source in (*kept, *held_out)}) > 1:
        raise InputError(f"the files hold {' and '.join(sorted(kinds))}; train on one kind at a time")
    if (column := config.label_column or config.source_column) and "text" in kinds:
        raise InputError(f"no column {column!r}: the files hold text")
    known, parallel = {source.languages for source in kept}, parallel or ParallelTextConfig()
    first, second = known.pop() if len(known) == 1 else (None, None)
    languages = (parallel.source_language or first, parallel.target_language or second)
    if parallel.bidirectional and kinds == {"pairs"} and None in languages:
        raise UsageError("both directions need names: set parallel.source_language and parallel.target_language")
    summaries = _scan_all(kept, held_out, workers=workers)
    if not any(summary.bytes for summary in summaries):
        raise InputError(f"{', '.join(source.name for source in sources)}: no text")
    return Corpus(next(iter(kinds), "text"), summaries, config, languages)


def _scan_all(files: Sequence[Source], held_out: Sequence[Source], workers: int | None) -> tuple[Summary, ...]:
    sources = [*files, *held_out]
    size = sum(file.path.stat().st_size for source in sources for file in source.files)
    used = max(1, min(workers or processes.available_cores(), len(sources), size // _MULTIPROCESSING_BYTES))
    scanned = enumerate(processes.map_in_processes(_scan, sources, processes=used))
    return tuple(
        dataclasses.replace(summary, source=sources[number], is_held_out=number >= len(files))
        for number, summary in scanned
    )


def _scan(source: Source) -> Summary:
    """Read a source once; InputError if it is not text."""
    documents = text_bytes = source_bytes = squared_bytes = document_bytes = 0
    for record in source.records():
        *others, last = (len(text.encode()) for text in record.texts)
        if record.starts:
            documents, squared_bytes, document_bytes = documents + 1, squared_bytes + document_bytes**2, 0
        document_bytes += last
        text_bytes += last
        source_bytes += sum(others)
    squared_bytes += document_bytes**2
    checksums = tuple(sha256(file.path) for file in source.files)
    return Summary(source, checksums, documents, text_bytes, source_bytes, squared_bytes, tuple(source.notes))


def _reading(source: Source) -> object:
    """Return what a source's records depend on beside its bytes."""
    return [[file.format, str(file.data), str(file.reading)] for file in source.files]


def read_training_texts(corpus: Corpus, sides: Sequence[str] = ("source", "target")) -> Iterator[str]:
    """Yield the text of a corpus for training a tokenizer: in pieces cut between words, or these sides of pairs."""
    for summary in corpus.sources:
        if corpus.kind == "pairs":
            for pair in summary.source.records():
                yield from (pair.text if side == "target" else pair.source or "" for side in sides)
        else:
            yield from (piece.text for piece in split_into_pieces(summary.source.records(), tokenizer=None))


def train_tokenizers(
    corpus: Corpus, config: TokenizerConfig, parallel: ParallelTextConfig | None = None, *, has_mask: bool = False
) -> Tokenizers:
    """Train a tokenizer on a corpus, or load it from the cache; for pairs, one on both sides or one on each.

    Unless it is for text, it has an end token, which ends a completion; for a masked model also a mask.

    Raises:
        UsageError: the settings contradict each other.
    """
    parallel = parallel if parallel and corpus.kind == "pairs" else ParallelTextConfig()
    special = [END_OF_TEXT, MASK] if has_mask else [] if corpus.kind == "text" else [END_OF_TEXT]
    if parallel.bidirectional:
        special += [format_language_tag(language) for language in corpus.languages if language]

    def trained(*sides: str) -> Tokenizer:
        key = repr([tokenizers.__version__, sides, corpus.identity(corpus.sources), config, special])
        path = files.cache_root() / "tokenizers" / hashlib.sha256(key.encode()).hexdigest()[:32] / FILE_NAME
        if path.exists():
            return Tokenizer.load(path)
        sizes = {"target": "bytes", "source": "source_bytes"}
        total = sum(getattr(summary, sizes[side]) for summary in corpus.sources for side in sides)
        tokenizer = train(read_training_texts(corpus, sides), config, corpus_bytes=total, special_tokens=special)
        files.make_folder(path.parent)
        tokenizer.save(path)
        return tokenizer

    if parallel.separate_vocabularies:
        return trained("target"), trained("source")
    return trained("source", "target"), None

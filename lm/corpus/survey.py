"""A corpus that has been read once: counts and checksums, what is held out, and its records with their splits."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

from lm import processes
from lm.config.data import DataConfig, DataKind, FilesConfig, ParallelTextConfig
from lm.config.tokenizer import END_OF_TEXT, MASK, TokenizerConfig
from lm.corpus.store import SourceRecord, SplitName
from lm.errors import InputError, UsageError
from lm.files import sha256
from lm.text.find import find_text_files
from lm.text.parallel_text import ParallelText, find_parallel_texts
from lm.text.records import Record
from lm.text.text_file import TextFile
from lm.tokenizer.special_tokens import format_language_tag
from lm.tokenizer.tokenizer import Tokenizer, split_into_pieces
from lm.tokenizer.training import load_or_train

FEW_DOCUMENTS = 100
"""With fewer documents, rows or pairs, hashes split them too unevenly."""

_HASHED_CHARACTERS = 1 << 14
_ALL_HASHES = 1 << 64
_MAX_DEVIATION = Fraction(1, 3)  # relative standard deviation of the held-out fraction of bytes
_MULTIPROCESSING_BYTES = 1 << 26  # worth the start of processes

Source = TextFile | ParallelText


@dataclass(frozen=True)
class Summary:
    """Counts and checksums from one pass over a file, or over the files of a parallel text.

    Attributes:
        records: names, sizes and checksums of the files.
        documents: documents, rows or pairs.
        bytes: UTF-8 bytes of the normalised text; of a parallel text, of the targets.
        squared_bytes: sum over the documents of their bytes squared.
        hashes: of the first records, which decide what is held out of few of them.
        notes: what was skipped.
    """

    source: Source
    records: tuple[SourceRecord, ...]
    documents: int
    bytes: int
    source_bytes: int
    squared_bytes: int
    hashes: tuple[int, ...]
    notes: Sequence[str]


@dataclass(frozen=True)
class Corpus:
    """The files of a corpus, read once.

    Attributes:
        sources: the corpus, without validation files.
        validation_sources: the files of the validation split, if it has its own.
        languages: of sources and targets of pairs, if known.
    """

    kind: DataKind
    sources: tuple[Summary, ...]
    validation_sources: tuple[Summary, ...]
    config: DataConfig
    languages: tuple[str | None, str | None] = (None, None)

    @property
    def name(self) -> str:
        return ", ".join(summary.source.name for summary in self.sources[:3])

    @property
    def fraction(self) -> Fraction:
        """Return the held-out fraction of `sources`; 0 if the validation split has its own files."""
        if self.validation_sources:
            return Fraction(0)
        return parse_held_out_fraction(self.config.validation) or Fraction(0)

    @property
    def files_bytes(self) -> int:
        return sum(summary.bytes + summary.source_bytes for summary in self.sources)

    @property
    def bytes(self) -> int:
        return self.files_bytes + sum(summary.bytes + summary.source_bytes for summary in self.validation_sources)

    @property
    def has_dependency_heads(self) -> bool:
        first = self.sources[0].source
        return isinstance(first, ParallelText) and first.heads is not None

    @property
    def identity(self) -> list[object]:
        """Return what determines the records: checksums, and how files are read."""
        return [
            [[[record.sha256 for record in one.records], _reading(one.source)] for one in group]
            for group in (self.sources, self.validation_sources)
        ]

    @property
    def notes(self) -> list[str]:
        """Return what was skipped, by file."""
        return [note for summary in (*self.sources, *self.validation_sources) for note in summary.notes]

    def records(self, tokenizer: Tokenizer) -> Iterator[Item]:
        """Yield all records with their splits, in order; documents of text in pieces that can be tokenized alone.

        Rows and pairs are held out by hashes, so that equal ones, or pairs of the same source, are in the same split.
        So are documents of text; if they are too few or too uneven, the end of each file is held out instead.
        """
        for number, summary in enumerate((*self.sources, *self.validation_sources)):
            bound, end = self._held_out if number < len(self.sources) else (_ALL_HASHES, None)
            boundary = None if end is None else int(summary.bytes * (1 - end))
            records = summary.source.records()
            if self.kind == "text":
                records = split_into_pieces(records if boundary is None else split_at(records, boundary), tokenizer)
            split: SplitName = "train"
            position = value = 0
            for record in records:
                if record.starts:
                    value = split_hash(record)
                    is_held_out = value < bound if boundary is None else position >= boundary
                    split = "validation" if is_held_out else "train"
                if boundary is not None:
                    position += len(record.text.encode())
                yield Item(split, value if record.source is None else pair_hash(record), number, record)

    @cached_property
    def _held_out(self) -> tuple[int, Fraction | None]:
        """Return the bound below which hashes are held out, and the fraction of the end of files instead."""
        fraction, few = self.fraction, sum(summary.documents for summary in self.sources) < FEW_DOCUMENTS
        if self.kind == "text":
            squared_bytes = sum(summary.squared_bytes for summary in self.sources)
            variance = fraction * (1 - fraction) * squared_bytes  # of the held-out bytes
            is_even = variance <= (_MAX_DEVIATION * fraction * self.files_bytes) ** 2
            return compute_hash_bound(fraction), fraction if fraction and (few or not is_even) else None
        hashes = [value for summary in self.sources for value in summary.hashes]
        return compute_hash_bound(fraction, hashes if few else None), None


class Item(NamedTuple):
    """A record with its split, the hash by which copies are found, and the number of its file."""

    split: SplitName
    hash: int
    file: int
    record: Record


def parse_held_out_fraction(validation: str) -> Fraction | None:
    """Return the fraction to hold out; None if `validation` names files; UsageError if it is not in [0, 1)."""
    try:
        fraction = Fraction(validation)
    except (ValueError, ZeroDivisionError):
        return None
    if not 0 <= fraction < 1:
        raise UsageError(f"validation must be a fraction from 0 to below 1, or files, not {validation}")
    return fraction


def hash_text(text: str) -> int:
    """Hash a text uniformly to 0 … 2**64 - 1; it is held out if the hash is below a bound."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def compute_hash_bound(fraction: Fraction, few: Iterable[int] | None = None) -> int:
    """Return the bound below which hashes are held out.

    Args:
        few: all hashes, if they are few: that fraction of the distinct ones, but at least one, is held out.
    """
    if not fraction or few is None:
        return math.ceil(fraction * 2**64)
    distinct = sorted(set(few))
    return distinct[max(1, int(len(distinct) * fraction))] if len(distinct) > 1 else 0


def split_hash(record: Record) -> int:
    """Hash what decides the split of a record: pairs of the same source are in the same one."""
    if record.kind == "conversations":
        return hash_text(record.to_json())
    if record.source is not None:
        return hash_text(record.source)
    return hash_text("\0".join(record.texts) if len(record.parts) > 1 else record.text[:_HASHED_CHARACTERS])


def pair_hash(pair: Record) -> int:
    """Hash a pair, in either direction."""
    return sum(map(hash_text, pair.texts)) % _ALL_HASHES


def split_at(records: Iterable[Record], boundary: int) -> Iterator[Record]:
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


def scan_corpus(files: Sequence[TextFile], config: DataConfig, *, workers: int | None = None) -> Corpus:
    """Read every file once. Files that are also named as validation are removed from the rest.

    Args:
        workers: maximum number of processes, for large corpora [default: one per processor].

    Raises:
        InputError: a file is not text, there is no text at all, or files hold different kinds of records.
        UsageError: the validation fraction is not in [0, 1).
    """
    held_out: Sequence[TextFile] = ()
    if parse_held_out_fraction(config.validation) is None:
        held_out = find_text_files([config.validation], config, files[0].reading if files else None)
    held_out_paths = {file.path.resolve() for file in held_out}
    kept = [file for file in files if file.path.resolve() not in held_out_paths]
    if files and not kept:
        raise InputError(f"no text is left to train on: {config.validation} is all there is")
    kinds: dict[DataKind, str] = {file.kind: file.name for file in (*kept, *held_out)}
    if len(kinds) > 1:
        named = " and ".join(f"{name} holds {kind}" for kind, name in kinds.items())
        raise InputError(f"{named}; train on one kind at a time")
    summaries, held_out_summaries = (_scan_files(group, workers=workers) for group in (kept, held_out))
    return Corpus(next(iter(kinds), "text"), summaries, held_out_summaries, config)


def _scan_files(files: Sequence[TextFile], *, workers: int | None) -> tuple[Summary, ...]:
    is_little = sum(file.path.stat().st_size for file in files) < _MULTIPROCESSING_BYTES
    used = 1 if is_little else max(1, min(workers or processes.available_cores(), len(files)))
    scanned = zip(files, processes.map_in_processes(_scan, files, processes=used), strict=True)
    summaries = tuple(dataclasses.replace(summary, source=file) for file, summary in scanned)
    if files and not any(summary.bytes for summary in summaries):
        raise InputError(f"{', '.join(file.name for file in files[:3])}: the corpus is empty; there is no text")
    return summaries


def scan_parallel_corpus(
    texts: Sequence[ParallelText],
    data: DataConfig,
    config: ParallelTextConfig,
    *,
    validation: Sequence[ParallelText] = (),
    reading: FilesConfig | None = None,
) -> Corpus:
    """Read every file of a parallel corpus once.

    Args:
        data: what is held out, if `validation` is not given: a fraction, or a file of pairs.
        config: the languages, if file names don't tell.
        reading: how a validation file of pairs is read.

    Raises:
        InputError: a file is not text, files differ in length, or there are no pairs.
        UsageError: the fraction is not in [0, 1), languages are needed but unknown, or only some files have heads.
    """
    if not validation and parse_held_out_fraction(data.validation) is None:
        validation = find_parallel_texts(config, reading, pairs=[data.validation])
    if len({text.heads is None for text in (*texts, *validation)}) > 1:
        raise UsageError("give heads of both splits, or of none")
    languages = texts[0].languages if len({text.languages for text in texts}) == 1 else (None, None)
    source, target = config.source_language or languages[0], config.target_language or languages[1]
    if config.bidirectional and (source is None or target is None or source == target):
        raise UsageError(
            "translating in both directions needs two languages, and the names of the files don't tell them: give "
            "source_language and target_language"
        )
    summaries, held_out = (tuple(map(_scan, group)) for group in (texts, validation))
    if not any(summary.bytes + summary.source_bytes for summary in summaries):
        raise InputError(f"{', '.join(text.name for text in texts[:3])}: there are no pairs")
    return Corpus("pairs", summaries, held_out, data, (source, target))


def _scan(source: Source) -> Summary:
    """Read a source once; InputError if it is not text."""
    documents = text_bytes = source_bytes = squared_bytes = document_bytes = 0
    hashes: list[int] = []
    for record in source.records():
        *others, last = (len(text.encode()) for text in record.texts)
        if record.starts:
            documents, squared_bytes, document_bytes = documents + 1, squared_bytes + document_bytes**2, 0
        document_bytes += last
        text_bytes += last
        source_bytes += sum(others)
        if source.kind != "text" and len(hashes) < FEW_DOCUMENTS and not record.is_blank:
            hashes.append(split_hash(record))
    squared_bytes += document_bytes**2
    records = tuple(SourceRecord(file.name, file.path.stat().st_size, sha256(file.path)) for file in source.files)
    return Summary(
        source, records, documents, text_bytes, source_bytes, squared_bytes, tuple(hashes), tuple(source.notes)
    )


def _reading(source: Source) -> object:
    """Return what a source's records depend on beside its bytes."""
    columns = source.columns if isinstance(source, ParallelText) else ()
    return columns, [
        [file.format, dataclasses.asdict(file.data), dataclasses.asdict(file.reading)] for file in source.files
    ]


def read_training_texts(corpus: Corpus) -> Iterator[str]:
    """Yield the text of a corpus in pieces cut between words, for training a tokenizer."""
    for summary in corpus.sources:
        for piece in split_into_pieces(summary.source.records(), tokenizer=None):
            yield piece.text


def load_or_train_tokenizer(
    corpus: Corpus,
    config: TokenizerConfig,
    *,
    special_tokens: Sequence[str] = (),
    unknown: str | None = None,
    has_mask: bool = False,
) -> Tokenizer:
    """Train a tokenizer on a corpus, or load it from the cache.

    For examples it always has an end token, which ends a completion; for a masked model also a mask.

    Raises:
        InputError: there is no text.
        UsageError: the settings contradict each other.
    """
    needed = (END_OF_TEXT, MASK) if has_mask else (END_OF_TEXT,) if corpus.kind != "text" else ()
    return load_or_train(
        lambda: read_training_texts(corpus),
        config,
        identity=[json.dumps(corpus.identity[0])],
        corpus_bytes=corpus.files_bytes,
        special_tokens=special_tokens or needed,
        unknown=unknown,
    )


def load_or_train_pair_tokenizers(
    corpus: Corpus, config: TokenizerConfig, parallel: ParallelTextConfig
) -> tuple[Tokenizer, Tokenizer | None]:
    """Train one tokenizer on source and target, or one on each; returns that of the targets first."""
    tags = [format_language_tag(language) for language in corpus.languages if language and parallel.bidirectional]

    def trained(*sides: str) -> Tokenizer:
        def texts() -> Iterator[str]:
            for summary in corpus.sources:
                for pair in summary.source.records():
                    yield from (pair.text if side == "target" else pair.source or "" for side in sides)

        sizes = {"target": "bytes", "source": "source_bytes"}
        total = sum(getattr(summary, sizes[side]) for summary in corpus.sources for side in sides)
        identity = [*sides, json.dumps(corpus.identity[0])]
        return load_or_train(texts, config, identity=identity, corpus_bytes=total, special_tokens=tags)

    if not parallel.separate_vocabularies:
        return trained("source", "target"), None
    return trained("target"), trained("source")

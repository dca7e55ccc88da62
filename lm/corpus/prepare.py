"""Tokenize a corpus into a store, chunk by chunk, or find it there.

The records are read in order and cut into chunks, which any process tokenizes: chunks depend on the files alone. An
interrupted preparation keeps its finished chunks. Several machines can make a part each, every N-th chunk, whose chunks
are then listed together.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from lm import files, processes
from lm.config.data import DataKind, ParallelTextConfig
from lm.corpus import overlap
from lm.corpus.encode import Encoded, check_tokenizers, encode
from lm.corpus.store import (
    CHUNK,
    SOURCE_TOKENIZER,
    SPLITS,
    ChunkRecord,
    Manifest,
    PreparedFolder,
    SourceRecord,
    SplitName,
    SplitRecord,
    cache_folder,
    has_manifest,
    hash_inputs,
    load_chunk,
    move_into_place,
    open_tokenizers,
    token_dtype,
    unfinished_folder,
    verify_checksums,
    write_chunk,
    write_store,
)
from lm.corpus.survey import Corpus, Item, Summary
from lm.errors import InputError
from lm.text.find import ProgressCallback
from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer

CHUNK_BYTES = 1 << 23
"""Minimum size of a chunk, except the last: seconds of work, which an interruption can lose."""

_MAX_CHUNKS = 1024
_GROUP_BYTES = 1 << 20  # encoded at once: enough to keep all cores of a tokenizer busy
_MAX_LABELS, _MAX_LABEL_BYTES = 1 << 16, 1 << 24

T = TypeVar("T")


@dataclass(frozen=True)
class _Tokenization:
    """What the tokens of a chunk depend on beside its records; picklable.

    Attributes:
        folder: of the chunks and the tokenizers.
        filters_validation: whether held-out pairs are filtered by their length ratio, too.
    """

    kind: DataKind
    folder: Path
    max_length: int
    max_ratio: float
    filters_validation: bool
    key: str


def prepare_corpus(
    corpus: Corpus,
    tokenizer: Tokenizer,
    *,
    source_tokenizer: Tokenizer | None = None,
    parallel: ParallelTextConfig | None = None,
    folder: Path | None = None,
    force: bool = False,
    root: Path | None = None,
    workers: int | None = None,
    part: tuple[int, int] | None = None,
    progress: ProgressCallback | None = None,
) -> PreparedFolder:
    """Tokenize a corpus into a folder, or load it.

    Pairs with a blank or too long side are left out; except from validation files, so are pairs whose length ratio is
    too large.

    Args:
        tokenizer: of the targets, if `corpus` is pairs; of the sources too, unless they have their own.
        parallel: the lengths and length ratios of pairs.
        folder: [default: in the cache].
        force: replace other prepared data in the folder.
        root: the cache [default: `cache_root()`].
        workers: maximum number of processes [default: one per processor].
        part: number from 1, and count, of the part of the chunks to make.

    Raises:
        InputError: a character has no token, the corpus has changed since it was scanned, nothing is left to train on,
            or the folder holds something else.
        UsageError: the tokenizer lacks a token that this kind of data needs.
    """
    parallel = parallel or ParallelTextConfig()
    check_tokenizers(corpus.kind, (tokenizer, source_tokenizer))
    limits = [parallel.max_length, float(parallel.max_ratio), corpus.languages] if corpus.kind == "pairs" else []
    sums = [tokenizer.sha256, source_tokenizer and source_tokenizer.sha256]
    key = hash_inputs(corpus.kind, sums, str(corpus.fraction), corpus.config.separator, limits, corpus.identity)
    start, end = tokenizer.start_of_text, tokenizer.end_of_text
    manifest = Manifest(
        kind=corpus.kind,
        key=key,
        sources=_source_records(corpus.sources),
        validation_sources=_source_records(corpus.validation_sources),
        tokenizer=tokenizer.sha256,
        vocab_size=max(tokenizer.vocab_size, source_tokenizer.vocab_size if source_tokenizer else 0),
        config=corpus.config,
        languages=corpus.languages,
        has_dependency_heads=corpus.has_dependency_heads,
        closing=end if corpus.kind == "text" and start == end else None,
        chunks=(),
        part=part,
    )

    def write(unfinished: Path) -> tuple[list[ChunkRecord], int]:
        how = _Tokenization(
            corpus.kind, unfinished, parallel.max_length, float(parallel.max_ratio), bool(corpus.fraction), key
        )
        return _tokenize(corpus, tokenizer, how, workers=workers, part=part, progress=progress)

    return _find_or_make(
        manifest, write, (tokenizer, source_tokenizer), folder=folder, force=force, root=root, name=corpus.name
    )


def join_parts(
    folders: Sequence[Path], *, folder: Path | None = None, force: bool = False, root: Path | None = None
) -> PreparedFolder:
    """Join all parts of a corpus into a folder, or load it.

    Raises:
        InputError: a part is missing, damaged or of another corpus.
    """
    parts: dict[int, tuple[Path, Manifest]] = {}
    for one in folders:
        manifest = Manifest.read_part(one)
        verify_checksums(one, manifest.sha256)
        if manifest.part is None:
            raise InputError(f"{one}: holds a whole corpus, not a part")
        parts[manifest.part[0]] = one, manifest
    first_folder, first = next(iter(parts.values()))
    assert first.part is not None
    for one, manifest in parts.values():
        if (manifest.key, manifest.part and manifest.part[1]) != (first.key, first.part[1]):
            raise InputError(f"{one}: a part of another corpus, or by another tokenizer, than {first_folder}")
    if missing := [f"{number}/{first.part[1]}" for number in range(1, first.part[1] + 1) if number not in parts]:
        raise InputError(f"parts are missing: {', '.join(missing)}; make them, and name them too")

    def write(unfinished: Path) -> tuple[list[ChunkRecord], int]:
        chunks = sorted(
            ((chunk, one) for one, manifest in parts.values() for chunk in manifest.chunks),
            key=lambda pair: pair[0].name,
        )
        for chunk, one in chunks:
            shutil.rmtree(unfinished / chunk.name, ignore_errors=True)
            (unfinished / chunk.name).mkdir()
            for path in (one / chunk.name).iterdir():
                files.link_or_copy(path, unfinished / chunk.name / path.name)
        return [chunk for chunk, _ in chunks], 0

    whole, name = replace(first, part=None, chunks=()), str(first_folder)
    return _find_or_make(whole, write, open_tokenizers(first_folder), folder=folder, force=force, root=root, name=name)


def _find_or_make(
    manifest: Manifest,
    write: Callable[[Path], tuple[list[ChunkRecord], int]],
    tokenizers: tuple[Tokenizer, Tokenizer | None],
    *,
    folder: Path | None,
    force: bool,
    root: Path | None,
    name: str,
) -> PreparedFolder:
    """Load the store of a manifest, or make it with the chunks that `write` returns."""
    destination = folder or cache_folder(manifest.key, root=root)
    with unfinished_folder(destination.resolve()) as unfinished:
        if (complete := _find(destination, manifest)) is not None:
            shutil.rmtree(unfinished)
            return PreparedFolder(destination, complete, reused=True)
        if folder is not None:
            _refuse_other_files(folder, force=force)
        for file_name, tokenizer in zip((FILE_NAME, SOURCE_TOKENIZER), tokenizers, strict=True):
            if tokenizer is not None:
                tokenizer.save(unfinished / file_name)
        chunks, n_reused = write(unfinished)
        manifest = replace(manifest, chunks=tuple(chunks))
        if manifest.part is None:
            train = manifest.splits["train"]
            if not train.documents:
                removed = f"{train.blank} have a blank side, {train.too_long} are too long, {train.ratio} too unlike"
                pairs = f"; of the pairs, {removed} in length" * (manifest.kind == "pairs")
                raise InputError(f"{name}: nothing is left to train on beside validation{pairs}")
            manifest = replace(manifest, repetition=overlap.measure_repetition(unfinished, manifest))
        manifest = write_store(unfinished, manifest, *tokenizers)
        move_into_place(unfinished, destination.resolve())
    return PreparedFolder(destination, manifest, reused=False, chunks_reused=n_reused)


def _find(folder: Path, wanted: Manifest) -> Manifest | None:
    """Return the manifest of a complete, undamaged folder with the same inputs."""
    try:
        manifest = Manifest.read_part(folder)
        if (manifest.key, manifest.part) != (wanted.key, wanted.part):
            return None
        verify_checksums(folder, manifest.sha256)
        return manifest
    except InputError:
        return None


def _refuse_other_files(folder: Path, *, force: bool) -> None:
    """Raise InputError if a folder holds anything but prepared data, or these without `force`."""
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not has_manifest(folder):
        raise InputError(f"{folder}: already exists, and holds no prepared tokens; choose another folder")
    if not force:
        raise InputError(
            f"{folder}: holds other tokens already, or damaged ones; choose another folder, or use --force"
        )


def _source_records(summaries: Sequence[Summary]) -> tuple[SourceRecord, ...]:
    return tuple(record for summary in summaries for record in summary.records)


def _tokenize(
    corpus: Corpus,
    tokenizer: Tokenizer,
    how: _Tokenization,
    *,
    workers: int | None,
    part: tuple[int, int] | None,
    progress: ProgressCallback | None,
) -> tuple[list[ChunkRecord], int]:
    """Tokenize the chunks that are not finished yet; returns all, and how many of them were."""
    read = n_reused = 0
    size = max(CHUNK_BYTES, corpus.bytes // _MAX_CHUNKS)

    def jobs() -> Iterator[tuple[str, ChunkRecord | None, list[Item]]]:
        nonlocal read, n_reused
        groups = group_by_size(corpus.records(tokenizer), _count_bytes, limit=size)
        for number, (items, item_bytes) in enumerate(groups):
            read += item_bytes
            if part is None or number % part[1] == part[0] - 1:
                name = f"{number:05d}-{how.key[:8]}"
                finished = load_chunk(how.folder / name) if (how.folder / name / CHUNK).is_file() else None
                n_reused += finished is not None
                yield name, finished, [] if finished else items

    used = min(workers or processes.available_cores(), max(1, corpus.bytes // size))
    threads = {"RAYON_NUM_THREADS": str(max(1, processes.available_cores() // used))}
    chunks = []
    for chunk in processes.map_in_processes(
        partial(_tokenize_chunk, how=how), jobs(), processes=used, environment=threads
    ):
        chunks.append(chunk)
        if progress:
            progress(min(corpus.bytes, size * len(chunks) * (part[1] if part else 1)), corpus.bytes)
    if read != corpus.bytes:
        raise InputError(f"{corpus.name}: the corpus changed while it was read; try again")
    return chunks, n_reused


def group_by_size(items: Iterable[T], size: Callable[[T], int], *, limit: int) -> Iterator[tuple[list[T], int]]:
    """Yield lists of consecutive items and their sizes; a list ends with the item that brings it to `limit` or more."""
    group: list[T] = []
    total = 0
    for item in items:
        group.append(item)
        total += size(item)
        if total >= limit:
            yield group, total
            group, total = [], 0
    if group:
        yield group, total


def _count_bytes(item: Item) -> int:
    return sum(len(text.encode()) for text in item.record.texts)


@cache
def _open_tokenizers(folder: Path, _key: str) -> tuple[Tokenizer, Tokenizer | None]:
    return open_tokenizers(folder)


def _tokenize_chunk(job: tuple[str, ChunkRecord | None, list[Item]], *, how: _Tokenization) -> ChunkRecord:
    """Tokenize the records of a chunk into its folder, unless it is finished."""
    name, finished, items = job
    if finished is not None:
        return finished
    tokenizers = _open_tokenizers(how.folder, how.key)
    vocab_size = max(tokenizer.vocab_size for tokenizer in tokenizers if tokenizer is not None)
    builders = {split: _ChunkBuilder(how, split, token_dtype(vocab_size)) for split in SPLITS}
    labels: dict[str, int] = {}
    for group, _ in group_by_size(items, _count_bytes, limit=_GROUP_BYTES):
        for item, encoded in zip(group, _encode(group, tokenizers), strict=True):
            number = labels.setdefault(encoded.label, len(labels))
            builders[item.split].add(item, encoded, number)
    columns = {
        f"{split}-{column}": values
        for split, builder in builders.items()
        for column, values in builder.columns().items()
    }
    has_labels = len(labels) <= _MAX_LABELS and sum(map(len, labels)) <= _MAX_LABEL_BYTES and how.kind == "examples"
    return write_chunk(
        how.folder / name,
        columns,
        {split: builder.record for split, builder in builders.items()},
        texts=builders["validation"].texts,
        labels=list(labels) if has_labels else None,
    )


def _encode(group: Sequence[Item], tokenizers: tuple[Tokenizer, Tokenizer | None]) -> list[Encoded]:
    """Return the encoding of a group; the InputError for a record names its line."""
    try:
        return encode([item.record for item in group], tokenizers)
    except InputError:
        for item in group:
            try:
                encode([item.record], tokenizers)
            except InputError as error:
                raise error.at(f"line {item.record.line}") if item.record.line else error from None
        raise


class _ChunkBuilder:
    """Collects the columns of a chunk in one split."""

    def __init__(self, how: _Tokenization, split: SplitName, dtype: str) -> None:
        self._how, self._split = how, split
        self._arrays: dict[str, list[NDArray[Any]]] = {}
        self._dtypes = {"tokens": dtype, "source": dtype, "places": "<i4"}
        self.texts: list[str] = []
        self.record = SplitRecord()

    def add(self, item: Item, encoded: Encoded, label: int) -> None:
        record, sizes = item.record, [len(text.encode()) for text in item.record.texts]
        counts = SplitRecord(documents=1, tokens=len(encoded.tokens), bytes=sum(sizes))
        kind = self._how.kind
        if kind == "text":
            counts = replace(counts, documents=int(record.starts))
        if kind == "pairs":
            counts = self._count_pair(encoded, sizes)
        self.record += counts
        if kind == "pairs" and not counts.documents:
            return
        for name in ("tokens", "source", "words", "source_words", "replies", "places"):
            if (values := getattr(encoded, name)) is not None:
                self._arrays.setdefault(name, []).append(values)
        if counts.documents:
            self._append("hash", item.hash, "<u8")
        if kind == "text":
            return
        self._append("ends", len(encoded.tokens), "<i8")
        if kind == "pairs":
            self._append("source_ends", counts.source_tokens, "<i8")
        else:
            values = {"learned": encoded.learned, "bytes": encoded.bytes, "file": item.file, "line": record.line}
            for name, value in {**values, **({"label": label} if kind == "examples" else {})}.items():
                self._append(name, value, "<i4")
        if self._split == "validation":
            self.texts.append(record.to_json() + "\n")

    def _append(self, name: str, value: int, dtype: str) -> None:
        self._dtypes[name] = dtype
        self._arrays.setdefault(name, []).append(np.array([value], dtype=dtype))

    def _count_pair(self, encoded: Encoded, sizes: Sequence[int]) -> SplitRecord:
        """Count a pair, or why it is left out."""
        assert encoded.source is not None
        lengths = len(encoded.source), len(encoded.tokens)
        if not min(lengths):
            return SplitRecord(blank=1)
        if max(lengths) > self._how.max_length:
            return SplitRecord(too_long=1, longest=max(lengths))
        is_filtered = self._split == "train" or self._how.filters_validation
        if is_filtered and max(lengths) > self._how.max_ratio * min(lengths):
            return SplitRecord(ratio=1, longest=max(lengths))
        return SplitRecord(1, lengths[1], sizes[1], lengths[0], sizes[0], longest=max(lengths))

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the arrays to store, by name."""
        columns = {
            name: np.concatenate(parts).astype(self._dtypes.get(name, parts[0].dtype), copy=False)
            for name, parts in self._arrays.items()
        }
        return {name: np.cumsum(values) if name.endswith("ends") else values for name, values in columns.items()}

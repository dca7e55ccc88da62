"""Tokenize a corpus into a store, chunk by chunk, or find it there.

The records are read in order and cut into chunks, which any process tokenizes: chunks depend on the files alone. An
interrupted preparation keeps its finished chunks. Several machines can make a part each, every N-th chunk, whose chunks
are then listed together.
"""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter, defaultdict
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
from lm.corpus.encode import Encoded, Tokenizers, check_tokenizers, encode
from lm.corpus.store import (
    MANIFEST,
    SOURCE_TOKENIZER,
    SPLITS,
    VERSION,
    ChunkRecord,
    Manifest,
    PreparedFolder,
    SourceRecord,
    SplitName,
    SplitRecord,
    cache_folder,
    hash_values,
    load_chunk,
    locked_folder,
    open_tokenizers,
    save_tokenizers,
    token_dtype,
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

_CHUNK_NAME = "chunk-"
_MAX_CHUNKS = 1024
_GROUP_BYTES = 1 << 20  # encoded at once: enough to keep all cores of a tokenizer busy
_MAX_LABELS, _MAX_LABEL_BYTES = 1 << 16, 1 << 24
_PER_TOKEN = ("tokens", "source", "words", "source_words", "replies", "places")

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
    parallel: ParallelTextConfig
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
    parallel, tokenizers = parallel or ParallelTextConfig(), (tokenizer, source_tokenizer)
    check_tokenizers(corpus.kind, tokenizers)
    limits = [parallel.max_length, float(parallel.max_ratio), corpus.languages] if corpus.kind == "pairs" else []
    sums = [tokenizer.sha256, source_tokenizer and source_tokenizer.sha256]
    split = str(corpus.fraction), corpus.config.separator
    start, end = tokenizer.start_of_text, tokenizer.end_of_text
    manifest = Manifest(
        kind=corpus.kind,
        key=hash_values(VERSION, corpus.kind, sums, split, limits, corpus.identity),
        sources=_source_records(corpus.sources),
        validation_sources=_source_records(corpus.validation_sources),
        tokenizer=tokenizer.sha256,
        vocab_size=max(each.vocab_size for each in tokenizers if each is not None),
        config=corpus.config,
        languages=corpus.languages,
        has_dependency_heads=corpus.has_dependency_heads,
        closing=end if corpus.kind == "text" and start == end else None,
        chunks=(),
        part=part,
    )

    def write(destination: Path) -> tuple[list[ChunkRecord], int]:
        how = _Tokenization(corpus.kind, destination, parallel, bool(corpus.fraction), manifest.key)
        return _tokenize(corpus, tokenizer, how, workers=workers, part=part, progress=progress)

    return _find_or_make(manifest, write, tokenizers, folder=folder, force=force, root=root, name=corpus.name)


def join_parts(
    folders: Sequence[Path], *, folder: Path | None = None, force: bool = False, root: Path | None = None
) -> PreparedFolder:
    """Join all parts of a corpus into a folder, or load it.

    Raises:
        InputError: a part is missing, damaged or of another corpus.
    """
    parts = {one: Manifest.read(one, may_be_part=True) for one in folders}
    for one, manifest in parts.items():
        verify_checksums(one, manifest.sha256)
    whole = replace(manifest, part=None, chunks=())
    if any((one.key, one.part and one.part[1]) != (whole.key, len(parts)) for one in parts.values()):
        raise InputError(f"{', '.join(map(str, folders))}: not all parts of one corpus, made with one tokenizer")
    if missing := {*range(1, len(parts) + 1)} - {one.part[0] for one in parts.values() if one.part}:
        raise InputError(f"part {min(missing)}/{len(parts)} is missing; make it, and name it too")
    chunks = sorted(((chunk, one) for one in parts for chunk in parts[one].chunks), key=lambda pair: pair[0].name)

    def write(destination: Path) -> tuple[list[ChunkRecord], int]:
        for chunk, one in chunks:
            shutil.rmtree(destination / chunk.name, ignore_errors=True)
            (destination / chunk.name).mkdir()
            for path in (one / chunk.name).iterdir():
                files.link_or_copy(path, destination / chunk.name / path.name)
        return [chunk for chunk, _ in chunks], 0

    tokenizers = open_tokenizers(folders[0])
    return _find_or_make(whole, write, tokenizers, folder=folder, force=force, root=root, name=str(folders[0]))


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
    if (complete := _find(destination, manifest)) is not None:
        return PreparedFolder(destination, complete, reused=True)
    with locked_folder(destination):
        if (complete := _find(destination, manifest)) is not None:  # another process has made it
            return PreparedFolder(destination, complete, reused=True)
        own = {path.name for path in destination.iterdir() if not path.name.startswith(_CHUNK_NAME)}
        if own - {MANIFEST, FILE_NAME, SOURCE_TOKENIZER}:
            raise InputError(f"{destination}: already exists, and holds no prepared tokens; choose another folder")
        if MANIFEST in own and folder is not None and not force and _find(folder, manifest, verify=False) is None:
            raise InputError(f"{folder}: holds other tokens already; choose another folder, or use --force")
        (destination / MANIFEST).unlink(missing_ok=True)
        manifest = replace(manifest, tokenizers=save_tokenizers(destination, *tokenizers))
        chunks, n_reused = write(destination)
        manifest = replace(manifest, chunks=tuple(chunks))
        if manifest.part is None:
            train = manifest.splits["train"]
            if not train.documents:
                removed = f"{train.blank} have a blank side, {train.too_long} are too long, {train.ratio} too unlike"
                pairs = f"; of the pairs, {removed} in length" * (manifest.kind == "pairs")
                raise InputError(f"{name}: nothing is left to train on beside validation{pairs}")
            manifest = replace(manifest, repetition=overlap.measure_repetition(destination, manifest))
        write_store(destination, manifest)
    return PreparedFolder(destination, manifest, reused=False, chunks_reused=n_reused)


def _find(folder: Path, wanted: Manifest, *, verify: bool = True) -> Manifest | None:
    """Return the manifest of a complete folder with the same inputs, if it is not damaged."""
    with contextlib.suppress(InputError):
        manifest = Manifest.read(folder, may_be_part=True)
        if (manifest.key, manifest.part) == (wanted.key, wanted.part):
            if verify:
                verify_checksums(folder, manifest.sha256)
            return manifest
    return None


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
                name = f"{_CHUNK_NAME}{number:05d}-{how.key[:8]}"
                finished = load_chunk(how.folder / name)
                n_reused += finished is not None
                yield name, finished, [] if finished else items

    used = min(workers or processes.available_cores(), max(1, corpus.bytes // size))
    threads = {"RAYON_NUM_THREADS": str(max(1, processes.available_cores() // used))}
    work, chunks = partial(_tokenize_chunk, how=how), []
    for chunk in processes.map_in_processes(work, jobs(), processes=used, environment=threads):
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
def _open_tokenizers(folder: Path, _key: str) -> Tokenizers:
    return open_tokenizers(folder)


def _tokenize_chunk(job: tuple[str, ChunkRecord | None, list[Item]], *, how: _Tokenization) -> ChunkRecord:
    """Tokenize the records of a chunk into its folder, unless it is finished."""
    name, finished, items = job
    if finished is not None:
        return finished
    tokenizers = _open_tokenizers(how.folder, how.key)
    vocab_size = max(each.vocab_size for each in tokenizers if each is not None)
    counts: dict[SplitName, Counter[str]] = {split: Counter() for split in SPLITS}
    values = defaultdict[str, list[Any]](list)
    labels, texts = dict[str, int](), []
    for group, _ in group_by_size(items, _count_bytes, limit=_GROUP_BYTES):
        for item, encoded in zip(group, _encode(group, tokenizers), strict=True):
            count = _count(item, encoded, how)
            counts[item.split].update(count)
            if how.kind == "pairs" and not count["documents"]:
                continue
            own: dict[str, Any] = {column: getattr(encoded, column) for column in _PER_TOKEN}
            own["hash"] = item.hash if count["documents"] else None
            if how.kind != "text":
                own["ends"] = len(encoded.tokens)
                own["source_ends"] = None if encoded.source is None else len(encoded.source)
                if item.split == "validation":
                    texts.append(item.record.to_json() + "\n")
            if how.kind in ("examples", "conversations"):
                own |= {"learned": encoded.learned, "bytes": encoded.bytes}
            if how.kind == "examples":
                own["label"] = labels.setdefault(encoded.label, len(labels))
            for column, value in own.items():
                if value is not None:
                    values[f"{item.split}-{column}"].append(value)
    are_few = len(labels) <= _MAX_LABELS and sum(map(len, labels)) <= _MAX_LABEL_BYTES
    return write_chunk(
        how.folder / name,
        {column: _join(column.partition("-")[2], parts, token_dtype(vocab_size)) for column, parts in values.items()},
        {split: SplitRecord(**count) for split, count in counts.items()},
        texts=texts,
        labels=list(labels) if how.kind == "examples" and are_few else None,
    )


def _join(column: str, parts: list[Any], dtype: str) -> NDArray[Any]:
    """Return a column of a chunk; `dtype` is of token IDs."""
    if column in _PER_TOKEN:
        array = np.concatenate(parts)
        return array.astype({"tokens": dtype, "source": dtype, "places": "<i4"}.get(column, array.dtype), copy=False)
    if column in ("ends", "source_ends"):
        return np.cumsum(parts, dtype="<i8")
    return np.array(parts, dtype="<u8" if column == "hash" else "<i4")


def _count(item: Item, encoded: Encoded, how: _Tokenization) -> Counter[str]:
    """Count a record; of a pair that is left out, why."""
    sizes, target = [len(text.encode()) for text in item.record.texts], len(encoded.tokens)
    if encoded.source is None:
        return Counter(documents=int(item.record.starts), tokens=target, bytes=sum(sizes))
    source, is_filtered = len(encoded.source), item.split == "train" or how.filters_validation
    shorter, longer = sorted((source, target))
    if not shorter:
        return Counter(blank=1)
    if longer > how.parallel.max_length:
        return Counter(too_long=1)
    if is_filtered and longer > float(how.parallel.max_ratio) * shorter:
        return Counter(ratio=1)
    return Counter(documents=1, tokens=target, bytes=sizes[1], source_tokens=source, source_bytes=sizes[0])


def _encode(group: Sequence[Item], tokenizers: Tokenizers) -> list[Encoded]:
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

"""Tokenize a corpus into a store, chunk by chunk, or find it there.

The records are read in order and cut into chunks, which any process tokenizes: chunks depend on the files alone. A
store that is not complete keeps its finished chunks, whether its preparation was interrupted or several machines have
made a part of them each.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from lm import files, processes
from lm.config.run_config import ParallelTextConfig
from lm.corpus import (
    CHUNK,
    COLUMNS,
    HELD_OUT_FILE,
    MANIFEST,
    SOURCE_TOKENIZER,
    SPLITS,
    ChunkRecord,
    Manifest,
    Split,
    SplitName,
    SplitRecord,
    verify_checksums,
)
from lm.corpus.encode import Encoded, Tokenizers, encode
from lm.corpus.survey import Corpus, Item, hash_records
from lm.errors import InputError
from lm.text import Record
from lm.text.find import ProgressCallback
from lm.tokenizer import FILE_NAME, Tokenizer
from lm.tokenizer.chat_template import CONFIG_FILE

CHUNK_BYTES = 1 << 23
"""Minimum size of a chunk, except the last: seconds of work, which an interruption can lose."""

_MAX_CHUNKS = 1024
_CHUNK_NAME = re.compile(r"\.?chunk-\d{5,}-[0-9a-f]{8}")  # or of one that was being written
_GROUP_BYTES = 1 << 20  # encoded at once: enough to keep all cores of a tokenizer busy
_MAX_COMPLETIONS = 1 << 20  # characters of the different completions of a chunk that its record lists


@dataclass(frozen=True)
class PreparedFolder:
    """A folder of prepared data.

    Attributes:
        manifest: of a part, with its own chunks only.
    """

    folder: Path
    manifest: Manifest
    reused: bool


def prepare_corpus(
    corpus: Corpus,
    tokenizer: Tokenizer,
    *,
    source_tokenizer: Tokenizer | None = None,
    parallel: ParallelTextConfig | None = None,
    folder: Path | None = None,
    force: bool = False,
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
        workers: maximum number of processes [default: one per processor].
        part: number from 1, and count, of the part of the chunks to make; the store is completed without it.

    Raises:
        InputError: a character has no token, the corpus has changed since it was scanned, nothing is left to train on,
            or the folder holds something else.
        UsageError: the tokenizer has no end token, which examples need.
    """
    tokenizers, size = (tokenizer, source_tokenizer), max(CHUNK_BYTES, corpus.bytes // _MAX_CHUNKS)
    parallel = parallel or ParallelTextConfig()
    ratios = dict.fromkeys(SPLITS, parallel.max_ratio) | ({} if corpus.fraction else {"validation": math.inf})
    sums, fraction = [each and each.sha256 for each in tokenizers], str(corpus.fraction)
    inputs = [corpus.identity(corpus.summaries), sums, fraction, corpus.languages, parallel.max_length, ratios]
    start, end = tokenizer.start_of_text, tokenizer.end_of_text
    manifest = Manifest(
        kind=corpus.kind,
        key=hashlib.sha256(json.dumps([Manifest.format_version, *inputs]).encode()).hexdigest(),
        tokenizer=tokenizer.sha256,
        config=corpus.config,
        languages=corpus.languages,
        has_dependency_heads=corpus.has_dependency_heads,
        closing=end if corpus.kind == "text" and start == end else None,
    )
    destination, suffix = folder or files.cache_root() / "tokens" / manifest.key[:32], manifest.key[:8]
    with _locked_folder(destination, shared=part is not None):
        own = {FILE_NAME, CONFIG_FILE, SOURCE_TOKENIZER}
        with contextlib.suppress(InputError):
            found = Manifest.read(destination)
            if found.key == manifest.key:
                own.add(MANIFEST)
                verify_checksums(destination, found.sha256)
                return PreparedFolder(destination, found, reused=True)
        others = [path for path in destination.glob("[!.]*") if suffix not in path.name and path.name not in own]
        if others and folder is not None and not force:
            raise InputError(f"{folder}: holds something else already; choose another folder, or use --force")
        (destination / MANIFEST).unlink(missing_ok=True)
        for name, each in zip((FILE_NAME, SOURCE_TOKENIZER), tokenizers, strict=True):
            if each is not None:
                each.save(destination / name)
                manifest.tokenizers[name] = files.sha256(destination / name)
        cores = processes.available_cores()
        used = min(workers or cores, max(1, corpus.bytes // size))
        threads = {"RAYON_NUM_THREADS": str(max(1, cores // used))}
        read, chunks = 0, list[ChunkRecord]()
        work = partial(_tokenize_chunk, tokenizers=tokenizers, max_length=parallel.max_length, max_ratios=ratios)

        def unfinished() -> Iterator[tuple[Path, list[Item]]]:
            nonlocal read
            for number, (items, item_bytes) in enumerate(_group(corpus.records(tokenizer), limit=size)):
                read += item_bytes
                if part is None or number % part[1] == part[0] - 1:
                    path = destination / f"chunk-{number:05d}-{suffix}"
                    try:
                        chunk = msgspec.json.decode((path / CHUNK).read_bytes(), type=ChunkRecord)
                        verify_checksums(path, chunk.sha256)
                        chunks.append(chunk)
                    except (OSError, msgspec.DecodeError, InputError):  # missing or damaged
                        yield path, items

        for made in processes.map_in_processes(work, unfinished(), processes=used, environment=threads):
            chunks.append(made)
            if progress:
                progress(read, corpus.bytes)
        if read != corpus.bytes:
            raise InputError("the corpus changed while it was read; try again")
        manifest = replace(manifest, chunks=tuple(sorted(chunks, key=lambda chunk: chunk.name)))
        return PreparedFolder(destination, manifest if part else _complete(destination, manifest), reused=False)


def _complete(folder: Path, manifest: Manifest) -> Manifest:
    """Complete a store; measures how much held-out text the training split has."""
    train, held_out = (Split(folder, manifest, name) for name in SPLITS)
    if not train.documents:
        raise InputError("nothing is left to train on beside validation")
    repeated = train.find_overlap(held_out.column("passages")) if held_out.documents else None
    manifest = replace(manifest, repeated=repeated)
    for path in folder.iterdir():
        if _CHUNK_NAME.match(path.name) and path.name not in {chunk.name for chunk in manifest.chunks}:
            shutil.rmtree(path)
    files.write_json(folder / MANIFEST, msgspec.to_builtins(manifest))
    return manifest


@contextlib.contextmanager
def _locked_folder(folder: Path, *, shared: bool) -> Iterator[None]:
    """Create a folder for a store, and lock it; waits for other processes that make the same store."""
    files.make_folder(folder.absolute())
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _group(items: Iterable[Item], *, limit: int) -> Iterator[tuple[list[Item], int]]:
    """Yield lists of consecutive items and their bytes; a list ends with the item that brings it to `limit` or more."""
    group, size = list[Item](), 0
    for item in items:
        group.append(item)
        size += sum(len(text.encode()) for text in item.record.texts)
        if size >= limit:
            yield group, size
            group, size = [], 0
    if group:
        yield group, size


def _tokenize_chunk(
    job: tuple[Path, list[Item]],
    *,
    tokenizers: Tokenizers,
    max_length: int,
    max_ratios: Mapping[SplitName, float],
) -> ChunkRecord:
    """Tokenize the records of a chunk into its folder; the limits are those of pairs."""
    path, items = job
    kind = items[0].record.kind
    token_dtype = "<u2" if all(each is None or each.vocab_size <= 1 << 16 for each in tokenizers) else "<u4"
    counts: dict[SplitName, Counter[str]] = {split: Counter() for split in SPLITS}
    columns, completions, texts = defaultdict[str, list[NDArray[Any]]](list), dict[str, int](), list[str]()
    for group, _ in _group(items, limit=_GROUP_BYTES):
        kept: dict[SplitName, list[Record]] = {split: [] for split in SPLITS}
        for (split, record), encoded in zip(group, _encode(group, tokenizers), strict=True):
            sizes, length = [len(text.encode()) for text in record.texts], len(encoded.tokens)
            counted = {"documents": int(record.starts), "tokens": length, "bytes": sum(sizes)}
            own: dict[str, Any] = {"ends": length}
            if encoded.source_tokens is not None:
                shorter, longer = sorted((len(encoded.source_tokens), length))
                if not shorter or longer > min(max_length, max_ratios[split] * shorter):
                    counts[split]["left_out"] += 1
                    continue
                counted |= {"bytes": sizes[1], "source_bytes": sizes[0], "source_tokens": len(encoded.source_tokens)}
                own["source_ends"] = len(encoded.source_tokens)
            counts[split].update(counted)
            kept[split].append(record)
            if kind == "examples":
                own["completion"] = completions.setdefault(record.parts[-1].text, len(completions))
            for column, dtype in COLUMNS.items():
                value = own.get(column, getattr(encoded, column, None))
                if value is not None:
                    columns[f"{split}-{column}"].append(np.atleast_1d(np.asarray(value, dtype=dtype or token_dtype)))
        for split, records in kept.items():
            if records:
                columns[f"{split}-passages"].append(hash_records(records, kind))
        texts += [record.to_json() + "\n" for record in kept["validation"]]
    shutil.rmtree(path, ignore_errors=True)
    with files.replacing(path) as new:  # the folder has its name once it is complete
        new.mkdir()
        for name, parts in columns.items():
            values = np.concatenate(parts)
            np.save(new / f"{name}.npy", np.cumsum(values) if name.endswith("ends") else values)
        (new / HELD_OUT_FILE).write_text("".join(texts), encoding="utf-8", newline="\n")
        checksums = {file.name: files.sha256(file) for file in sorted(new.iterdir())}
        are_few = sum(map(len, completions)) <= _MAX_COMPLETIONS
        splits = {split: SplitRecord(**count) for split, count in counts.items()}
        chunk = ChunkRecord(path.name, splits, checksums, [*completions] if are_few else None)
        (new / CHUNK).write_bytes(msgspec.json.encode(chunk))
    return chunk


def _encode(group: Sequence[Item], tokenizers: Tokenizers) -> list[Encoded]:
    """Return the encoding of a group; the InputError for a record names its line."""
    try:
        return encode([item.record for item in group], tokenizers)
    except InputError as error:
        if len(group) > 1:
            return [encoded for item in group for encoded in _encode([item], tokenizers)]
        raise error.at(f"line {group[0].record.line}") if group[0].record.line else error from None

"""From a corpus to a folder of token shards: in parallel, in bounded memory, and only once for the same inputs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lm import files
from lm.config.data import DataConfig
from lm.config.run import FORMAT_VERSION
from lm.data import corpus as corpora
from lm.data import shards
from lm.data.array_writer import token_dtype
from lm.data.corpus import Corpus, Routed
from lm.data.encoding import grouped
from lm.data.examples.prepare import write_examples
from lm.data.folder import partial_folder, put_in_place, remove_abandoned
from lm.data.shards import Manifest, Repetition, ShardWriter, SourceRecord, SplitName, SplitRecord, Tokens
from lm.data.windows import repetition
from lm.data.windows.repetition import Documents
from lm.errors import InputError
from lm.files import cache_root
from lm.text.documents import Survey
from lm.text.files import TextFile
from lm.tokenizer.pieces import Piece
from lm.tokenizer.tokenizer import FILE_NAME, Ids, Tokenizer

Progress = Callable[[int, int], None]
"""Called with the bytes of text that are done, and all there are."""

_PREPARED = re.compile(r"(train|validation)-\w+\.npy|" + "|".join(map(re.escape, (shards.MANIFEST, FILE_NAME))))
"""What a folder of prepared tokens holds."""

_BATCHES_AHEAD = 2  # one batch is encoded while the tokens of the other are copied and written


@dataclass(frozen=True)
class Prepared:
    """A folder of token shards.

    Attributes:
        folder: where it is.
        manifest: what it holds.
        reused: whether it was there already.
    """

    folder: Path
    manifest: Manifest
    reused: bool


def prepare(
    sources: Sequence[TextFile],
    tokenizer: Tokenizer,
    config: DataConfig,
    folder: Path | str,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> Prepared:
    """Tokenize a corpus into a folder; reuse the folder if it holds just that.

    Each document is written as its tokens after the tokenizer's start-of-text token. Where that is not also the
    end-of-text token, the latter follows; where it is, the next document's start serves, and one ends the split.
    Examples to learn from are written as `example_store` describes.

    Args:
        sources: the corpus, as `documents.resolve` gives it.
        tokenizer: what makes the tokens.
        config: separator and validation rule.
        folder: is made, with its parents; may exist if it is empty or holds prepared tokens.
        force: replace prepared tokens that are not the same.
        progress: called as text is tokenized.

    Raises:
        InputError: a source is no text, or the folder holds something else, or nothing is left to train on.
        UsageError: the validation rule makes no sense.
    """
    folder = Path(folder)
    corpus = corpora.survey(sources, config)
    key = _key(corpus, tokenizer)
    existing = _existing(folder)
    if existing and existing.key == key:
        return Prepared(folder, existing, reused=True)
    present = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if present and not (shards.MANIFEST in present and all(map(_PREPARED.fullmatch, present))):
        raise InputError(f"{folder}: is there already, and holds no prepared tokens; choose another folder")
    if present and not force:
        raise InputError(f"{folder}: holds other tokens already; choose another folder, or --force")
    remove_abandoned(folder.resolve().parent, folder.resolve().name)
    manifest = _write(corpus, tokenizer, folder, config=config, key=key, progress=progress)
    return Prepared(folder, manifest, reused=False)


def prepare_cached(
    sources: Sequence[TextFile],
    tokenizer: Tokenizer,
    config: DataConfig,
    *,
    root: Path | None = None,
    progress: Progress | None = None,
) -> Prepared:
    """Tokenize a corpus into a folder of the cache, or find it there.

    Args:
        sources: the corpus.
        tokenizer: what makes the tokens.
        config: separator and validation rule.
        root: the cache [default: `cache_root()`].
        progress: called as text is tokenized; not at all if the tokens are there.

    Raises:
        InputError: a source is no text, or nothing is left to train on.
        UsageError: the validation rule makes no sense.
    """
    corpus = corpora.survey(sources, config)
    key = _key(corpus, tokenizer)
    folder = (root or cache_root()) / "tokens" / key[:32]
    remove_abandoned(folder.parent)
    if existing := _existing(folder):
        return Prepared(folder, existing, reused=True)
    manifest = _write(corpus, tokenizer, folder, config=config, key=key, progress=progress)
    return Prepared(folder, manifest, reused=False)


def _key(corpus: Corpus, tokenizer: Tokenizer) -> str:
    """A hash of all that the tokens depend on: contents, not names or times."""
    contents = [[found.identity for found in group] for group in (corpus.sources, corpus.validation_sources)]
    depends = [FORMAT_VERSION, tokenizer.sha256, corpus.separator, str(corpus.fraction), *contents]
    return hashlib.sha256(json.dumps(depends).encode()).hexdigest()


def _existing(folder: Path) -> Manifest | None:
    try:
        return shards.read_manifest(folder)
    except InputError:
        return None


def _write(
    corpus: Corpus, tokenizer: Tokenizer, folder: Path, *, config: DataConfig, key: str, progress: Progress | None
) -> Manifest:
    """Write all files into a folder beside the final one, which then takes its place."""
    place = folder.resolve()  # so that a link stays one
    with partial_folder(place) as partial:
        repeated: Repetition | None = None
        dtype = token_dtype(tokenizer.vocab_size)
        if config.supervised:
            splits = write_examples(
                corpus, tokenizer, partial, dtype=token_dtype(tokenizer.vocab_size), progress=progress
            )
        else:
            splits, repeated = _write_splits(corpus, tokenizer, partial, progress)
        manifest = Manifest(
            key=key,
            tokenizer=tokenizer.sha256,
            vocab_size=tokenizer.vocab_size,
            dtype=dtype,
            separator=config.separator,
            validation=config.validation,
            supervised=config.supervised,
            sources=_records(corpus.sources),
            validation_sources=_records(corpus.validation_sources),
            splits=splits,
            repetition=repeated,
            field=config.field,
        )
        _check(manifest, corpus)
        tokenizer.save(partial / FILE_NAME)
        files.sync(partial / FILE_NAME)
        files.write_json(partial / shards.MANIFEST, manifest.to_dict())
        put_in_place(partial, place, is_there=lambda: (there := _existing(place)) is not None and there.key == key)
    return manifest


def _write_splits(
    corpus: Corpus, tokenizer: Tokenizer, folder: Path, progress: Progress | None
) -> tuple[dict[str, SplitRecord], Repetition]:
    with contextlib.ExitStack() as opened:
        writers = {
            split: _SplitWriter(folder, split, tokenizer, token_dtype(tokenizer.vocab_size)) for split in shards.SPLITS
        }
        for writer in writers.values():
            opened.callback(writer.discard)
        done = 0
        for item, ids in _encoded(corpora.routed(corpus, tokenizer), tokenizer):
            done += writers[item.split].add(item.piece, ids)
            if progress:
                progress(done, corpus.bytes)
        splits: dict[str, SplitRecord] = {split: writer.close() for split, writer in writers.items()}
        return splits, _repetition(folder, writers, splits, tokenizer)


def _repetition(
    folder: Path, writers: Mapping[SplitName, _SplitWriter], splits: Mapping[str, SplitRecord], tokenizer: Tokenizer
) -> Repetition:
    train, held_out = (
        Documents(Tokens(folder, split, splits[split]), np.array(writers[split].edges)) for split in shards.SPLITS
    )
    stretch = repetition.stretch_tokens(tokens=splits["train"].tokens, text_bytes=splits["train"].bytes)
    return repetition.measure(train, held_out, vocab_size=tokenizer.vocab_size, stretch=stretch)


class _SplitWriter:
    """Writes the documents of one split, with the tokens that part them.

    Attributes:
        edges: where each document begins and, when closed, where the last one ends. A start token belongs to its
            document if it has an end token of its own; else the next start token, which ends it, does.
    """

    def __init__(self, folder: Path, split: SplitName, tokenizer: Tokenizer, dtype: str) -> None:
        self._shards = ShardWriter(folder, split, dtype=dtype)
        start, end = tokenizer.start_of_text, tokenizer.end_of_text
        self._start = np.array([] if start is None else [start], dtype=np.uint32)
        self._end = np.array([] if end is None else [end], dtype=np.uint32)
        self._between = self._start if start == end else np.concatenate([self._end, self._start])
        self._documents = self._tokens = self._bytes = 0
        self._own_start = 0 if start == end else len(self._start)
        self.edges = array("q")

    def add(self, piece: Piece, ids: Ids) -> int:
        """Write a piece; returns its size in bytes."""
        if piece.starts_document:
            self._append(self._between if self._documents else self._start)
            self._documents += 1
            self.edges.append(self._tokens - self._own_start)
        self._append(ids)
        size = len(piece.text.encode())
        self._bytes += size
        return size

    def close(self) -> SplitRecord:
        if self._documents:
            self._append(self._end)
        self._shards.close()
        self.edges.append(self._tokens)
        return SplitRecord(self._documents, self._tokens, self._bytes, tuple(self._shards.shards))

    def _append(self, ids: Ids) -> None:
        self._shards.append(ids)
        self._tokens += len(ids)

    def discard(self) -> None:
        """Let go of a file that is still open: writing has failed."""
        self._shards.discard()


def _encoded(items: Iterable[Routed], tokenizer: Tokenizer) -> Iterator[tuple[Routed, Ids]]:
    """Each piece with its tokens, in order; encoding runs ahead of the caller by a bounded amount."""
    with ThreadPoolExecutor(_BATCHES_AHEAD) as pool:
        waiting: deque[tuple[list[Routed], Future[list[Ids]]]] = deque()
        for batch in grouped(items, lambda item: len(item.piece.text)):
            waiting.append((batch, pool.submit(_encode, batch, tokenizer)))
            if len(waiting) > _BATCHES_AHEAD:
                yield from _finished(*waiting.popleft())
        while waiting:
            yield from _finished(*waiting.popleft())


def _finished(batch: list[Routed], tokens: Future[list[Ids]]) -> Iterator[tuple[Routed, Ids]]:
    yield from zip(batch, tokens.result(), strict=True)


def _encode(batch: list[Routed], tokenizer: Tokenizer) -> list[Ids]:
    try:
        tokens = tokenizer.encode_batch([item.piece.context + item.piece.text for item in batch])
    except InputError:
        for item in batch:  # which file it was
            _encode_one(item, tokenizer)
        raise
    return [ids[item.piece.context_tokens :] for item, ids in zip(batch, tokens, strict=True)]


def _encode_one(item: Routed, tokenizer: Tokenizer) -> None:
    try:
        tokenizer.encode(item.piece.text)
    except InputError as error:
        raise InputError(f"{item.source.name}: {error}") from None


def _check(manifest: Manifest, corpus: Corpus) -> None:
    if sum(split.bytes for split in manifest.splits.values()) != corpus.bytes:
        names = ", ".join(record.path for record in manifest.sources[:3])
        raise InputError(f"{names}: the corpus changed while it was read; try again")
    if not manifest.splits["train"].tokens:
        raise InputError(f"no text is left to train on: validation {manifest.validation} takes all (--validation)")


def _records(surveys: Iterable[Survey]) -> tuple[SourceRecord, ...]:
    return tuple(SourceRecord(found.file.name, found.size, found.sha256) for found in surveys)

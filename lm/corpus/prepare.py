"""A corpus of text or of examples as a folder of tokens: made chunk by chunk, and found there the next time."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lm.config.data import DataConfig
from lm.corpus.chunks import Chunk, ChunkWriter, Done, HeldOut, StoredChunk, chunks_of, stored_chunks
from lm.corpus.corpus import Corpus
from lm.corpus.examples import LABELS, held_out_examples, join_examples, write_examples
from lm.corpus.folders import (
    Preparation,
    Prepared,
    key_of,
    place_in_cache,
    remove_abandoned,
    remove_finished,
    unfinished_folder,
)
from lm.corpus.manifest import MANIFEST, Manifest, SourceRecord
from lm.corpus.shards import WrittenTokens, read_manifest, token_dtype
from lm.corpus.text import held_out_text, join_text, write_text
from lm.errors import InputError
from lm.text.documents import Survey
from lm.text.files import Progress
from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer

_TOKEN_FILES = re.compile(r"(train|validation)-\w+\.npy|" + "|".join(map(re.escape, (MANIFEST, FILE_NAME, LABELS))))
"""The names of the files in a folder of prepared tokens."""


@dataclass(frozen=True)
class Making:
    """How a corpus of some kind becomes tokens.

    Attributes:
        held_out: tells which documents are held out.
        write: writes a chunk.
        join: writes the shards into an empty folder, given all chunks in order.
    """

    held_out: Callable[[Corpus], HeldOut]
    write: ChunkWriter
    join: Callable[[Iterable[StoredChunk], Tokenizer, Path], WrittenTokens]

    def chunks(self, corpus: Corpus) -> list[Chunk]:
        """The chunks of a corpus."""
        return chunks_of(corpus, self.held_out(corpus))


def making_of(config: DataConfig) -> Making:
    """How tokens are made with these settings."""
    if config.supervised:
        return Making(held_out_examples, write_examples, join_examples)
    return Making(held_out_text, write_text, join_text)


@dataclass(frozen=True)
class Origin:
    """What tokens are made of, apart from the tokenizer.

    Attributes:
        key: hash of everything that the tokens depend on.
        config: how the corpus becomes tokens.
        name: the first few files, for messages.
        bytes: UTF-8 bytes of all text.
        sources: the files of the corpus.
        validation_sources: the files of the validation split, where it has files of its own.
    """

    key: str
    config: DataConfig
    name: str
    bytes: int
    sources: tuple[SourceRecord, ...]
    validation_sources: tuple[SourceRecord, ...]

    @classmethod
    def of(cls, corpus: Corpus, tokenizer: Tokenizer) -> Origin:
        """That of the tokens that a tokenizer makes of a corpus."""
        contents = [[found.identity for found in group] for group in (corpus.files, corpus.validation_files)]
        key = key_of(tokenizer.sha256, corpus.config.separator, str(corpus.fraction), *contents)
        sources = _records(corpus.files), _records(corpus.validation_files)
        return cls(key, corpus.config, corpus.name, corpus.bytes, *sources)

    def manifest(self, written: WrittenTokens, tokenizer: Tokenizer) -> Manifest:
        """The manifest of the tokens; InputError if none of them are to train on."""
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
            kind="examples" if config.supervised else "text",
            sources=self.sources,
            validation_sources=self.validation_sources,
            splits=written.splits,
            repetition=written.repetition,
            field=config.field,
            labels=written.labels,
        )


def _records(surveys: Sequence[Survey]) -> tuple[SourceRecord, ...]:
    return tuple(SourceRecord(found.file.name, found.size, found.sha256) for found in surveys)


def prepare_corpus(
    corpus: Corpus,
    tokenizer: Tokenizer,
    *,
    folder: Path | None = None,
    force: bool = False,
    root: Path | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
    with_labels: bool = False,
) -> Prepared[Manifest]:
    """Tokenize a corpus into a folder, as running text or as examples, or find it there.

    A large corpus is tokenized chunk by chunk, by several processes. After an interruption the finished chunks are
    kept, and the same call resumes there.

    Args:
        corpus: the corpus.
        tokenizer: what makes the tokens; it is kept beside them.
        folder: is made with its parents; it may exist if it is empty or holds prepared tokens [default: in the cache].
        force: replace prepared tokens in the folder that are not the same.
        root: the cache [default: `cache_root()`].
        processes: that tokenize at the same time, at most [default: as many as there are processors].
        progress: called as text is tokenized; not at all if the tokens are there.
        with_labels: for a classifier: examples in the cache that were prepared before the text of labels was kept are
            prepared again.

    Raises:
        InputError: the tokenizer has no token for a character, nothing is left to train on, or the folder holds
            something else.
        UsageError: examples need a token that ends a text, and the tokenizer has none.
    """
    making = making_of(corpus.config)

    def stored(unfinished: Path, saved: Path) -> Iterator[StoredChunk]:
        chunks, done = making.chunks(corpus), counted(progress, corpus.bytes)
        yield from stored_chunks(
            chunks, tokenizer, making.write, folder=unfinished, saved=saved, workers=processes, done=done
        )

    origin = Origin.of(corpus, tokenizer)
    read = _read_labelled if with_labels and corpus.config.supervised and folder is None else read_manifest
    return tokens_of_chunks(origin, tokenizer, stored, folder=folder, force=force, root=root, read=read)


def _read_labelled(folder: Path) -> Manifest:
    """The manifest of examples with their labels; InputError where these were not kept."""
    manifest = read_manifest(folder)
    if manifest.labels is None:
        raise InputError(f"{folder}: prepared by an earlier version, which kept no text of labels; prepare it again")
    return manifest


def counted(progress: Progress | None, total: int) -> Done | None:
    """A function that adds up what is done, and passes it on."""
    done = 0

    def add(more: int) -> None:
        nonlocal done
        done += more
        if progress:
            progress(done, total)

    return add if progress else None


def tokens_of_chunks(
    origin: Origin,
    tokenizer: Tokenizer,
    stored: Callable[[Path, Path], Iterator[StoredChunk]],
    *,
    folder: Path | None = None,
    force: bool = False,
    root: Path | None = None,
    read: Callable[[Path], Manifest] = read_manifest,
) -> Prepared[Manifest]:
    """A folder of tokens that are in chunks, found or made.

    Args:
        origin: of the tokens.
        tokenizer: that makes them.
        stored: gives all chunks in order, given a folder for what is finished and the file of the tokenizer.
        folder: as of `prepare_corpus`, whose errors are raised, too.
        force: as of `prepare_corpus`.
        root: as of `prepare_corpus`.
        read: gives the manifest of a complete folder; raises InputError for any other.
    """
    place = folder or place_in_cache("tokens", origin.key, root=root)
    found = 0
    with contextlib.ExitStack() as opened:  # until the folder has its name, what is finished stays

        def make(partial: Path) -> Manifest:
            nonlocal found
            unfinished = opened.enter_context(unfinished_folder(place.resolve()))
            tokenizer.save(partial / FILE_NAME)
            chunks = _Counted(stored(unfinished, partial / FILE_NAME))
            written = making_of(origin.config).join(chunks, tokenizer, partial)
            if chunks.bytes != origin.bytes:
                shutil.rmtree(unfinished)
                raise InputError(f"{origin.name}: the corpus changed while it was read; try again")
            found = chunks.found
            return origin.manifest(written, tokenizer)

        preparation = Preparation(origin.key, read, make)
        damage = there = None
        try:
            there = preparation.check(place)
        except InputError as error:
            damage = error
        if there is not None:
            remove_finished(place.resolve())
        elif folder is not None:
            _refuse_other_files(folder, force=force, damage=damage)
            remove_abandoned(folder.resolve().parent, folder.resolve().name)
        return dataclasses.replace(preparation.find_or_make(place), chunks_found=found)


class _Counted:
    """Chunks as they come.

    Attributes:
        bytes: UTF-8 bytes of text in them.
        found: how many were made before.
    """

    def __init__(self, chunks: Iterator[StoredChunk]) -> None:
        self._chunks = chunks
        self.bytes = self.found = 0

    def __iter__(self) -> Iterator[StoredChunk]:
        for chunk in self._chunks:
            yield chunk
            self.bytes += chunk.bytes
            self.found += chunk.found


def _refuse_other_files(folder: Path, *, force: bool, damage: InputError | None) -> None:
    """Raise InputError if a folder holds anything but prepared tokens; also if it holds these, unless `force`.

    Args:
        folder: to write tokens into.
        force: replace tokens that are there.
        damage: what is wrong with the tokens that are there, if they are those that are to be made.
    """
    present = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if present and not (MANIFEST in present and all(map(_TOKEN_FILES.fullmatch, present))):
        raise InputError(f"{folder}: is there already, and holds no prepared tokens; choose another folder")
    if present and not force and damage is not None:
        raise InputError(str(damage), settings=["force"])
    if present and not force:
        problem = f"{folder}: holds other tokens already; choose another folder, or replace them"
        raise InputError(problem, settings=["force"])

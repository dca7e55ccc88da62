"""Preparing data once: what is made of certain inputs goes into a folder, and is found there the next time.

A folder is filled beside its place, its manifest last, and renamed when it is complete. So what has the name is whole,
whatever happens to the process, and processes that prepare the same data at the same time end with one folder.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from lm import files
from lm.data.array_writer import token_dtype
from lm.data.corpus import Corpus
from lm.data.folder import partial_folder, put_in_place, remove_abandoned
from lm.data.manifest import MANIFEST, Manifest, Provenance, Repetition, SourceRecord, SplitRecord
from lm.data.shards import read_manifest
from lm.errors import InputError
from lm.files import cache_root
from lm.text.documents import Survey
from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer

KEY_VERSION = 1
"""Of what keys are made of: raised when the same inputs become other data."""

_TOKEN_FILES = re.compile(r"(train|validation)-\w+\.npy|" + "|".join(map(re.escape, (MANIFEST, FILE_NAME))))
"""The names of the files in a folder of prepared tokens."""


M = TypeVar("M", bound=Provenance)


@dataclass(frozen=True)
class Prepared(Generic[M]):
    """A folder of prepared data.

    Attributes:
        folder: where it is.
        manifest: what it holds.
        reused: whether it was there already.
    """

    folder: Path
    manifest: M
    reused: bool


@dataclass(frozen=True)
class Preparation(Generic[M]):
    """How data of some kind are made of certain inputs.

    Attributes:
        key: a hash of the inputs (see `key_of`).
        manifest: the file name of the manifest.
        read: gives the manifest of a complete folder; raises InputError for any other.
        write: writes all files but the manifest into an empty folder; gives the manifest.
    """

    key: str
    manifest: str
    read: Callable[[Path], M]
    write: Callable[[Path], M]

    def find(self, folder: Path) -> M | None:
        """The manifest of a folder, if it is complete and was made of the same inputs."""
        try:
            manifest = self.read(folder)
        except InputError:
            return None
        return manifest if manifest.key == self.key else None

    def find_or_make(self, folder: Path) -> Prepared[M]:
        """The data in a folder: found there, or made now in place of what else it holds."""
        if (there := self.find(folder)) is not None:
            return Prepared(folder, there, reused=True)
        place = folder.resolve()  # so that a link stays one
        with partial_folder(place) as partial:
            made = self.write(partial)
            for file in partial.iterdir():
                files.sync(file)
            files.write_json(partial / self.manifest, made.to_dict())
            put_in_place(partial, place, is_there=lambda: self.find(place) is not None)
        return Prepared(folder, made, reused=False)

    def find_or_make_in_cache(self, kind: str, *, root: Path | None = None) -> Prepared[M]:
        """The data in the folder of the cache that is named after their key: found there, or made now.

        Args:
            kind: the folder in the cache that has a folder for each key.
            root: the cache [default: `cache_root()`].
        """
        folder = (root or cache_root()) / kind / self.key[:32]
        remove_abandoned(folder.parent)
        return self.find_or_make(folder)


def key_of(*inputs: Any) -> str:  # noqa: ANN401 (whatever JSON can hold)
    """A hash of all inputs that prepared data depend on: contents of files, not their names or times."""
    return hashlib.sha256(json.dumps([KEY_VERSION, *inputs]).encode()).hexdigest()


@dataclass(frozen=True)
class WrittenTokens:
    """The tokens of a corpus in shards.

    Attributes:
        splits: what each split holds.
        repetition: how much of the text occurs more than once, where that is measured.
    """

    splits: dict[str, SplitRecord]
    repetition: Repetition | None = None


def prepare_tokens(
    corpus: Corpus,
    tokenizer: Tokenizer,
    write: Callable[[Path], WrittenTokens],
    *,
    folder: Path | None = None,
    force: bool = False,
    root: Path | None = None,
) -> Prepared[Manifest]:
    """Tokenize a corpus of text or of examples into a folder, or find it there.

    Args:
        corpus: the corpus.
        tokenizer: what makes the tokens; it is kept beside them.
        write: writes the shards into an empty folder.
        folder: is made with its parents; it may exist if it is empty or holds prepared tokens [default: in the cache].
        force: replace prepared tokens in the folder that are not the same.
        root: the cache [default: `cache_root()`].

    Raises:
        InputError: the folder holds something else, or nothing is left to train on.
    """

    def make(partial: Path) -> Manifest:
        manifest = _manifest(key, corpus, tokenizer, write(partial))
        if not manifest.splits["train"].tokens:
            raise InputError(f"no text is left to train on: validation {manifest.validation} takes all (--validation)")
        tokenizer.save(partial / FILE_NAME)
        return manifest

    contents = [[found.identity for found in group] for group in (corpus.files, corpus.validation_files)]
    key = key_of(tokenizer.sha256, corpus.config.separator, str(corpus.fraction), *contents)
    preparation = Preparation(key, MANIFEST, read_manifest, make)
    if folder is None:
        return preparation.find_or_make_in_cache("tokens", root=root)
    if preparation.find(folder) is None:
        _refuse_other_files(folder, force=force)
        remove_abandoned(folder.resolve().parent, folder.resolve().name)
    return preparation.find_or_make(folder)


def _manifest(key: str, corpus: Corpus, tokenizer: Tokenizer, written: WrittenTokens) -> Manifest:
    return Manifest(
        key=key,
        tokenizer=tokenizer.sha256,
        vocab_size=tokenizer.vocab_size,
        dtype=token_dtype(tokenizer.vocab_size),
        separator=corpus.config.separator,
        validation=corpus.config.validation,
        supervised=corpus.config.supervised,
        sources=_records(corpus.files),
        validation_sources=_records(corpus.validation_files),
        splits=written.splits,
        repetition=written.repetition,
        field=corpus.config.field,
    )


def _records(surveys: Sequence[Survey]) -> tuple[SourceRecord, ...]:
    return tuple(SourceRecord(found.file.name, found.size, found.sha256) for found in surveys)


def _refuse_other_files(folder: Path, *, force: bool) -> None:
    """Raise InputError if a folder holds anything but prepared tokens; also if it holds these, unless `force`."""
    present = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if present and not (MANIFEST in present and all(map(_TOKEN_FILES.fullmatch, present))):
        raise InputError(f"{folder}: is there already, and holds no prepared tokens; choose another folder")
    if present and not force:
        raise InputError(f"{folder}: holds other tokens already; choose another folder, or --force")

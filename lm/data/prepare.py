"""Preparing data once: what is made of certain inputs goes into a folder, and is found there the next time.

A folder is filled beside its place, its manifest last, and renamed when it is complete. So what has the name is whole,
whatever happens to the process, and processes that prepare the same data at the same time end with one folder. What
happens to its files later is seen by their checksums (see `integrity`).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from lm import files
from lm.data import integrity
from lm.data.folder import partial_folder, put_in_place, remove_abandoned
from lm.data.manifest import Provenance
from lm.errors import InputError
from lm.files import cache_root

KEY_VERSION = 1
"""Of what keys are made of: raised when the same inputs become other data."""

M = TypeVar("M", bound=Provenance)

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared(Generic[M]):
    """A folder of prepared data.

    Attributes:
        folder: where it is.
        manifest: what it holds.
        reused: whether it was there already.
        parts_found: how many of its parts were there already, after an interruption.
    """

    folder: Path
    manifest: M
    reused: bool
    parts_found: int = 0


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

    def check(self, folder: Path) -> M | None:
        """The manifest of a folder; None if there is none, or of other inputs; InputError if the data are damaged."""
        if not (folder / self.manifest).is_file():
            return None
        manifest = self.read(folder)
        if manifest.key != self.key:
            return None
        integrity.verify(folder, manifest.sha256)
        return manifest

    def find(self, folder: Path) -> M | None:
        """The manifest of a folder, if it is complete, undamaged, and was made of the same inputs."""
        try:
            return self.check(folder)
        except InputError:
            return None

    def find_or_make(self, folder: Path) -> Prepared[M]:
        """The data in a folder: found there, or made now in place of what else it holds."""
        try:
            there = self.check(folder)
        except InputError as error:
            there = None
            _LOG.warning("%s (done now)", error)
        if there is not None:
            return Prepared(folder, there, reused=True)
        place = folder.resolve()  # so that a link stays one
        with partial_folder(place) as partial:
            made = self.write(partial)
            for file in partial.iterdir():
                files.sync(file)
            made = made.with_checksums(integrity.checksums(partial))
            files.write_json(partial / self.manifest, made.to_dict())
            put_in_place(partial, place, is_there=lambda: self.find(place) is not None)
        return Prepared(folder, made, reused=False)

    def find_or_make_in_cache(self, kind: str, *, root: Path | None = None) -> Prepared[M]:
        """The data in the folder of the cache that is named after their key: found there, or made now.

        Args:
            kind: the folder in the cache that has a folder for each key.
            root: the cache [default: `cache_root()`].
        """
        return self.find_or_make(place_in_cache(kind, self.key, root=root))


def place_in_cache(kind: str, key: str, *, root: Path | None = None) -> Path:
    """The folder of the cache for data with a key, which need not exist; what was abandoned beside it is removed."""
    folder = (root or cache_root()) / kind / key[:32]
    remove_abandoned(folder.parent)
    return folder


def key_of(*inputs: Any) -> str:  # noqa: ANN401 (whatever JSON can hold)
    """A hash of all inputs that prepared data depend on: contents of files, not their names or times."""
    return hashlib.sha256(json.dumps([KEY_VERSION, *inputs]).encode()).hexdigest()

"""Parts of a corpus on disk: each has a folder that is there whole or not at all, so that no part is made twice.

The folder of a part is called after its key. It holds the part's tokens, split by split, and a record with the sums of
its files, by which a part is known to be whole wherever it was copied and whatever happened to the machine.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lm import files, processes
from lm.config import options
from lm.data.manifest import SplitName
from lm.data.parts import Part
from lm.errors import InputError, UsageError
from lm.tokenizer.tokenizer import Tokenizer

_RECORD = "part.json"
_KEY_DIGITS = 32
_NEW = ".new-"

Done = Callable[[int], None]
"""Called with the bytes of text of each group that is done."""


@dataclass(frozen=True)
class PartSplit:
    """What a part adds to a split.

    Attributes:
        documents: that begin in the part.
        bytes: UTF-8 bytes of their text.
    """

    documents: int
    bytes: int


@dataclass(frozen=True)
class StoredPart:
    """A part that is made.

    Attributes:
        folder: where its files are.
        splits: what it adds to each split.
        found: whether it was there already.
    """

    folder: Path
    splits: dict[SplitName, PartSplit]
    found: bool = field(default=False, compare=False)

    @property
    def bytes(self) -> int:
        """UTF-8 bytes of its text."""
        return sum(split.bytes for split in self.splits.values())

    def array(self, split: SplitName, name: str) -> npt.NDArray[Any]:
        """One of its arrays, read through mmap."""
        array: npt.NDArray[Any] = np.load(self.folder / array_name(split, name), mmap_mode="r")
        return array


class PartWriter(Protocol):
    """Writes the arrays of a part into an empty folder, and says what it adds to each split."""

    def __call__(self, part: Part, tokenizer: Tokenizer, folder: Path, done: Done | None) -> dict[SplitName, PartSplit]:
        """Call `done`, if there is one, whenever a group of texts is written."""
        ...


def array_name(split: SplitName, name: str) -> str:
    """The file name of an array of a part."""
    return f"{split}-{name}.npy"


def part_name(part: Part, tokenizer: str) -> str:
    """The name of a part's folder, given the hash of the tokenizer."""
    return part.key(tokenizer)[:_KEY_DIGITS]


def stored_parts(
    parts: Sequence[Part],
    tokenizer: Tokenizer,
    write: PartWriter,
    *,
    folder: Path,
    saved: Path,
    workers: int | None = None,
    done: Done | None = None,
) -> Iterator[StoredPart]:
    """The parts in order, each found in a folder or made there.

    Args:
        parts: of a corpus.
        tokenizer: what makes the tokens.
        write: what writes a part.
        folder: of the parts' folders.
        saved: the file of the tokenizer.
        workers: how many processes [default: as many as there are processors].
        done: called as text is done; where there are several processes, part by part.

    Raises:
        InputError: the tokenizer has no token for a character, or a process was killed.
    """
    _remove_begun(folder)
    cores = processes.cores()
    used = max(1, min(workers or cores, len(parts)))
    if used == 1:
        yield from (_find_or_make(part, write=write, tokenizer=tokenizer, folder=folder, done=done) for part in parts)
        return
    work = partial(_find_or_make, write=write, tokenizer=saved, folder=folder)
    threads = {"RAYON_NUM_THREADS": str(max(1, cores // used))}
    try:
        for stored in processes.in_order(work, parts, processes=used, environment=threads):
            yield stored
            if done:
                done(stored.bytes)
    finally:
        _remove_begun(folder)


def _remove_begun(folder: Path) -> None:
    """Remove what a process that was killed has begun."""
    for begun in folder.glob(f"*{_NEW}*"):
        shutil.rmtree(begun, ignore_errors=True)


def _find_or_make(
    part: Part, *, write: PartWriter, tokenizer: Tokenizer | Path, folder: Path, done: Done | None = None
) -> StoredPart:
    loaded = _loaded(tokenizer) if isinstance(tokenizer, Path) else tokenizer
    name = part_name(part, loaded.sha256)
    if (found := find_part(folder / name)) is not None:
        if done:
            done(found.bytes)
        return found
    new = folder / f"{name}{_NEW}{secrets.token_hex(4)}"
    new.mkdir()
    try:
        splits = write(part, loaded, new, done)
        _write_record(new, splits)
        if (folder / name).exists():  # and is damaged
            shutil.rmtree(folder / name)
        new.rename(folder / name)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return StoredPart(folder / name, splits)


@cache
def _loaded(path: Path) -> Tokenizer:
    return Tokenizer.load(path)


def _write_record(folder: Path, splits: Mapping[SplitName, PartSplit]) -> None:
    sums = {path.name: files.sha256(path) for path in folder.iterdir()}
    described = {split: asdict(record) for split, record in splits.items()}
    (folder / _RECORD).write_text(json.dumps({"splits": described, "sha256": sums}))  # sums tell whether all is there


def find_part(folder: Path) -> StoredPart | None:
    """The part in a folder, if all its files are as they were written."""
    try:
        record = files.read_json(folder / _RECORD)
        whole = all(files.sha256(folder / name) == expected for name, expected in record["sha256"].items())
        splits = {split: options.build(PartSplit, values, where=split) for split, values in record["splits"].items()}
    except (InputError, UsageError, OSError, KeyError, TypeError, AttributeError):
        return None
    return StoredPart(folder, splits, found=True) if whole else None


def read_array(array: npt.NDArray[Any], *, block: int = 1 << 20) -> Iterator[npt.NDArray[Any]]:
    """An array in blocks, so that little of it is in memory at a time."""
    for start in range(0, len(array), block):
        yield array[start : start + block]

"""Token shards on disk: `.npy` files read through mmap, and the manifest that says what they are.

A folder holds `train-00000.npy`, `validation-00000.npy`, … (one-dimensional, uint16 where the vocabulary allows, else
uint32), the `tokenizer.json` that made them and `manifest.json`. A folder with a manifest is complete: the manifest is
written last, and the folder gets its name only then.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lm.config import options
from lm.config.data import DataConfig
from lm.config.run import FORMAT_VERSION
from lm.data.array_writer import ArrayWriter
from lm.errors import InputError, UsageError

SplitName = Literal["train", "validation"]
SPLITS: tuple[SplitName, ...] = ("train", "validation")
MANIFEST = "manifest.json"
SHARD_TOKENS = 1 << 26


@dataclass(frozen=True)
class SourceRecord:
    """A file that tokens were made from: as the user named it, its size in bytes and its hash, both decompressed."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class SplitRecord:
    """What a split holds.

    Attributes:
        documents: documents.
        tokens: tokens, those that start and end documents included.
        bytes: UTF-8 bytes of the documents' text.
        shards: tokens in each shard.
    """

    documents: int
    tokens: int
    bytes: int
    shards: tuple[int, ...]


@dataclass(frozen=True)
class Repetition:
    """How much of a corpus is there more than once (see `repetition`).

    Attributes:
        documents: how many, of both splits, have the same tokens as one that is counted already.
        held_out: share of the held-out text that occurs in the training split too, in stretches of `stretch` tokens or
            as a whole document shorter than that; None without held-out text.
        stretch: in tokens.
    """

    documents: int
    held_out: float | None
    stretch: int


@dataclass(frozen=True)
class Manifest:
    """Where tokens come from and how many there are; `manifest.json` is this, as JSON.

    Attributes:
        key: hash of everything that the tokens depend on.
        tokenizer: hash of the tokenizer (`Tokenizer.sha256`).
        vocab_size: of the tokenizer.
        dtype: of the shards.
        separator: the line that ended documents within files.
        validation: what was held out, as the user put it.
        sources: the files of the corpus.
        validation_sources: the files of the validation split, where it has its own.
        splits: what "train" and "validation" hold.
        supervised: whether they are examples to learn from (see `example_store`).
        repetition: what of the text is there more than once; None for examples, and where it was not looked for.
        field: what held the text in JSON Lines.
    """

    key: str
    tokenizer: str
    vocab_size: int
    dtype: str
    separator: str
    validation: str
    sources: tuple[SourceRecord, ...]
    validation_sources: tuple[SourceRecord, ...]
    splits: dict[str, SplitRecord]
    supervised: bool = False
    repetition: Repetition | None = None
    field: str = DataConfig.field

    @property
    def data(self) -> DataConfig:
        """How the corpus became tokens, as the options say it."""
        return DataConfig(
            validation=self.validation, separator=self.separator, field=self.field, supervised=self.supervised
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the format's version in front."""
        return {"format_version": FORMAT_VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, values: dict[str, Any], *, where: str) -> Manifest:
        """The inverse of `to_dict`; `where` names the file in messages."""
        version = values.get("format_version")
        if version != FORMAT_VERSION:
            raise InputError(f"{where}: format version {version} is not {FORMAT_VERSION}; prepare the corpus again")
        try:
            fields = {key: value for key, value in values.items() if key != "format_version"}
            for key in ("sources", "validation_sources"):
                fields[key] = tuple(options.build(SourceRecord, record, where=where) for record in fields[key])
            fields["splits"] = {
                name: SplitRecord(**{**fields["splits"][name], "shards": tuple(fields["splits"][name]["shards"])})
                for name in SPLITS
            }
            if (repetition := fields.get("repetition")) is not None:
                fields["repetition"] = options.build(Repetition, repetition, where=where)
            return options.build(cls, fields, where=where)
        except (KeyError, TypeError, AttributeError, UsageError) as error:
            raise InputError(f"{where}: not a manifest of prepared tokens ({error})") from None


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder of shards.

    Raises:
        InputError: there is none, or it is damaged, or a shard is missing or has another size.
    """
    path = folder / MANIFEST
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{folder}: not a folder of prepared tokens (it has no {MANIFEST})") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: damaged ({error}); prepare the corpus again") from None
    if not isinstance(values, dict):
        raise InputError(f"{path}: not a manifest of prepared tokens")
    manifest = Manifest.from_dict(values, where=str(path))
    for split, record in manifest.splits.items():
        for number, tokens in enumerate(record.shards):
            _open_shard(folder / shard_name(split, number), tokens)
    return manifest


def _open_shard(path: Path, tokens: int) -> npt.NDArray[Any]:
    try:
        shard: npt.NDArray[Any] = np.load(path, mmap_mode="r")
        if shard.shape == (tokens,):
            return shard
    except (OSError, ValueError, EOFError):
        pass
    raise InputError(f"{path}: missing or damaged; prepare the corpus again")


def shard_name(split: str, number: int) -> str:
    """The file name of a shard."""
    return f"{split}-{number:05d}.npy"


class Tokens:
    """The tokens of one split, read through mmap: only what is asked for is loaded."""

    def __init__(self, folder: Path, split: SplitName, record: SplitRecord) -> None:
        """Open the shards that a record tells of; InputError if they are not complete."""
        self._shards = [
            _open_shard(folder / shard_name(split, number), tokens) for number, tokens in enumerate(record.shards)
        ]
        self._starts = np.cumsum([0, *record.shards])
        self.documents = record.documents
        self.bytes = record.bytes

    def __len__(self) -> int:
        """How many tokens there are."""
        return int(self._starts[-1])

    def read(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """A copy of the tokens from `start` to before `stop`, across shards.

        Returns:
            (stop - start,) of int64, whatever the shards hold.

        Raises:
            IndexError: the range does not lie within the split.
        """
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"tokens {start} to {stop} of {len(self)}")
        out = np.empty(stop - start, dtype=np.int64)
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        for shard, offset in zip(self._shards[first:], self._starts[first:-1].tolist(), strict=True):
            if offset >= stop:
                break
            part = shard[max(start - offset, 0) : stop - offset]
            position = max(offset - start, 0)
            out[position : position + len(part)] = part
        return out


def open_split(folder: Path | str, split: SplitName) -> Tokens:
    """The tokens of a split of a prepared folder.

    Raises:
        InputError: the folder holds no prepared tokens, or they are damaged.
    """
    return Tokens(Path(folder), split, read_manifest(Path(folder)).splits[split])


class ShardWriter:
    """Appends tokens to the shards of one split, in bounded memory."""

    def __init__(self, folder: Path, split: SplitName, *, dtype: str, shard_tokens: int = SHARD_TOKENS) -> None:
        """Writes into `folder`, which exists."""
        self._folder, self._split, self._dtype = folder, split, dtype
        self._shard_tokens = shard_tokens
        self._shard: ArrayWriter | None = None
        self.shards: list[int] = []

    def append(self, ids: npt.NDArray[Any]) -> None:
        """Write some tokens."""
        while len(ids):
            if self._shard is None or len(self._shard) == self._shard_tokens:
                self.close()
                path = self._folder / shard_name(self._split, len(self.shards))
                self._shard = ArrayWriter(path, dtype=self._dtype)
                self.shards.append(0)
            part = ids[: self._shard_tokens - len(self._shard)]
            self._shard.append(part)
            self.shards[-1] = len(self._shard)
            ids = ids[len(part) :]

    def close(self) -> None:
        """Finish the last shard; all are on disk when this returns."""
        if self._shard is not None:
            self._shard.close()

    def discard(self) -> None:
        """Close the file without finishing it."""
        if self._shard is not None:
            self._shard.discard()

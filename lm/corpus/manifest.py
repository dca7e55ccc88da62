"""The manifest of prepared tokens: which files they come from, how many there are, and how they were made."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from lm.config import options
from lm.config.data import DataConfig
from lm.errors import InputError, UsageError

VERSION = 1
"""Of the format of `manifest.json` and of the shards beside it."""

MANIFEST = "manifest.json"

SplitName = Literal["train", "validation"]
SPLITS: tuple[SplitName, ...] = ("train", "validation")


@dataclass(frozen=True)
class SourceRecord:
    """A file that data were made from: its name as the user gave it, its size in bytes and its hash, decompressed."""

    path: str
    size: int
    sha256: str


class Provenance(Protocol):
    """What the manifest of any folder of prepared data tells: what they were made from."""

    @property
    def key(self) -> str:
        """A hash of everything that the data depend on."""
        ...

    @property
    def sources(self) -> tuple[SourceRecord, ...]:
        """The files of the training corpus."""
        ...

    @property
    def sha256(self) -> Mapping[str, str] | None:
        """The checksum of each file beside the manifest; None in folders made before these were kept."""
        ...

    def with_checksums(self, sha256: Mapping[str, str]) -> Self:
        """The same manifest with the checksums of the files beside it."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """The manifest as plain values."""
        ...


@dataclass(frozen=True)
class SplitRecord:
    """What a split holds.

    Attributes:
        documents: the number of documents.
        tokens: the number of tokens, those that start and end documents included.
        bytes: UTF-8 bytes of the documents' text.
        shards: the number of tokens in each shard.

    Raises:
        TypeError: one of them is not a count (an integer from 0 to 2**63 - 1), as in a damaged manifest.
    """

    documents: int
    tokens: int
    bytes: int
    shards: tuple[int, ...]

    def __post_init__(self) -> None:
        for count in (self.documents, self.tokens, self.bytes, *self.shards):
            if not isinstance(count, int) or not 0 <= count < 1 << 63:
                raise TypeError(f"{options.shown(count)} is not a count of documents, tokens or bytes")


@dataclass(frozen=True)
class Repetition:
    """How much of a corpus occurs more than once (see `lm.corpus.repetition`).

    Attributes:
        documents: the number of documents, of both splits, whose tokens are those of one that comes before.
        held_out: share of the held-out text that occurs in the training split too, in stretches of `stretch` tokens or
            as a whole document shorter than that; None without held-out text.
        stretch: the length of a stretch, in tokens.
    """

    documents: int
    held_out: float | None
    stretch: int


@dataclass(frozen=True)
class WrittenTokens:
    """The tokens of a corpus in shards.

    Attributes:
        splits: what each split holds.
        repetition: how much of the text occurs more than once, where that is measured.
        labels: how many labels there are (see `lm.corpus.examples`), where examples may have some.
    """

    splits: dict[str, SplitRecord]
    repetition: Repetition | None = None
    labels: int | None = None


@dataclass(frozen=True)
class Manifest:
    """Where tokens come from and how many there are; `manifest.json` is this, as JSON.

    Attributes:
        key: hash of everything that the tokens depend on.
        tokenizer: hash of the tokenizer (`Tokenizer.sha256`).
        vocab_size: the size of the vocabulary.
        dtype: the NumPy type of the shards.
        separator: the line that ended documents within files.
        validation: what was held out, as the user put it.
        sources: the files of the corpus.
        validation_sources: the files of the validation split, where it has files of its own.
        splits: what "train" and "validation" hold.
        supervised: whether the documents are examples to learn from (see `lm.corpus.examples`).
        repetition: how much of the text occurs more than once; None for examples, and in folders made before this
            was measured.
        field: the field that held the text in JSON Lines.
        labels: how many labels the examples have, with their text beside them (see `lm.corpus.examples`); 0 where
            they are too many; None for text, and in folders made before labels were kept.
        sha256: the checksum of each file beside the manifest; None in folders made before these were kept.
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
    labels: int | None = None
    sha256: Mapping[str, str] | None = None

    def with_checksums(self, sha256: Mapping[str, str]) -> Self:
        """The same manifest with the checksums of the files beside it."""
        return dataclasses.replace(self, sha256=sha256)

    @property
    def data(self) -> DataConfig:
        """The settings with which the corpus became tokens."""
        return DataConfig(
            validation=self.validation, separator=self.separator, field=self.field, supervised=self.supervised
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the format's version in front."""
        return {"format_version": VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, where: str) -> Manifest:
        """The inverse of `to_dict`; `where` names the file in messages."""
        check_version(values, VERSION, where=where, what="corpus")
        try:
            fields = fields_with_sources(values, where=where)
            fields["splits"] = {
                name: SplitRecord(**{**fields["splits"][name], "shards": tuple(fields["splits"][name]["shards"])})
                for name in SPLITS
            }
            check_checksums(fields.get("sha256"))
            if (repetition := fields.get("repetition")) is not None:
                fields["repetition"] = options.build(Repetition, repetition, where=where)
            return options.build(cls, fields, where=where)
        except (KeyError, TypeError, AttributeError, UsageError) as error:
            raise InputError(f"{where}: not a manifest of prepared tokens ({error})") from None

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest in a folder; InputError if there is none, or it is damaged."""
        path = folder / MANIFEST
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise InputError(f"{folder}: not a folder of prepared tokens (it has no {MANIFEST})") from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: damaged ({error}); prepare the corpus again") from None
        if not isinstance(values, dict):
            raise InputError(f"{path}: not a manifest of prepared tokens")
        return cls.from_dict(values, where=str(path))


def check_version(values: Mapping[str, Any], version: int, *, where: str, what: str) -> None:
    """Raise InputError unless a manifest has this version; the message names the file, and what to prepare again."""
    found = values.get("format_version")
    if found != version:
        raise InputError(f"{where}: format version {found} is not {version}; prepare the {what} again")


def check_checksums(values: Any) -> None:  # noqa: ANN401 (whatever the manifest holds)
    """Raise TypeError unless a value is checksums by file name, or None."""
    if values is None:
        return
    if not isinstance(values, dict) or not all(isinstance(each, str) for each in values.values()):
        raise TypeError("sha256 must be a checksum for each file name")
    if not all(re.fullmatch(r"\w[\w.-]*", name) for name in values):
        raise TypeError("sha256 names a file that isn't beside the manifest")


def fields_with_sources(values: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """The fields of a manifest but its version, with a SourceRecord for each file; `where` names the file in messages.

    Raises:
        KeyError, TypeError, AttributeError, UsageError: the manifest is damaged.
    """
    fields = {key: value for key, value in values.items() if key != "format_version"}
    for key in ("sources", "validation_sources"):
        records: Sequence[Any] = fields[key]
        fields[key] = tuple(options.build(SourceRecord, record, where=where) for record in records)
    return fields

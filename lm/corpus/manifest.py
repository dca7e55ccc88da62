"""Manifests: contents, sources and checksums of a folder of prepared data.

Every folder has a `manifest.json` with a format version and the kind of data: text, examples, pairs, or a partition of
a corpus (`lm.corpus.partitions`). Common fields come first; the fields are those of the classes here.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from lm.config import settings as options
from lm.config.data import DataConfig
from lm.errors import InputError, UsageError

VERSION = 2
"""Format version of `manifest.json` and the other files."""

MANIFEST = "manifest.json"

DataKind = Literal["text", "examples", "conversations", "pairs", "partition"]
SplitName = Literal["train", "validation"]
SPLITS: tuple[SplitName, ...] = ("train", "validation")


@dataclass(frozen=True)
class SourceRecord:
    """A source file of prepared data.

    Attributes:
        path: as the user named it.
        size: decompressed bytes.
        sha256: of these bytes.
        read_as: format, encoding and line ends, if not the default.
    """

    path: str
    size: int
    sha256: str
    read_as: str = ""


@dataclass(frozen=True)
class SplitRecord:
    """A split of text or examples.

    Attributes:
        tokens: number of tokens, special tokens included.
        shards: number of tokens per shard.

    Raises:
        TypeError: a value is not a count (0 to 2**63 - 1), as in a damaged manifest.
    """

    documents: int
    tokens: int
    bytes: int
    shards: tuple[int, ...]

    def __post_init__(self) -> None:
        for count in (self.documents, self.tokens, self.bytes, *self.shards):
            if not isinstance(count, int) or not 0 <= count < 1 << 63:
                raise TypeError(f"{count!r} is not a count of documents, tokens or bytes")

    @property
    def bytes_per_token(self) -> float:
        return self.bytes / max(1, self.tokens)


@dataclass(frozen=True)
class PairSplit:
    """A split of sentence pairs, and what was filtered.

    Attributes:
        blank: pairs removed because source or target is blank.
        too_long: pairs removed because source or target has too many tokens.
        ratio: pairs removed because of their length ratio.
    """

    pairs: int = 0
    source_tokens: int = 0
    target_tokens: int = 0
    source_bytes: int = 0
    target_bytes: int = 0
    longest: int = 0
    blank: int = 0
    too_long: int = 0
    ratio: int = 0

    @property
    def bytes_per_token(self) -> float:
        return (self.source_bytes + self.target_bytes) / max(1, self.source_tokens + self.target_tokens)


@dataclass(frozen=True)
class Repetition:
    """Duplicated text in a corpus (`lm.corpus.repetition`).

    Attributes:
        documents: documents, of both splits, with the tokens of an earlier one.
        held_out: fraction of the held-out text that also occurs in the training split, in windows of `window` tokens
            or as a whole shorter document; for examples and conversations, the fraction that are also in the training
            split; None without held-out text.
        window: the window length, in tokens; 0 for examples and conversations.
    """

    documents: int
    held_out: float | None
    window: int


@dataclass(frozen=True, kw_only=True)
class PreparedManifest:
    """Common fields of all manifests.

    Attributes:
        key: hash of everything that the data depend on.
        validation_sources: the files of the validation split, if it has its own.
        sha256: checksums of the other files; none of a partition, whose chunks have their own.
    """

    noun: ClassVar[str] = "prepared data"
    """What the folder holds, for messages."""

    kind: DataKind
    key: str
    sources: tuple[SourceRecord, ...]
    validation_sources: tuple[SourceRecord, ...]
    sha256: Mapping[str, str] = field(default_factory=dict)

    def with_checksums(self, sha256: Mapping[str, str]) -> Self:
        return dataclasses.replace(self, sha256=sha256)

    def to_dict(self) -> dict[str, Any]:
        return {"format_version": VERSION, **dataclasses.asdict(self)}

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the manifest of a folder; the base class reads any kind.

        Raises:
            InputError: it is missing, damaged, or of another kind.
        """
        path, values = _load(folder, cls)
        manifest = _from_dict(values, where=str(path), reader=cls)
        if not isinstance(manifest, cls):
            raise InputError(f"{folder}: holds {manifest.noun}, not {cls.noun}")
        return manifest

    @classmethod
    def with_records(cls, values: dict[str, Any], *, where: str) -> dict[str, Any]:  # noqa: ARG003
        return values


@dataclass(frozen=True, kw_only=True)
class Manifest(PreparedManifest):
    """The manifest of text, supervised examples or conversations.

    Attributes:
        tokenizer: checksum of the tokenizer (`Tokenizer.sha256`).
        dtype: NumPy dtype of the shards.
        separator: the line that ended documents.
        validation: what was held out, as given by the user.
        repetition: duplicated text.
        text_column: column of the text, if it was named.
        label_column: that of the label, if it was named.
        keep_line_ends: whether carriage returns and byte order marks were kept.
        strip_gutenberg: whether Project Gutenberg boilerplate was removed.
        labels: number of distinct labels; 0 if too many; None for text.
    """

    noun = "prepared tokens"

    tokenizer: str
    vocab_size: int
    dtype: str
    separator: str
    validation: str
    splits: dict[str, SplitRecord]
    repetition: Repetition | None = None
    text_column: str | None = None
    label_column: str | None = None
    keep_line_ends: bool = False
    strip_gutenberg: bool = False
    labels: int | None = None

    @property
    def supervised(self) -> bool:
        return self.kind in ("examples", "conversations")

    @property
    def data(self) -> DataConfig:
        return DataConfig(
            validation=self.validation,
            separator=self.separator,
            text_column=self.text_column,
            label_column=self.label_column,
            supervised=self.supervised,
            keep_line_ends=self.keep_line_ends,
            strip_gutenberg=self.strip_gutenberg,
        )

    @classmethod
    def with_records(cls, values: dict[str, Any], *, where: str) -> dict[str, Any]:
        splits, repetition = values["splits"], values["repetition"]
        return {
            **values,
            "splits": {
                name: SplitRecord(**{**splits[name], "shards": tuple(splits[name]["shards"])}) for name in SPLITS
            },
            "repetition": repetition and options.build_config(Repetition, repetition, where=where),
        }


@dataclass(frozen=True, kw_only=True)
class PairManifest(PreparedManifest):
    """The manifest of sentence pairs (`lm.corpus.tokenized_pairs`).

    Attributes:
        languages: of sources and targets, if known.
        validation: what was held out, as given by the user.
        max_length: maximum tokens of a source or target.
        has_dependency_heads: whether the sources have dependency trees.
    """

    noun = "prepared pairs"

    kind: DataKind = "pairs"
    languages: tuple[str | None, str | None]
    validation: str
    max_length: int
    max_ratio: float
    splits: dict[str, PairSplit]
    has_dependency_heads: bool = False

    @classmethod
    def with_records(cls, values: dict[str, Any], *, where: str) -> dict[str, Any]:
        splits = {name: options.build_config(PairSplit, values["splits"][name], where=where) for name in SPLITS}
        return {**values, "languages": tuple(values["languages"]), "splits": splits}


@dataclass(frozen=True, kw_only=True)
class PartitionManifest(PreparedManifest):
    """The manifest of a partition, as tokenized by one of several machines.

    Attributes:
        number: of the partition, from 1.
        tokenizer: checksum of the tokenizer (`Tokenizer.sha256`).
        chunks: names of all chunks of the corpus, in order, assigned to partitions round-robin.
        name: the first few files of the corpus, for messages.
    """

    noun = "a partition's chunks"

    kind: DataKind = "partition"
    number: int
    count: int
    tokenizer: str
    chunks: tuple[str, ...]
    config: DataConfig
    name: str
    bytes: int

    @property
    def own_chunks(self) -> tuple[str, ...]:
        return self.chunks[self.number - 1 :: self.count]

    @classmethod
    def with_records(cls, values: dict[str, Any], *, where: str) -> dict[str, Any]:
        config = options.build_config(DataConfig, values["config"], where=where)
        return {**values, "chunks": tuple(values["chunks"]), "config": config}


MANIFEST_CLASSES: dict[DataKind, type[PreparedManifest]] = {
    "text": Manifest,
    "examples": Manifest,
    "conversations": Manifest,
    "pairs": PairManifest,
    "partition": PartitionManifest,
}


def has_manifest(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def _load(folder: Path, reader: type[PreparedManifest]) -> tuple[Path, dict[str, Any]]:
    """Read a manifest as plain values."""
    path = folder / MANIFEST
    if not has_manifest(folder):
        raise InputError(f"{folder}: not a folder of {reader.noun} (it has no {MANIFEST})")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: damaged ({error}); prepare the corpus again") from None
    if not isinstance(values, dict):
        raise InputError(f"{path}: not a manifest of {reader.noun}")
    version = values.pop("format_version", None)
    if version != VERSION:
        raise InputError(f"{path}: format version {version} is not {VERSION}; prepare the corpus again")
    return path, values


def _from_dict(values: dict[str, Any], *, where: str, reader: type[PreparedManifest]) -> PreparedManifest:
    """Build a manifest from plain values; `where` names the file in messages."""
    try:
        manifest_class = MANIFEST_CLASSES[values["kind"]]
        for name in ("sources", "validation_sources"):
            values[name] = tuple(options.build_config(SourceRecord, record, where=where) for record in values[name])
        _check_checksums(values["sha256"])
        values = manifest_class.with_records(values, where=where)
        return options.build_config(manifest_class, values, where=where)
    except (KeyError, TypeError, AttributeError, UsageError) as error:
        raise InputError(f"{where}: not a manifest of {reader.noun} ({error})") from None


def _check_checksums(values: Any) -> None:
    """Raise TypeError unless a value is checksums by file name."""
    if not isinstance(values, dict) or not all(isinstance(checksum, str) for checksum in values.values()):
        raise TypeError("sha256 must be a checksum for each file name")
    if not all(re.fullmatch(r"\w[\w.-]*", name) for name in values):
        raise TypeError("sha256 names a file that isn't beside the manifest")

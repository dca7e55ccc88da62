"""Manifests: what a folder of prepared data holds, what it was made from, and the checksums of its files.

Every folder has a `manifest.json` with the version of the format and the kind of data: text, examples, pairs, or a
partition of a corpus (see `lm.corpus.partitions`). What the kinds share comes first, then what each adds; the fields
are those of the classes here. In format 1 each kind had a file and fields of its own; it is read as format 2.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from lm.config import options
from lm.config.data import DataConfig, upgrade_line_end_settings
from lm.errors import InputError, UsageError

VERSION = 2
"""Of the format of `manifest.json` and of the files beside it."""

MANIFEST = "manifest.json"

_PAIRS_FORMAT_1, _PARTITION_FORMAT_1 = "pairs.json", "share.json"
MANIFESTS = (MANIFEST, _PAIRS_FORMAT_1, _PARTITION_FORMAT_1)
"""The file and, in format 1, those of pairs and of partitions."""

DataKind = Literal["text", "examples", "pairs", "partition"]
SplitName = Literal["train", "validation"]
SPLITS: tuple[SplitName, ...] = ("train", "validation")


@dataclass(frozen=True)
class SourceRecord:
    """A file that data were made from.

    Attributes:
        path: its name as the user gave it.
        size: in bytes, decompressed.
        sha256: of these bytes.
        read_as: how its text follows from its bytes, where that is not the usual way: in another format or encoding,
            with other line ends.
    """

    path: str
    size: int
    sha256: str
    read_as: str = ""


@dataclass(frozen=True)
class SplitRecord:
    """What a split of text or of examples holds.

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
                raise TypeError(f"{options.format_value(count)} is not a count of documents, tokens or bytes")


@dataclass(frozen=True)
class PairSplit:
    """What a split of pairs holds, and what was left out of it.

    Attributes:
        pairs: the number of pairs.
        source_tokens: tokens of their sources.
        target_tokens: tokens of their targets.
        source_bytes: UTF-8 bytes of their sources.
        target_bytes: UTF-8 bytes of their targets.
        longest: tokens of the longest side.
        blank: pairs left out because a side is blank.
        too_long: pairs left out because a side has too many tokens.
        ratio: pairs left out because one side has too many times the tokens of the other.
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


@dataclass(frozen=True)
class Repetition:
    """How much of a corpus occurs more than once (see `lm.corpus.repetition`).

    Attributes:
        documents: the number of documents, of both splits, whose tokens are those of one that comes before.
        held_out: fraction of the held-out text that occurs in the training split too, in stretches of `stretch` tokens
            or as a whole document shorter than that; None without held-out text.
        stretch: the length of a stretch, in tokens.
    """

    documents: int
    held_out: float | None
    stretch: int


@dataclass(frozen=True, kw_only=True)
class PreparedManifest:
    """What the manifests of all kinds of data say.

    Attributes:
        kind: of the data.
        key: hash of everything that the data depend on.
        sources: the files of the corpus.
        validation_sources: the files of the validation split, where it has files of its own.
        sha256: the checksum of each file beside the manifest; None in folders made before these were kept.
    """

    noun: ClassVar[str] = "prepared data"
    """What the folder holds, for messages."""

    kind: DataKind
    key: str
    sources: tuple[SourceRecord, ...]
    validation_sources: tuple[SourceRecord, ...]
    sha256: Mapping[str, str] | None = None

    def with_checksums(self, sha256: Mapping[str, str]) -> Self:
        """The same manifest with the checksums of the files beside it."""
        return dataclasses.replace(self, sha256=sha256)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the format's version in front."""
        return {"format_version": VERSION, **dataclasses.asdict(self)}

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The manifest in a folder; of any kind, if this class is the base.

        Raises:
            InputError: there is none, it is damaged, or it is of another kind.
        """
        path, values = _load(folder, cls)
        manifest = _from_dict(values, where=str(path), reader=cls)
        if not isinstance(manifest, cls):
            raise InputError(f"{folder}: holds {manifest.noun}, not {cls.noun}")
        return manifest

    @classmethod
    def with_records(cls, values: dict[str, Any], *, where: str) -> dict[str, Any]:  # noqa: ARG003
        """Plain values with the records that manifests of this kind have beside the common ones."""
        return values


@dataclass(frozen=True, kw_only=True)
class Manifest(PreparedManifest):
    """Of a folder of text, or of examples to learn from (see `lm.corpus.examples`).

    Attributes:
        tokenizer: hash of the tokenizer (`Tokenizer.sha256`).
        vocab_size: the size of the vocabulary.
        dtype: the NumPy type of the shards.
        separator: the line that ended documents within files.
        validation: what was held out, as the user put it.
        splits: what "train" and "validation" hold.
        repetition: how much of the text occurs more than once; None for examples, and in folders made before this
            was measured.
        field: the field or column that held the text, if it was named.
        label_field: that of the label, if it was named.
        keep_line_ends: whether carriage returns and byte order marks were kept, as they were in folders without this.
        strip_gutenberg: whether Project Gutenberg's header and licence were left out.
        labels: how many labels the examples have, with their text beside them; 0 where they are too many; None for
            text, and in folders made before labels were kept.
    """

    noun = "prepared tokens"

    tokenizer: str
    vocab_size: int
    dtype: str
    separator: str
    validation: str
    splits: dict[str, SplitRecord]
    repetition: Repetition | None = None
    field: str | None = None
    label_field: str | None = None
    keep_line_ends: bool = True
    strip_gutenberg: bool = False
    labels: int | None = None

    @property
    def supervised(self) -> bool:
        """Whether the documents are examples."""
        return self.kind == "examples"

    @property
    def data(self) -> DataConfig:
        """The settings with which the corpus became tokens."""
        return DataConfig(
            validation=self.validation,
            separator=self.separator,
            field=self.field,
            label_field=self.label_field,
            supervised=self.supervised,
            keep_line_ends=self.keep_line_ends,
            strip_gutenberg=self.strip_gutenberg,
        )

    @classmethod
    def with_records(cls, values: dict[str, Any], *, where: str) -> dict[str, Any]:
        """The values with a record for each split, and for repetition."""
        splits, repetition = values["splits"], values.get("repetition")
        return {
            **upgrade_line_end_settings(values),
            "splits": {
                name: SplitRecord(**{**splits[name], "shards": tuple(splits[name]["shards"])}) for name in SPLITS
            },
            "repetition": None if repetition is None else options.build_config(Repetition, repetition, where=where),
        }


@dataclass(frozen=True, kw_only=True)
class PairManifest(PreparedManifest):
    """Of a folder of sentence pairs (see `lm.corpus.pairs`).

    Attributes:
        languages: of sources and targets, where they are known.
        validation: what was held out, as the user put it.
        max_length: the most tokens a side may have.
        max_ratio: how many times the tokens of one side the other may have.
        splits: what "train" and "validation" hold.
        heads: whether the sources come with dependency trees.
    """

    noun = "prepared pairs"

    kind: DataKind = "pairs"
    languages: tuple[str | None, str | None]
    validation: str
    max_length: int
    max_ratio: float
    splits: dict[str, PairSplit]
    heads: bool = False

    @classmethod
    def with_records(cls, values: dict[str, Any], *, where: str) -> dict[str, Any]:
        """The values with a record for each split."""
        splits = {name: options.build_config(PairSplit, values["splits"][name], where=where) for name in SPLITS}
        return {**values, "languages": tuple(values["languages"]), "splits": splits}


@dataclass(frozen=True, kw_only=True)
class PartitionManifest(PreparedManifest):
    """Of a folder with a partition of a corpus, as one of several machines makes it.

    Attributes:
        number: of the partition, from 1.
        count: of all partitions.
        tokenizer: hash of the tokenizer (`Tokenizer.sha256`).
        chunks: the names of all chunks of the corpus in order; they fall to the partitions in turns.
        config: how the corpus becomes tokens.
        name: the first few files of the corpus, for messages.
        bytes: UTF-8 bytes of all text of the corpus.
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
        """The chunks that fall to this partition."""
        return self.chunks[self.number - 1 :: self.count]

    @classmethod
    def with_records(cls, values: dict[str, Any], *, where: str) -> dict[str, Any]:
        """The values with the config of the corpus."""
        config = options.build_config(DataConfig, upgrade_line_end_settings(values["config"]), where=where)
        return {**values, "chunks": tuple(values["chunks"]), "config": config}


MANIFEST_CLASSES: dict[DataKind, type[PreparedManifest]] = {
    "text": Manifest,
    "examples": Manifest,
    "pairs": PairManifest,
    "partition": PartitionManifest,
}


def has_manifest(folder: Path) -> bool:
    """Whether a folder has a manifest, of any kind and format."""
    return _find_manifest(folder) is not None


def _find_manifest(folder: Path) -> Path | None:
    """The manifest of a folder, which is complete if there is one."""
    return next((folder / name for name in MANIFESTS if (folder / name).is_file()), None)


def _load(folder: Path, reader: type[PreparedManifest]) -> tuple[Path, dict[str, Any]]:
    """The manifest of a folder as plain values, those of format 1 as format 2 has them."""
    path = _find_manifest(folder)
    if path is None:
        raise InputError(f"{folder}: not a folder of {reader.noun} (it has no {MANIFEST})")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: damaged ({error}); prepare the corpus again") from None
    if not isinstance(values, dict):
        raise InputError(f"{path}: not a manifest of {reader.noun}")
    version = values.pop("format_version", None)
    if version not in (1, VERSION):
        raise InputError(f"{path}: format version {version} is not {VERSION}; prepare the corpus again")
    return path, _upgrade_format_1(path.name, values) if version == 1 else values


def _upgrade_format_1(name: str, values: dict[str, Any]) -> dict[str, Any]:
    """The values of a manifest of format 1, in the file of this name, as format 2 has them."""
    if name == _PAIRS_FORMAT_1:
        return {"kind": "pairs", **values}
    if name == _PARTITION_FORMAT_1:
        origin = values.pop("origin", None)
        chunks = {"chunks": values.pop("parts", ())}
        return {"kind": "partition", **values, **chunks, **(origin if isinstance(origin, dict) else {})}
    return {"kind": "examples" if values.pop("supervised", False) else "text", **values}


def _from_dict(values: dict[str, Any], *, where: str, reader: type[PreparedManifest]) -> PreparedManifest:
    """The inverse of `to_dict`, without its version; `where` names the file in messages."""
    try:
        of_kind = MANIFEST_CLASSES[values["kind"]]
        for name in ("sources", "validation_sources"):
            values[name] = tuple(options.build_config(SourceRecord, record, where=where) for record in values[name])
        _check_checksums(values.get("sha256"))
        return options.build_config(of_kind, of_kind.with_records(values, where=where), where=where)
    except (KeyError, TypeError, AttributeError, UsageError) as error:
        raise InputError(f"{where}: not a manifest of {reader.noun} ({error})") from None


def _check_checksums(values: Any) -> None:  # noqa: ANN401 (whatever the manifest holds)
    """Raise TypeError unless a value is checksums by file name, or None."""
    if values is None:
        return
    if not isinstance(values, dict) or not all(isinstance(each, str) for each in values.values()):
        raise TypeError("sha256 must be a checksum for each file name")
    if not all(re.fullmatch(r"\w[\w.-]*", name) for name in values):
        raise TypeError("sha256 names a file that isn't beside the manifest")

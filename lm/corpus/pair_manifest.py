"""The manifest of prepared pairs: which files they come from, how many there are, and how many were left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from lm import files
from lm.config import options
from lm.corpus.manifest import SPLITS, SourceRecord, check_checksums, check_version, fields_with_sources
from lm.errors import InputError, UsageError

VERSION = 1
"""Of the format of `pairs.json` and of the files beside it."""

MANIFEST = "pairs.json"


@dataclass(frozen=True)
class PairSplit:
    """What a split holds, and what was left out of it.

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
class PairManifest:
    """Where pairs come from and how many there are; `pairs.json` is this, as JSON.

    Attributes:
        key: hash of everything that the folder depends on.
        languages: of sources and targets, where they are known.
        validation: what was held out, as the user put it.
        max_length: the most tokens a side may have.
        max_ratio: how many times the tokens of one side the other may have.
        sources: the files of the corpus.
        validation_sources: the files of the validation split, where it has files of its own.
        splits: what "train" and "validation" hold.
        heads: whether the sources come with dependency trees; said only of those that do.
        sha256: the checksum of each file beside the manifest; None in folders made before these were kept.
    """

    key: str
    languages: tuple[str | None, str | None]
    validation: str
    max_length: int
    max_ratio: float
    sources: tuple[SourceRecord, ...]
    validation_sources: tuple[SourceRecord, ...]
    splits: dict[str, PairSplit]
    heads: bool = False
    sha256: Mapping[str, str] | None = None

    def with_checksums(self, sha256: Mapping[str, str]) -> Self:
        """The same manifest with the checksums of the files beside it."""
        return dataclasses.replace(self, sha256=sha256)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the format's version in front."""
        values = {"format_version": VERSION, **dataclasses.asdict(self)}
        if not self.heads:
            del values["heads"]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, where: str) -> PairManifest:
        """The inverse of `to_dict`; `where` names the file in messages."""
        check_version(values, VERSION, where=where, what="pairs")
        try:
            fields = fields_with_sources(values, where=where)
            check_checksums(fields.get("sha256"))
            fields["languages"] = tuple(fields["languages"])
            fields["splits"] = {name: options.build(PairSplit, fields["splits"][name], where=where) for name in SPLITS}
            return options.build(cls, fields, where=where)
        except (KeyError, TypeError, AttributeError, UsageError) as error:
            raise InputError(f"{where}: not a manifest of prepared pairs ({error})") from None

    @classmethod
    def read(cls, folder: Path) -> PairManifest:
        """The manifest in a folder; InputError if there is none, or it is damaged."""
        values = files.read_json(folder / MANIFEST)
        if not isinstance(values, dict):
            raise InputError(f"{folder / MANIFEST}: not a manifest of prepared pairs")
        return cls.from_dict(values, where=str(folder / MANIFEST))

"""Parallel text surveyed: which files, how many pairs, which languages, and which pairs are held out for validation."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from lm.config.data import DataConfig, ParallelConfig
from lm.data.corpus import FEWEST_DOCUMENTS, held_out_fraction, scattered
from lm.data.shards import SourceRecord, SplitName
from lm.errors import InputError, UsageError
from lm.text.files import Observer
from lm.text.parallel import Pair, ParallelText, parallel_texts


@dataclass(frozen=True)
class Survey:
    """What one pass over aligned files finds.

    Attributes:
        aligned: the files.
        records: their names, sizes and hashes.
        pairs: how many there are, blank ones included.
        source_bytes: UTF-8 bytes of their sources.
        target_bytes: UTF-8 bytes of their targets.
        hashes: of the first sources.
    """

    aligned: ParallelText
    records: tuple[SourceRecord, ...]
    pairs: int
    source_bytes: int
    target_bytes: int
    hashes: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """UTF-8 bytes of all text."""
        return self.source_bytes + self.target_bytes

    @property
    def identity(self) -> list[str]:
        """What its pairs follow from."""
        fields = self.aligned.fields if self.aligned.is_json_lines else ()
        return [*(record.sha256 for record in self.records), *fields]


@dataclass(frozen=True)
class ParallelCorpus:
    """Parallel text after one pass over it.

    Attributes:
        surveys: the corpus.
        validation_surveys: the validation split, where it has files of its own.
        fraction: the share of the corpus that is held out otherwise.
        validation: what is held out, as the user put it.
        languages: of sources and targets, where they are known.
    """

    surveys: tuple[Survey, ...]
    validation_surveys: tuple[Survey, ...]
    fraction: Fraction
    validation: str
    languages: tuple[str | None, str | None]

    @property
    def pairs(self) -> int:
        """All pairs, blank ones and those for validation included."""
        return sum(found.pairs for found in (*self.surveys, *self.validation_surveys))

    @property
    def bytes(self) -> int:
        """UTF-8 bytes of all text, files for validation included."""
        return sum(found.bytes for found in (*self.surveys, *self.validation_surveys))

    @property
    def bound(self) -> int:
        """Pairs whose source has a hash below this are held out: the fraction, or of few pairs at least one."""
        if not self.fraction or sum(found.pairs for found in self.surveys) >= FEWEST_DOCUMENTS:
            return math.ceil(self.fraction * 2**64)
        hashes = sorted({value for found in self.surveys for value in found.hashes})
        return hashes[max(1, int(len(hashes) * self.fraction))] if len(hashes) > 1 else 0

    def routed(self) -> Iterator[tuple[SplitName, ParallelText, Pair]]:
        """All pairs with the splits they go to and the files they are from; equal sources go to the same split."""
        bound = self.bound
        for found in self.surveys:
            for pair in found.aligned.pairs():
                split: SplitName = "validation" if scattered(pair.source) < bound else "train"
                yield split, found.aligned, pair
        for found in self.validation_surveys:
            for pair in found.aligned.pairs():
                yield "validation", found.aligned, pair


def survey(
    files: Sequence[ParallelText], data: DataConfig, config: ParallelConfig, *, validation: Sequence[ParallelText] = ()
) -> ParallelCorpus:
    """Read every file once.

    Args:
        files: the corpus.
        data: what is held out, where `validation` is not given: a fraction, or files of both sides.
        config: the languages, where files don't tell them.
        validation: files of the validation split.

    Raises:
        InputError: a file is no UTF-8 text, or two differ in their numbers of lines, or there is no pair at all.
        UsageError: the validation fraction is not between 0 and 1, or directions need languages that are unknown.
    """
    fraction = None if validation else held_out_fraction(data.validation)
    if fraction is None and not validation:
        validation = parallel_texts(config, pairs=[data.validation])
    languages = _languages(files, config)
    named = ", ".join(aligned.name for aligned in validation) or data.validation
    surveys, held_out = (tuple(map(_survey, group)) for group in (files, validation))
    if not sum(found.bytes for found in surveys):
        raise InputError(f"{', '.join(aligned.name for aligned in files[:3])}: there are no pairs")
    return ParallelCorpus(surveys, held_out, fraction or Fraction(0), named, languages)


def _languages(files: Sequence[ParallelText], config: ParallelConfig) -> tuple[str | None, str | None]:
    told = files[0].languages if len({aligned.languages for aligned in files}) == 1 else (None, None)
    source, target = config.source_language or told[0], config.target_language or told[1]
    if config.bidirectional and (source is None or target is None or source == target):
        raise UsageError(
            "--bidirectional needs two languages, and the names of the files don't tell them "
            "(--source-language, --target-language)"
        )
    return source, target


def _survey(aligned: ParallelText) -> Survey:
    digests = [hashlib.sha256() for _ in aligned.files]
    sizes = [0] * len(digests)

    def observer(number: int) -> Observer:
        def observe(block: bytes) -> None:
            digests[number].update(block)
            sizes[number] += len(block)

        return observe

    pairs = source_bytes = target_bytes = 0
    hashes: list[int] = []
    for pair in aligned.pairs(*map(observer, range(len(sizes)))):
        pairs += 1
        source_bytes += len(pair.source.encode())
        target_bytes += len(pair.target.encode())
        if len(hashes) < FEWEST_DOCUMENTS and pair.source and pair.target:
            hashes.append(scattered(pair.source))
    records = (
        SourceRecord(file.name, size, digest.hexdigest())
        for file, size, digest in zip(aligned.files, sizes, digests, strict=True)
    )
    return Survey(aligned, tuple(records), pairs, source_bytes, target_bytes, tuple(hashes))

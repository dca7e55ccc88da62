"""A scanned parallel corpus: pairs, languages and held-out split."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from lm.config.data import DataConfig, FilesConfig, ParallelTextConfig
from lm.corpus.manifest import SourceRecord, SplitName
from lm.corpus.text_corpus import FEW_DOCUMENTS, compute_hash_bound, hash_text, parse_held_out_fraction
from lm.errors import Advice, InputError, UsageError
from lm.text.normalization import TextChanges
from lm.text.parallel_text import ParallelText, SentencePair, describe_reading, find_parallel_texts
from lm.text.text_files import BlockCallback


@dataclass(frozen=True)
class ParallelSummary:
    """Counts and checksums from one pass over a parallel text.

    Attributes:
        records: names, sizes and checksums of its files.
        hashes: of the first sources, for small corpora.
        seen: hashes of pairs that also occur in other texts.
    """

    text: ParallelText
    records: tuple[SourceRecord, ...]
    pairs: int
    source_bytes: int
    target_bytes: int
    hashes: tuple[int, ...]
    pair_hashes: frozenset[int] = frozenset()
    seen: frozenset[int] = frozenset()
    changes: TextChanges = field(default_factory=TextChanges)

    @property
    def bytes(self) -> int:
        return self.source_bytes + self.target_bytes

    @property
    def identity(self) -> list[str]:
        """Return what determines the pairs: checksums, fields, and whether there are heads."""
        fields = self.text.fields if self.text.holds_rows else ()
        read_as = sorted({record.read_as for record in self.records} - {""})
        return [
            *(record.sha256 for record in self.records),
            *fields,
            *(("heads",) if self.text.heads else ()),
            *read_as,
        ]


@dataclass(frozen=True, slots=True)
class SplitPair:
    """A sentence pair with its split and parallel text."""

    split: SplitName
    text: ParallelText
    pair: SentencePair

    @property
    def texts(self) -> tuple[str, str]:
        return self.pair.source, self.pair.target

    @property
    def location(self) -> str:
        return f"{self.text.name}: line {self.pair.line}"


@dataclass(frozen=True)
class ParallelCorpus:
    """A scanned parallel corpus.

    Attributes:
        validation_texts: the validation split, if it has files of its own.
        fraction: held-out fraction of the pairs in `texts`; 0 if the validation split has its own files.
        validation: what is held out, as given by the user.
    """

    texts: tuple[ParallelSummary, ...]
    validation_texts: tuple[ParallelSummary, ...]
    fraction: Fraction
    validation: str
    languages: tuple[str | None, str | None]

    @property
    def name(self) -> str:
        return ", ".join(summary.text.name for summary in self.texts[:3])

    @property
    def pairs(self) -> int:
        return sum(summary.pairs for summary in (*self.texts, *self.validation_texts))

    @property
    def has_dependency_heads(self) -> bool:
        return self.texts[0].text.heads is not None

    @property
    def seen_in_training(self) -> float:
        """Return the fraction of distinct validation pairs that also occur in the training files."""
        held_out = frozenset[int]().union(*(summary.pair_hashes for summary in self.validation_texts))
        seen = frozenset[int]().union(*(summary.seen for summary in self.texts))
        return len(seen) / max(1, len(held_out))

    @property
    def copies(self) -> tuple[str, ...]:
        """Return the texts whose source and target files are identical."""
        in_two_files = [summary for summary in self.texts if summary.text.target is not None]
        return tuple(
            summary.text.name for summary in in_two_files if summary.records[0].sha256 == summary.records[1].sha256
        )

    @property
    def bytes(self) -> int:
        return sum(summary.bytes for summary in (*self.texts, *self.validation_texts))

    @property
    def notes(self) -> list[Advice]:
        """Return notes about headers, and about malformed rows that are left out."""
        summaries = (*self.texts, *self.validation_texts)
        malformed = [summary for summary in summaries if summary.changes.malformed]
        return [
            *describe_reading(summary.text for summary in summaries),
            *(summary.text.source.describe_malformed(summary.changes) for summary in malformed),
        ]

    def split_pairs(self) -> Iterator[SplitPair]:
        """Yield all pairs with their splits; pairs with equal sources are in the same split."""
        bound = self._bound()
        for summary in self.texts:
            for pair in summary.text.pairs():
                split: SplitName = "validation" if hash_text(pair.source) < bound else "train"
                yield SplitPair(split, summary.text, pair)
        for summary in self.validation_texts:
            for pair in summary.text.pairs():
                yield SplitPair("validation", summary.text, pair)

    def _bound(self) -> int:
        """Return the hash bound below which sources are held out."""
        if sum(summary.pairs for summary in self.texts) >= FEW_DOCUMENTS:
            return compute_hash_bound(self.fraction)
        return compute_hash_bound(self.fraction, (value for summary in self.texts for value in summary.hashes))


def scan_parallel_corpus(
    texts: Sequence[ParallelText],
    data: DataConfig,
    config: ParallelTextConfig,
    *,
    validation: Sequence[ParallelText] = (),
    reading: FilesConfig | None = None,
) -> ParallelCorpus:
    """Read every file of a parallel corpus once.

    Args:
        data: what is held out, if `validation` is not given: a fraction, or a file of pairs.
        config: the languages, if file names don't tell.
        reading: how a validation file of pairs is read.

    Raises:
        InputError: a file is not UTF-8 text, files differ in length, or there are no pairs.
        UsageError: the fraction is not in [0, 1), languages are needed but unknown, or only some files have heads.
    """
    fraction = None if validation else parse_held_out_fraction(data.validation)
    if fraction is None and not validation:
        validation = find_parallel_texts(config, reading, pairs=[data.validation])
    if len({text.heads is None for text in (*texts, *validation)}) > 1:
        raise UsageError("give heads of both splits, or of none", settings=["heads", "validation_heads"])
    languages = _find_languages(texts, config)
    named = ", ".join(text.name for text in validation) or data.validation
    held_out = tuple(_scan_parallel_text(text, hashes_pairs=True) for text in validation)
    held_out_pairs = frozenset[int]().union(*(summary.pair_hashes for summary in held_out))
    surveys = tuple(_scan_parallel_text(text, others=held_out_pairs) for text in texts)
    if not sum(summary.bytes for summary in surveys):
        raise InputError(f"{', '.join(text.name for text in texts[:3])}: there are no pairs")
    return ParallelCorpus(surveys, held_out, fraction or Fraction(0), named, languages)


def _find_languages(texts: Sequence[ParallelText], config: ParallelTextConfig) -> tuple[str | None, str | None]:
    languages = texts[0].languages if len({text.languages for text in texts}) == 1 else (None, None)
    source, target = config.source_language or languages[0], config.target_language or languages[1]
    if config.bidirectional and (source is None or target is None or source == target):
        raise UsageError(
            "translating in both directions needs two languages, and the names of the files don't tell them",
            settings=["source_language", "target_language"],
        )
    return source, target


def _scan_parallel_text(
    text: ParallelText, *, hashes_pairs: bool = False, others: frozenset[int] = frozenset()
) -> ParallelSummary:
    """Read a parallel text once.

    Args:
        others: hashes of other pairs; records which of them occur here.
    """
    digests = [hashlib.sha256() for _ in text.all_files]
    sizes = [0] * len(digests)

    def observer(number: int) -> BlockCallback:
        def on_block(block: bytes) -> None:
            digests[number].update(block)
            sizes[number] += len(block)

        return on_block

    pairs = source_bytes = target_bytes = 0
    hashes: list[int] = []
    own: set[int] = set()
    seen: set[int] = set()
    changes = TextChanges()
    for pair in text.pairs(*map(observer, range(len(sizes))), changes=changes):
        pairs += 1
        source_bytes += len(pair.source.encode())
        target_bytes += len(pair.target.encode())
        if len(hashes) < FEW_DOCUMENTS and pair.source and pair.target:
            hashes.append(hash_text(pair.source))
        if (hashes_pairs or others) and pair.source and pair.target:
            pair_hash = hash_text(f"{pair.source}\n{pair.target}")
            own |= {pair_hash} if hashes_pairs else set()
            seen |= {pair_hash} & others
    records = (
        SourceRecord(file.name, size, digest.hexdigest(), file.read_as(TextChanges(malformed=changes.malformed)))
        for file, size, digest in zip(text.all_files, sizes, digests, strict=True)
    )
    return ParallelSummary(
        text, tuple(records), pairs, source_bytes, target_bytes, tuple(hashes), frozenset(own), frozenset(seen), changes
    )

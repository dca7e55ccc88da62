"""Parallel text after one pass over its files: how many pairs, in which languages, and which are held out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from lm.config.data import DataConfig, FilesConfig, ParallelConfig
from lm.corpus.corpus import FEW_DOCUMENTS, compute_hash_bound, hash_text, parse_held_out_fraction
from lm.corpus.manifest import SourceRecord, SplitName
from lm.errors import InputError, UsageError
from lm.text.files import BlockCallback
from lm.text.normalization import TextChanges
from lm.text.parallel import ParallelText, SentencePair, find_parallel_texts


@dataclass(frozen=True)
class ParallelSummary:
    """What one pass over a parallel text finds.

    Attributes:
        text: the parallel text.
        records: names, sizes and hashes of its files.
        pairs: the number of pairs, those with a blank side included.
        source_bytes: UTF-8 bytes of their sources.
        target_bytes: UTF-8 bytes of their targets.
        hashes: of the first sources, for a corpus of few pairs.
        pair_hashes: of both sides of all pairs, where they were asked for.
        seen: pairs that are among some others.
    """

    text: ParallelText
    records: tuple[SourceRecord, ...]
    pairs: int
    source_bytes: int
    target_bytes: int
    hashes: tuple[int, ...]
    pair_hashes: frozenset[int] = frozenset()
    seen: frozenset[int] = frozenset()

    @property
    def bytes(self) -> int:
        """UTF-8 bytes of both sides."""
        return self.source_bytes + self.target_bytes

    @property
    def identity(self) -> list[str]:
        """What its pairs follow from: the bytes, the fields that are read of rows, whether there are heads."""
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
    """A pair, the split it belongs to, and the parallel text it is from."""

    split: SplitName
    text: ParallelText
    pair: SentencePair

    @property
    def texts(self) -> tuple[str, str]:
        """Source and target."""
        return self.pair.source, self.pair.target

    @property
    def location(self) -> str:
        """The file or files, and the line."""
        return f"{self.text.name}: line {self.pair.line}"


@dataclass(frozen=True)
class ParallelCorpus:
    """Parallel texts after one pass over their files.

    Attributes:
        texts: the corpus.
        validation_texts: the validation split, where it has files of its own.
        fraction: the share of the pairs in `texts` that is held out; 0 where the validation split has its own files.
        validation: what is held out, as the user put it.
        languages: of sources and targets, where they are known.
    """

    texts: tuple[ParallelSummary, ...]
    validation_texts: tuple[ParallelSummary, ...]
    fraction: Fraction
    validation: str
    languages: tuple[str | None, str | None]

    @property
    def name(self) -> str:
        """The first few files, for messages."""
        return ", ".join(found.text.name for found in self.texts[:3])

    @property
    def pairs(self) -> int:
        """The number of all pairs, those with a blank side and those for validation included."""
        return sum(found.pairs for found in (*self.texts, *self.validation_texts))

    @property
    def has_heads(self) -> bool:
        """Whether the sources come with dependency trees."""
        return self.texts[0].text.heads is not None

    @property
    def seen_in_training(self) -> float:
        """The fraction of the different pairs in files for validation that are among those to train on."""
        held_out = frozenset[int]().union(*(found.pair_hashes for found in self.validation_texts))
        seen = frozenset[int]().union(*(found.seen for found in self.texts))
        return len(seen) / max(1, len(held_out))

    @property
    def copies(self) -> tuple[str, ...]:
        """The texts whose source and target are the same file, or files of the same bytes."""
        of_two = [found for found in self.texts if found.text.target is not None]
        return tuple(found.text.name for found in of_two if found.records[0].sha256 == found.records[1].sha256)

    @property
    def bytes(self) -> int:
        """UTF-8 bytes of all text, files for validation included."""
        return sum(found.bytes for found in (*self.texts, *self.validation_texts))

    def split_pairs(self) -> Iterator[SplitPair]:
        """All pairs with the splits they belong to; pairs with the same source belong to the same split."""
        bound = self._bound()
        for found in self.texts:
            for pair in found.text.pairs():
                split: SplitName = "validation" if hash_text(pair.source) < bound else "train"
                yield SplitPair(split, found.text, pair)
        for found in self.validation_texts:
            for pair in found.text.pairs():
                yield SplitPair("validation", found.text, pair)

    def _bound(self) -> int:
        """Pairs whose source has a hash below this are held out."""
        if sum(found.pairs for found in self.texts) >= FEW_DOCUMENTS:
            return compute_hash_bound(self.fraction)
        return compute_hash_bound(self.fraction, {value for found in self.texts for value in found.hashes})


def scan_parallel_corpus(
    texts: Sequence[ParallelText],
    data: DataConfig,
    config: ParallelConfig,
    *,
    validation: Sequence[ParallelText] = (),
    reading: FilesConfig | None = None,
) -> ParallelCorpus:
    """Read every file once.

    Args:
        texts: the corpus.
        data: what is held out, where `validation` is not given: a fraction, or a file of both sides.
        config: the languages, where files don't tell them.
        validation: the validation split.
        reading: how a file of both sides is read that `data` names.

    Raises:
        InputError: a file is not UTF-8 text, two differ in their numbers of lines, or there is no pair at all.
        UsageError: the validation fraction is not between 0 and 1, directions need languages that are unknown, or only
            a part of the files comes with heads.
    """
    fraction = None if validation else parse_held_out_fraction(data.validation)
    if fraction is None and not validation:
        validation = find_parallel_texts(config, reading, pairs=[data.validation])
    if len({text.heads is None for text in (*texts, *validation)}) > 1:
        raise UsageError("give heads of both splits, or of none", settings=["heads", "validation_heads"])
    languages = _find_languages(texts, config)
    named = ", ".join(text.name for text in validation) or data.validation
    held_out = tuple(_scan_parallel_text(text, hashes_pairs=True) for text in validation)
    held_out_pairs = frozenset[int]().union(*(found.pair_hashes for found in held_out))
    surveys = tuple(_scan_parallel_text(text, others=held_out_pairs) for text in texts)
    if not sum(found.bytes for found in surveys):
        raise InputError(f"{', '.join(text.name for text in texts[:3])}: there are no pairs")
    return ParallelCorpus(surveys, held_out, fraction or Fraction(0), named, languages)


def _find_languages(texts: Sequence[ParallelText], config: ParallelConfig) -> tuple[str | None, str | None]:
    told = texts[0].languages if len({text.languages for text in texts}) == 1 else (None, None)
    source, target = config.source_language or told[0], config.target_language or told[1]
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
        text: the text.
        hashes_pairs: whether to hash both sides of each pair.
        others: hashes of other pairs, of which those are noted that are here too.
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
    for pair in text.pairs(*map(observer, range(len(sizes)))):
        pairs += 1
        source_bytes += len(pair.source.encode())
        target_bytes += len(pair.target.encode())
        if len(hashes) < FEW_DOCUMENTS and pair.source and pair.target:
            hashes.append(hash_text(pair.source))
        if (hashes_pairs or others) and pair.source and pair.target:
            both = hash_text(f"{pair.source}\n{pair.target}")
            own |= {both} if hashes_pairs else set()
            seen |= {both} & others
    records = (
        SourceRecord(file.name, size, digest.hexdigest(), file.read_as(TextChanges()))
        for file, size, digest in zip(text.all_files, sizes, digests, strict=True)
    )
    return ParallelSummary(
        text, tuple(records), pairs, source_bytes, target_bytes, tuple(hashes), frozenset(own), frozenset(seen)
    )

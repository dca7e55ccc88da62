"""Train tokenizers on a parallel corpus, and tokenize and filter its pairs in bounded memory."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from lm.config.data import ParallelTextConfig
from lm.config.tokenizer import TokenizerConfig
from lm.corpus.manifest import SPLITS, PairManifest, PairSplit, SourceRecord, SplitName
from lm.corpus.parallel_corpus import ParallelCorpus, ParallelSummary, SplitPair
from lm.corpus.prepared_folder import Preparation, PreparedFolder, hash_inputs
from lm.corpus.ragged import RaggedArray
from lm.corpus.shards import token_dtype
from lm.corpus.text_corpus import encode_groups
from lm.corpus.tokenized_pairs import (
    SIDES,
    SOURCE_TOKENIZER,
    VALIDATION_TEXTS_FILE,
    RaggedWriter,
    SentenceWriter,
    SideName,
    TreePositionWriter,
    WordTable,
    open_pairs,
    write_word_table,
)
from lm.corpus.tree_positions import TreeReader
from lm.errors import InputError, UsageError
from lm.text.dependency_trees import TreePositions, compute_tree_positions
from lm.text.parallel_text import SentencePair
from lm.text.text_files import ProgressCallback
from lm.tokenizer.special_tokens import format_language_tag
from lm.tokenizer.tokenizer import FILE_NAME, Ids, Tokenizer
from lm.tokenizer.training import load_or_train


def load_or_train_tokenizers(
    corpus: ParallelCorpus, config: TokenizerConfig, parallel: ParallelTextConfig
) -> tuple[Tokenizer, Tokenizer | None]:
    """Train one tokenizer on source and target, or one on each, or load them from the cache.

    Args:
        parallel: whether vocabularies are separate, and whether both directions are trained, which takes language tags.

    Returns:
        The tokenizer of the targets, and that of the sources if separate.

    Raises:
        InputError: there is no text.
        UsageError: the settings contradict each other.
    """
    tags = (
        [format_language_tag(language) for language in corpus.languages if language] if parallel.bidirectional else []
    )
    if not parallel.separate_vocabularies:
        return _train_tokenizer(corpus, config, SIDES, tags), None
    return _train_tokenizer(corpus, config, ("target",), tags), _train_tokenizer(corpus, config, ("source",), tags)


def _train_tokenizer(
    corpus: ParallelCorpus, config: TokenizerConfig, sides: Sequence[SideName], tags: Sequence[str]
) -> Tokenizer:
    def texts() -> Iterator[str]:
        for summary in corpus.texts:
            for pair in summary.text.pairs():
                yield from (getattr(pair, side) for side in sides)

    total_bytes = sum(sum(getattr(summary, f"{side}_bytes") for side in sides) for summary in corpus.texts)
    identity = [*sides, *(json.dumps(summary.identity) for summary in corpus.texts)]
    return load_or_train(texts, config, identity=identity, corpus_bytes=total_bytes, special_tokens=tags)


def prepare_pairs(
    corpus: ParallelCorpus,
    tokenizer: Tokenizer,
    config: ParallelTextConfig,
    *,
    source_tokenizer: Tokenizer | None = None,
    root: Path | None = None,
    progress: ProgressCallback | None = None,
) -> PreparedFolder[PairManifest]:
    """Tokenize a parallel corpus into a folder of the cache, or load it.

    Pairs with a blank or too long source or target are removed; except from validation files, so are pairs whose length
    ratio is too large.

    Args:
        tokenizer: of the targets; of the sources too, unless they have their own.
        root: the cache [default: `cache_root()`].

    Raises:
        InputError: a character has no token, or no pairs are left to train on.
        UsageError: a tokenizer has no end token.
    """
    tokenizers: dict[SideName, Tokenizer] = {"source": source_tokenizer or tokenizer, "target": tokenizer}
    if any(used.end_of_text is None for used in tokenizers.values()):
        raise UsageError("the tokenizer has no end-of-text token, so no sentence could end; use one that has")

    def write(folder: Path) -> PairManifest:
        splits = write_pair_splits(corpus, tokenizers, config, folder, progress=progress)
        if not (train := splits["train"]).pairs:
            removed = (
                f"{train.blank} have a blank side, {train.too_long} are too long, {train.ratio} too unlike in length"
            )
            raise InputError(f"no pair is left to train on: {removed}", settings=["max_length", "max_ratio"])
        tokenizer.save(folder / FILE_NAME)
        if source_tokenizer is not None:
            source_tokenizer.save(folder / SOURCE_TOKENIZER)
        return _manifest(key, corpus, config, splits)

    contents = [[summary.identity for summary in group] for group in (corpus.texts, corpus.validation_texts)]
    sums = [tokenizer.sha256, source_tokenizer.sha256 if source_tokenizer else None]
    settings = [str(corpus.fraction), config.max_length, float(config.max_ratio), corpus.languages]
    key = hash_inputs("pairs", sums, settings, contents)
    preparation = Preparation(key, lambda folder: open_pairs(folder).manifest, write)
    return preparation.load_or_prepare_in_cache("pairs", root=root)


def _manifest(
    key: str, corpus: ParallelCorpus, config: ParallelTextConfig, splits: dict[str, PairSplit]
) -> PairManifest:
    return PairManifest(
        key=key,
        languages=corpus.languages,
        validation=corpus.validation,
        max_length=config.max_length,
        max_ratio=float(config.max_ratio),
        sources=_source_records(corpus.texts),
        validation_sources=_source_records(corpus.validation_texts),
        splits=splits,
        has_dependency_heads=corpus.has_dependency_heads,
    )


def _source_records(surveys: Sequence[ParallelSummary]) -> tuple[SourceRecord, ...]:
    return tuple(record for survey in surveys for record in survey.records)


class _EncodedPairs(NamedTuple):
    """Tokenized pairs.

    Attributes:
        sides: for source and target, the tokens of each sentence and their word indices.
        tree_positions: of the tokens of each source, if there are trees.
    """

    sides: Mapping[SideName, list[tuple[Ids, Ids]]]
    tree_positions: list[TreePositions] | None = None


def write_pair_splits(
    corpus: ParallelCorpus,
    tokenizers: Mapping[SideName, Tokenizer],
    config: ParallelTextConfig,
    folder: Path,
    *,
    progress: ProgressCallback | None,
) -> dict[str, PairSplit]:
    """Write the pairs of a corpus in the format of `lm.corpus.tokenized_pairs`; returns what each split holds.

    Raises:
        InputError: a character has no token, or the corpus has changed since it was scanned.
    """
    tables = {side: WordTable() for side in SIDES}
    reader = TreeReader(tokenizers["source"]) if corpus.has_dependency_heads else None
    with contextlib.ExitStack() as stack:
        texts = stack.enter_context((folder / VALIDATION_TEXTS_FILE).open("w", encoding="utf-8", newline="\n"))
        writers = {
            split: _SplitWriter(folder, split, tables, texts, stack, trees=corpus.has_dependency_heads)
            for split in SPLITS
        }
        items = corpus.split_pairs()
        for group, tokens in encode_groups(
            corpus, items, partial(_encode_pairs, tokenizers, reader), progress=progress
        ):
            for split, writer in writers.items():
                writer.append(group, tokens, config, has_files=split == "validation" and not corpus.fraction)
        records: dict[str, PairSplit] = {split: writer.close() for split, writer in writers.items()}
    for side, table in tables.items():
        write_word_table(folder, side, table, dtype=token_dtype(tokenizers[side].vocab_size))
    return records


def _encode_pairs(
    tokenizers: Mapping[SideName, Tokenizer], reader: TreeReader | None, group: Sequence[SplitPair]
) -> _EncodedPairs:
    sides = {side: tokenizers[side].encode_words([getattr(item.pair, side) for item in group]) for side in SIDES}
    if reader is None:
        return _EncodedPairs(sides)
    sources = [
        _encode_with_tree(reader, item.pair, *tokens) for item, tokens in zip(group, sides["source"], strict=True)
    ]
    return _EncodedPairs({**sides, "source": [words for words, _ in sources]}, [positions for _, positions in sources])


def _encode_with_tree(
    reader: TreeReader, pair: SentencePair, ids: Ids, numbers: Ids
) -> tuple[tuple[Ids, Ids], TreePositions]:
    """Return the tokens of a source with word indices, and their tree positions.

    Words are whitespace-separated, whatever the tokenizer's words are, so that each has one position.
    """
    assert pair.heads is not None
    words = reader.words(pair.source, ids)
    starts = (np.diff(words, prepend=0) != 0) | (np.diff(numbers.astype(np.int64), prepend=0) != 0)
    return (ids, np.cumsum(starts).astype(np.uint32)), compute_tree_positions(pair.heads)[words]


class _SplitWriter:
    """Writes the pairs of a split that pass the filters, and counts them."""

    def __init__(
        self,
        folder: Path,
        split: SplitName,
        tables: Mapping[SideName, WordTable],
        texts: TextIO,
        stack: contextlib.ExitStack,
        *,
        trees: bool,
    ) -> None:
        self._split, self._texts = split, texts
        self._sides = {side: SentenceWriter(folder, split, side, tables[side]) for side in SIDES}
        self._places = TreePositionWriter(folder, split) if trees else None
        for writer in self._writers:
            stack.callback(writer.discard)
        self._record = PairSplit()

    @property
    def _writers(self) -> list[RaggedWriter]:
        return [*self._sides.values(), *([self._places] if self._places else [])]

    def append(
        self, group: Sequence[SplitPair], encoded: _EncodedPairs, config: ParallelTextConfig, *, has_files: bool
    ) -> None:
        """Append the pairs of a group in this split; `has_files` says whether it has files of its own."""
        rows = np.flatnonzero([item.split == self._split for item in group])
        tokens = encoded.sides
        counts = [[len(tokens[side][row][0]) for row in rows] for side in SIDES]
        lengths = np.array(counts, dtype=np.int64)  # (sides, pairs)
        filtered = _PairFilter.from_lengths(lengths, config, has_files=has_files)
        kept = rows[filtered.kept].tolist()
        pairs = [group[row].pair for row in kept]
        for side, writer in self._sides.items():
            writer.append_tokens(*_concatenate([tokens[side][row] for row in kept]))
        if self._places is not None and encoded.tree_positions is not None:
            self._places.append(RaggedArray.from_rows([encoded.tree_positions[row] for row in kept]))
        if self._split == "validation":
            for pair in pairs:
                heads = {} if pair.heads is None else {"heads": pair.heads}
                text = json.dumps({"source": pair.source, "target": pair.target, **heads}, ensure_ascii=False)
                self._texts.write(text + "\n")
        self._count(filtered, lengths[:, filtered.kept], pairs)

    def close(self) -> PairSplit:
        for writer in self._writers:
            writer.close()
        return self._record

    def _count(self, filtered: _PairFilter, lengths: NDArray[np.int64], pairs: Sequence[SentencePair]) -> None:
        old = self._record
        source_tokens, target_tokens = lengths.sum(axis=1).tolist()
        self._record = PairSplit(
            pairs=old.pairs + len(pairs),
            source_tokens=old.source_tokens + source_tokens,
            target_tokens=old.target_tokens + target_tokens,
            source_bytes=old.source_bytes + sum(len(pair.source.encode()) for pair in pairs),
            target_bytes=old.target_bytes + sum(len(pair.target.encode()) for pair in pairs),
            longest=max(old.longest, int(lengths.max(initial=0))),
            blank=old.blank + int(filtered.blank.sum()),
            too_long=old.too_long + int(filtered.too_long.sum()),
            ratio=old.ratio + int(filtered.ratio.sum()),
        )


@dataclass(frozen=True)
class _PairFilter:
    """Which pairs are removed, each for the first reason that applies.

    Attributes:
        blank: (pairs,) source or target is blank.
        too_long: (pairs,) source or target has too many tokens.
        ratio: (pairs,) the length ratio is too large.
    """

    blank: NDArray[np.bool_]
    too_long: NDArray[np.bool_]
    ratio: NDArray[np.bool_]

    @classmethod
    def from_lengths(cls, lengths: NDArray[np.int64], config: ParallelTextConfig, *, has_files: bool) -> _PairFilter:
        """Filter pairs, given (2, pairs) lengths; validation files are not filtered by ratio."""
        shorter, longer = lengths.min(axis=0), lengths.max(axis=0)
        blank = shorter == 0
        too_long = ~blank & (longer > config.max_length)
        ratio = ~blank & ~too_long & (longer > config.max_ratio * shorter) & (not has_files)
        return cls(blank, too_long, ratio)

    @property
    def kept(self) -> NDArray[np.bool_]:
        return ~(self.blank | self.too_long | self.ratio)


def _concatenate(encoded: Sequence[tuple[Ids, Ids]]) -> tuple[RaggedArray, NDArray[np.bool_]]:
    """Return the tokens of sentences, and which of them start a word."""
    none = np.empty(0, dtype=np.uint32)
    ids = np.concatenate([none, *(ids for ids, _ in encoded)])
    numbers = np.concatenate([none, *(numbers for _, numbers in encoded)])
    ends = np.cumsum([len(ids) for ids, _ in encoded], dtype=np.int64)
    starts = np.diff(numbers.astype(np.int64), prepend=-1) != 0
    starts[ends[:-1]] = True
    return RaggedArray(ids, ends), starts

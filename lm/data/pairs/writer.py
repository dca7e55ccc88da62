"""Writing pairs: tokenizing and filtering them in bounded memory."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from lm.config.data import ParallelConfig
from lm.data.array_writer import token_dtype
from lm.data.encoding import Progress, encoded
from lm.data.manifest import SPLITS, SplitName
from lm.data.pairs.corpus import ParallelCorpus, SplitPair
from lm.data.pairs.manifest import PairSplit
from lm.data.pairs.store import SIDES, TEXTS, SentenceWriter, SideName, write_table
from lm.data.pairs.word_table import WordTable
from lm.data.ragged import Ragged
from lm.tokenizer.tokenizer import Ids, Tokenizer

Encoded = Mapping[SideName, list[tuple[Ids, Ids]]]


def write_splits(
    corpus: ParallelCorpus,
    tokenizers: Mapping[SideName, Tokenizer],
    config: ParallelConfig,
    folder: Path,
    *,
    progress: Progress | None,
) -> dict[str, PairSplit]:
    """Write the pairs of a corpus as `lm.data.pairs.store` describes; returns what each split holds.

    Args:
        corpus: the corpus.
        tokenizers: the tokenizer of each side.
        config: the filters.
        folder: a folder that exists.
        progress: called as text is tokenized.

    Raises:
        InputError: a tokenizer has no token for a character, or the corpus changed since it was surveyed.
    """
    tables = {side: WordTable() for side in SIDES}
    with contextlib.ExitStack() as opened:
        texts = opened.enter_context((folder / TEXTS).open("w", encoding="utf-8", newline="\n"))
        writers = {split: _SplitWriter(folder, split, tables, texts, opened) for split in SPLITS}
        items = corpus.split_pairs()
        for group, tokens in encoded(corpus, items, partial(_encode, tokenizers), progress=progress):
            for split, writer in writers.items():
                writer.append(group, tokens, config, has_files=split == "validation" and not corpus.fraction)
        records: dict[str, PairSplit] = {split: writer.close() for split, writer in writers.items()}
    for side, table in tables.items():
        write_table(folder, side, table, dtype=token_dtype(tokenizers[side].vocab_size))
    return records


def _encode(tokenizers: Mapping[SideName, Tokenizer], group: Sequence[SplitPair]) -> Encoded:
    """For each side, the tokens of its sentences and the number of each token's word."""
    return {side: tokenizers[side].encode_words([getattr(item.pair, side) for item in group]) for side in SIDES}


class _SplitWriter:
    """Writes the pairs of a split that pass the filters, and counts them."""

    def __init__(
        self,
        folder: Path,
        split: SplitName,
        tables: Mapping[SideName, WordTable],
        texts: TextIO,
        opened: contextlib.ExitStack,
    ) -> None:
        self._split, self._texts = split, texts
        self._sides = {side: SentenceWriter(folder, split, side, tables[side]) for side in SIDES}
        for writer in self._sides.values():
            opened.callback(writer.discard)
        self._record = PairSplit()

    def append(
        self,
        group: Sequence[SplitPair],
        tokens: Encoded,
        config: ParallelConfig,
        *,
        has_files: bool,
    ) -> None:
        """Write the pairs of a group that belong to this split; `has_files` says whether it has files of its own."""
        mine = np.array([item.split == self._split for item in group])
        lengths = np.array([[len(ids) for ids, _ in tokens[side]] for side in SIDES])
        shorter, longer = lengths.min(axis=0), lengths.max(axis=0)
        blank = mine & (shorter == 0)
        too_long = mine & ~blank & (longer > config.max_length)
        ratio = mine & ~blank & ~too_long & (longer > config.max_ratio * shorter) & (not has_files)
        kept = np.flatnonzero(mine & ~blank & ~too_long & ~ratio).tolist()
        for side, writer in self._sides.items():
            writer.append(*_joined([tokens[side][row] for row in kept]))
        pairs = [group[row].pair for row in kept]
        if self._split == "validation":
            for pair in pairs:
                self._texts.write(json.dumps({"source": pair.source, "target": pair.target}, ensure_ascii=False) + "\n")
        self._count(
            PairSplit(
                pairs=len(kept),
                source_tokens=int(lengths[0, kept].sum()),
                target_tokens=int(lengths[1, kept].sum()),
                source_bytes=sum(len(pair.source.encode()) for pair in pairs),
                target_bytes=sum(len(pair.target.encode()) for pair in pairs),
                longest=int(longer[kept].max(initial=0)),
                blank=int(blank.sum()),
                too_long=int(too_long.sum()),
                ratio=int(ratio.sum()),
            )
        )

    def close(self) -> PairSplit:
        """Finish the files and say what the split holds."""
        for writer in self._sides.values():
            writer.close()
        return self._record

    def _count(self, more: PairSplit) -> None:
        old, new = dataclasses.asdict(self._record), dataclasses.asdict(more)
        sums = {name: old[name] + new[name] for name in old}
        self._record = PairSplit(**{**sums, "longest": max(old["longest"], new["longest"])})


def _joined(encoded: Sequence[tuple[Ids, Ids]]) -> tuple[Ragged, NDArray[np.bool_]]:
    """The tokens of sentences, and which of them start a word."""
    none = np.empty(0, dtype=np.uint32)
    ids = np.concatenate([none, *(ids for ids, _ in encoded)])
    numbers = np.concatenate([none, *(numbers for _, numbers in encoded)])
    ends = np.cumsum([len(ids) for ids, _ in encoded], dtype=np.int64)
    starts = np.diff(numbers.astype(np.int64), prepend=-1) != 0
    starts[ends[:-1]] = True
    return Ragged(ids, ends), starts

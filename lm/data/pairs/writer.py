"""Writing pairs: tokenized, filtered, and in bounded memory."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from lm.config.data import ParallelConfig
from lm.data.array_writer import token_dtype
from lm.data.encoding import grouped
from lm.data.pairs.corpus import ParallelCorpus
from lm.data.pairs.store import SIDES, TEXTS, PairSplit, SentenceWriter, SideName, write_table
from lm.data.pairs.word_table import WordTable
from lm.data.ragged import Ragged
from lm.data.shards import SPLITS, SplitName
from lm.errors import InputError
from lm.text.parallel import Pair, ParallelText
from lm.tokenizer.tokenizer import Ids, Tokenizer

Progress = Callable[[int, int], None]
"""Called with the bytes of text that are done, and all there are."""

Routed = tuple[SplitName, ParallelText, Pair]


def write_splits(
    corpus: ParallelCorpus,
    tokenizers: Mapping[SideName, Tokenizer],
    config: ParallelConfig,
    folder: Path,
    *,
    progress: Progress | None,
) -> dict[str, PairSplit]:
    """Write the pairs of a corpus as `pair_store` describes; returns what each split holds.

    Args:
        corpus: the text.
        tokenizers: of each side.
        config: the filters.
        folder: that exists.
        progress: called as text is tokenized.

    Raises:
        InputError: a tokenizer has no token for a character.
    """
    tables = {side: WordTable() for side in SIDES}
    with contextlib.ExitStack() as opened:
        texts = opened.enter_context((folder / TEXTS).open("w", encoding="utf-8", newline="\n"))
        writers = {split: _SplitWriter(folder, split, tables, texts, opened) for split in SPLITS}
        done = 0
        for batch in grouped(corpus.routed(), lambda item: len(item[2].source) + len(item[2].target)):
            encoded = {side: _encode(batch, side, tokenizers[side]) for side in SIDES}
            for split, writer in writers.items():
                writer.append(batch, encoded, config, has_files=split == "validation" and not corpus.fraction)
            done += sum(len(pair.source.encode()) + len(pair.target.encode()) for _, _, pair in batch)
            if progress:
                progress(done, corpus.bytes)
        records: dict[str, PairSplit] = {split: writer.close() for split, writer in writers.items()}
    if done != corpus.bytes:
        raise InputError(f"{corpus.surveys[0].aligned.name}: the corpus changed while it was read; try again")
    for side, table in tables.items():
        write_table(folder, side, table, dtype=token_dtype(tokenizers[side].vocab_size))
    return records


def _encode(batch: Sequence[Routed], side: SideName, tokenizer: Tokenizer) -> list[tuple[Ids, Ids]]:
    try:
        return tokenizer.encode_words([getattr(pair, side) for _, _, pair in batch])
    except InputError:
        for _, aligned, pair in batch:  # which line it was
            try:
                tokenizer.encode_words([getattr(pair, side)])
            except InputError as error:
                raise InputError(f"{aligned.name}: line {pair.line}: {error}") from None
        raise


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
        batch: Sequence[Routed],
        encoded: Mapping[SideName, list[tuple[Ids, Ids]]],
        config: ParallelConfig,
        *,
        has_files: bool,
    ) -> None:
        """Write those of a batch that belong to this split, which `has_files` of its own or not."""
        mine = np.array([split == self._split for split, _, _ in batch])
        lengths = np.array([[len(ids) for ids, _ in encoded[side]] for side in SIDES])
        shorter, longer = lengths.min(axis=0), lengths.max(axis=0)
        blank = mine & (shorter == 0)
        too_long = mine & ~blank & (longer > config.max_length)
        ratio = mine & ~blank & ~too_long & (longer > config.max_ratio * shorter) & (not has_files)
        kept = np.flatnonzero(mine & ~blank & ~too_long & ~ratio).tolist()
        for side, writer in self._sides.items():
            writer.append(*_joined([encoded[side][row] for row in kept]))
        pairs = [batch[row][2] for row in kept]
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
    """Sentences' tokens, and which of them start a word."""
    none = np.empty(0, dtype=np.uint32)
    ids = np.concatenate([none, *(ids for ids, _ in encoded)])
    numbers = np.concatenate([none, *(numbers for _, numbers in encoded)])
    ends = np.cumsum([len(ids) for ids, _ in encoded], dtype=np.int64)
    starts = np.diff(numbers.astype(np.int64), prepend=-1) != 0
    starts[ends[:-1]] = True
    return Ragged(ids, ends), starts

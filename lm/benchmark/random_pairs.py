"""Pairs of random sentences, prepared as those of a corpus are."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lm import files
from lm.corpus.manifest import MANIFEST, SPLITS, PairManifest, PairSplit
from lm.corpus.pairs import SIDES, TEXTS, SentenceWriter, WordTable, write_table
from lm.corpus.ragged import Ragged
from lm.corpus.shards import token_dtype
from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer

LENGTH = 16
"""Tokens of each side as a batch has it, the one that ends it included: a short sentence."""


def write_pairs(folder: Path, tokenizer: Tokenizer, *, pairs: int) -> None:
    """Random ids as `lm.corpus.pairs` has them, each a word of its own; nobody can read them as text."""
    folder.mkdir()
    chance, tokens = np.random.default_rng(0), pairs * (LENGTH - 1)
    ends = np.arange(1, pairs + 1) * (LENGTH - 1)
    for side in SIDES:
        table = WordTable()
        for split in SPLITS:
            writer = SentenceWriter(folder, split, side, table)
            ids = chance.integers(tokenizer.vocab_size, size=tokens)
            writer.append_tokens(Ragged(ids, ends), np.ones(tokens, dtype=bool))
            writer.close()
        write_table(folder, side, table, dtype=token_dtype(tokenizer.vocab_size))
    tokenizer.save(folder / FILE_NAME)
    (folder / TEXTS).touch()
    held = PairSplit(
        pairs=pairs, source_tokens=tokens, target_tokens=tokens, source_bytes=tokens, target_bytes=tokens,
        longest=LENGTH - 1,
    )  # fmt: skip
    manifest = PairManifest(
        key="", languages=(None, None), validation="", max_length=LENGTH, max_ratio=1.0, sources=(),
        validation_sources=(), splits=dict.fromkeys(SPLITS, held),
    )  # fmt: skip
    files.write_json(folder / MANIFEST, manifest.to_dict())

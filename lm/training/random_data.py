"""Random tokens and sentence pairs on disk, in the format of a prepared corpus."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lm import files
from lm.config.tokenizer import END_OF_TEXT, TokenizerConfig
from lm.corpus.manifest import MANIFEST, SPLITS, Manifest, PairManifest, PairSplit, SplitRecord
from lm.corpus.pairs import SIDES, VALIDATION_TEXTS_FILE, SentenceWriter, WordTable, write_word_table
from lm.corpus.ragged import RaggedArray
from lm.corpus.shards import ShardWriter, token_dtype
from lm.tokenizer import training as tokenizer_training
from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer

SENTENCE_LENGTH = 16
"""Tokens per side, including the end token: a short sentence."""
_FIRST_CHARACTER = 0x10000  # followed by enough code points for any vocabulary


def write_random_pairs(folder: Path, tokenizer: Tokenizer, *, pairs: int) -> None:
    """Write random sentence pairs in the format of `lm.corpus.pairs`, each token a word of its own."""
    folder.mkdir()
    rng, tokens = np.random.default_rng(0), pairs * (SENTENCE_LENGTH - 1)
    ends = np.arange(1, pairs + 1) * (SENTENCE_LENGTH - 1)
    for side in SIDES:
        table = WordTable()
        for split in SPLITS:
            writer = SentenceWriter(folder, split, side, table)
            ids = rng.integers(tokenizer.vocab_size, size=tokens)
            writer.append_tokens(RaggedArray(ids, ends), np.ones(tokens, dtype=bool))
            writer.close()
        write_word_table(folder, side, table, dtype=token_dtype(tokenizer.vocab_size))
    tokenizer.save(folder / FILE_NAME)
    (folder / VALIDATION_TEXTS_FILE).touch()
    split_record = PairSplit(
        pairs=pairs, source_tokens=tokens, target_tokens=tokens, source_bytes=tokens, target_bytes=tokens,
        longest=SENTENCE_LENGTH - 1,
    )  # fmt: skip
    manifest = PairManifest(
        key="", languages=(None, None), validation="", max_length=SENTENCE_LENGTH, max_ratio=1.0, sources=(),
        validation_sources=(), splits=dict.fromkeys(SPLITS, split_record),
    )  # fmt: skip
    files.write_json(folder / MANIFEST, manifest.to_dict())


def placeholder_tokenizer(vocab_size: int) -> Tokenizer:
    """Return a tokenizer with `vocab_size` tokens, including end of text; it is not used to encode."""
    characters = "".join(map(chr, range(_FIRST_CHARACTER, _FIRST_CHARACTER + vocab_size - 1)))
    config, size = TokenizerConfig(kind="char"), 4 * vocab_size
    return tokenizer_training.train([characters], config, corpus_bytes=size, special_tokens=[END_OF_TEXT]).tokenizer


def write_random_tokens(folder: Path, *, tokens: int, vocab_size: int) -> None:
    """Write random tokens in the format of `lm.corpus.shards`."""
    folder.mkdir()
    dtype = token_dtype(vocab_size)
    ids = np.random.default_rng(0).integers(vocab_size, size=tokens).astype(dtype)
    splits: dict[str, SplitRecord] = {}
    for split in SPLITS:
        writer = ShardWriter(folder, split, dtype=dtype)
        writer.append(ids)
        writer.close()
        splits[split] = SplitRecord(documents=1, tokens=tokens, bytes=tokens, shards=tuple(writer.shards))
    manifest = Manifest(
        kind="text", key="", tokenizer="", vocab_size=vocab_size, dtype=dtype, separator="", validation="", sources=(),
        validation_sources=(), splits=splits,
    )  # fmt: skip
    files.write_json(folder / MANIFEST, manifest.to_dict())

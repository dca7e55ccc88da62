"""A tokenizer to be trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lm.config.options import CheckedConfig, option

END_OF_TEXT = "<|endoftext|>"
MASK = "[MASK]"  # stands where a token is to be guessed
MOST_TOKENS = 1 << 20  # in a vocabulary that is trained here: four times the largest in common use

TokenizerKind = Literal["bpe", "char", "byte"]
Merges = Literal["words", "characters"]


@dataclass(frozen=True)
class TokenizerConfig(CheckedConfig):
    """A tokenizer to be trained."""

    kind: TokenizerKind = option("bpe", "Byte-level BPE, single characters, or single bytes.")
    vocab_size: int = option(
        4096, "Size of a BPE vocabulary, special tokens included.", minimum=257, maximum=MOST_TOKENS
    )
    min_frequency: int = option(2, "How often a pair must occur to be merged.", minimum=1, maximum=1 << 31)
    merges: Merges = option("words", "Merge bytes into parts of words, or only into single characters.")

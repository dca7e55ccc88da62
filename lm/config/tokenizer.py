"""A tokenizer to be trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lm.config.options import CheckedConfig, option

END_OF_TEXT = "<|endoftext|>"
MASK = "[MASK]"  # stands where a token is to be guessed
MOST_TOKENS = 1 << 20  # in a vocabulary that is trained here: four times the largest in common use

TokenizerKind = Literal["bpe", "char", "byte"]
MergeScope = Literal["words", "characters"]


@dataclass(frozen=True)
class TokenizerConfig(CheckedConfig):
    """A tokenizer to be trained."""

    kind: TokenizerKind = option("bpe", "Byte-level BPE, characters or bytes.")
    vocab_size: int = option(
        4096, "BPE vocabulary size.", minimum=257, maximum=MOST_TOKENS, unit="TOKENS", requires="tokenizer.kind=bpe"
    )
    min_frequency: int = option(
        2, "Minimum frequency of a BPE merge.", minimum=1, maximum=1 << 31, unit="COUNT", requires="tokenizer.kind=bpe"
    )
    merges: MergeScope = option(
        "words", "BPE merges within words, or only within characters.", requires="tokenizer.kind=bpe"
    )

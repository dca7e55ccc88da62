"""A tokenizer to be trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from lm.config.settings import Config

END_OF_TEXT = "<|endoftext|>"
MASK = "[MASK]"  # stands where a token is to be guessed
MOST_TOKENS = 1 << 20  # in a vocabulary that is trained here: four times the largest in common use

TokenizerKind = Literal["bpe", "char", "byte"]
MergeScope = Literal["words", "characters"]


@dataclass(frozen=True)
class TokenizerConfig(Config):
    """A tokenizer to be trained.

    Settings:
        kind: Byte-level BPE, characters or bytes.
        vocab_size: BPE vocabulary size.
        merges: BPE merges within words, or only within characters.
    """

    kind: TokenizerKind = "bpe"
    vocab_size: Annotated[int, Meta(ge=257, le=MOST_TOKENS), "tokenizer.kind=bpe"] = 4096
    merges: Annotated[MergeScope, "tokenizer.kind=bpe"] = "words"

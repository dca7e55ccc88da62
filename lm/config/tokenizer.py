"""A tokenizer to be trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from lm.config.settings import Config, Requires

END_OF_TEXT = "<|endoftext|>"
MASK = "[MASK]"  # stands where a token is to be guessed
MOST_TOKENS = 1 << 20  # in a vocabulary that is trained here: four times the largest in common use

TokenizerKind = Literal["bpe", "char", "byte"]
MergeScope = Literal["words", "characters"]
_BPE = Requires("tokenizer.kind=bpe")


@dataclass(frozen=True)
class TokenizerConfig(Config):
    """A tokenizer to be trained."""

    kind: Annotated[TokenizerKind, "Byte-level BPE, characters or bytes."] = "bpe"
    vocab_size: Annotated[int, Meta(ge=257, le=MOST_TOKENS), "BPE vocabulary size.", _BPE] = 4096
    merges: Annotated[MergeScope, "BPE merges within words, or only within characters.", _BPE] = "words"

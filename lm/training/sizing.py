"""How large a model a time is enough for, on this machine and for this text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

_TOKENS_A_PARAMETER = 8
_OVERHEAD = 1.2  # arithmetic of the output layer and of attention, beside that of the blocks
_FEWEST_STEPS = 400
_VOCABULARIES = ((100_000, 512), (500_000, 1024), (5_000_000, 2048), (50_000_000, 4096), (500_000_000, 8192))
_LARGEST_VOCABULARY = 16_384
_BYTES_A_TOKEN = 3.0
_DEEPEST = 24
_PARAMETERS_OF_ONE = 12 * 64**2  # of the matrices of a model of depth 1; they grow with the cube of the depth


@dataclass(frozen=True)
class Size:
    """What a budget is spent on.

    Attributes:
        depth: of `lm.presets.of_depth`.
        vocab_size: of the tokenizer, if one is trained.
        batch_tokens: in one optimizer step.
        dropout: against learning the text by heart.
        tokens: that there is time for, about.
        epochs: passes over the text that they come to.
    """

    depth: int
    vocab_size: int
    batch_tokens: int
    dropout: float
    tokens: float
    epochs: float

    def settings(self) -> dict[str, dict[str, Any]]:
        """What of it differs from the preset of its depth, by section of a RunConfig."""
        return {
            "model": {"dropout": self.dropout},
            "tokenizer": {"vocab_size": self.vocab_size},
            "training": {"batch_tokens": self.batch_tokens},
        }


def fitting(seconds: float, *, rate: float, text_bytes: int) -> Size:
    """The size of a model that has seen enough tokens when the time is up.

    Args:
        seconds: of training.
        rate: FLOP/s of training on this machine, as measured on a small model.
        text_bytes: of the corpus.

    Source: arithmetic of 6 a parameter and token, Kaplan et al. 2020; that tokens and parameters grow alike with it,
    Hoffmann et al. 2022, who have 20 tokens a parameter; 8 is a guess for small texts, which come several times.
    """
    arithmetic = max(1.0, seconds) * rate / (6 * _OVERHEAD)
    parameters = math.sqrt(arithmetic / _TOKENS_A_PARAMETER)
    depth = min(_DEEPEST, max(1, round((parameters / _PARAMETERS_OF_ONE) ** (1 / 3))))
    vocabulary = next((size for limit, size in _VOCABULARIES if text_bytes < limit), _LARGEST_VOCABULARY)
    tokens = arithmetic / (_PARAMETERS_OF_ONE * depth**3)
    epochs = tokens * _BYTES_A_TOKEN / max(1, text_bytes)
    largest = 1 << max(9, math.floor(math.log2(max(1.0, tokens / _FEWEST_STEPS))))
    dropout = 0.0 if epochs < 3 else 0.1 if epochs < 8 else 0.2
    return Size(depth, vocabulary, min(2048 * depth, largest), dropout, tokens, epochs)

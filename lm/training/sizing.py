"""How large a model a time is enough for, on this machine and for this text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

_T = TypeVar("_T")
_TOKENS_A_PARAMETER, _ARITHMETIC, _EXPONENT = 0.25, 2.5e13, 0.28
_FEWEST_STEPS = 200
_FEWEST_TOKENS_A_STEP = 512
_VOCABULARIES = ((30_000, 512), (100_000, 1024), (300_000, 2048), (800_000, 4096), (20_000_000, 8192))
_LARGEST_VOCABULARY = 16_384
_REGULARISATION = ((2.5, (0.0, 0.1)), (5, (0.1, 1.0)), (15, (0.1, 2.0)))  # up to so many epochs
_MOST_REGULARISATION = (0.2, 2.0)
_BYTES_A_TOKEN = 3.5
_DEEPEST = 24
_ATTENTION = 1.1  # arithmetic of attention and of the optimizer, beside that of the matrices
_PARAMETERS_OF_ONE = 12 * 64**2  # of the blocks of a model of depth 1; they grow with the cube of the depth


@dataclass(frozen=True)
class Size:
    """What a budget is spent on.

    Attributes:
        depth: of `lm.presets.of_depth`.
        vocab_size: of the tokenizer, if one is trained.
        batch_tokens: in one optimizer step.
        dropout: against learning the text by heart.
        weight_decay: to the same end.
        tokens: that there is time for, about.
        epochs: passes over the text that they come to.
    """

    depth: int
    vocab_size: int
    batch_tokens: int
    dropout: float
    weight_decay: float
    tokens: float
    epochs: float

    def settings(self) -> dict[str, dict[str, Any]]:
        """What of it differs from the preset of its depth, by section of a RunConfig."""
        return {
            "model": {"dropout": self.dropout},
            "tokenizer": {"vocab_size": self.vocab_size},
            "training": {"batch_tokens": self.batch_tokens, "weight_decay": self.weight_decay},
        }


def fitting(seconds: float, *, rate: float, text_bytes: int) -> Size:
    """The size of a model that has seen enough tokens when the time is up.

    The deepest model is taken that sees enough tokens for each parameter of its blocks: a quarter of one in 2.5e13
    operations, as in runs of minutes on megabytes of text (docs/recipe.md), growing with a power of the operations that
    leads to the 10 tokens which serve models of hundreds of millions of parameters trained by Muon.

    Args:
        seconds: of training.
        rate: FLOP/s of training on this machine, as measured on a small model.
        text_bytes: of the corpus.

    Source: 6 operations a parameter and token, Kaplan et al. 2020; the 10 tokens, nanochat (Karpathy 2025).
    """
    vocabulary = _up_to(text_bytes, _VOCABULARIES, otherwise=_LARGEST_VOCABULARY)
    operations = max(1.0, seconds) * rate
    enough = _TOKENS_A_PARAMETER * (operations / _ARITHMETIC) ** _EXPONENT

    def tokens(depth: int) -> float:
        parameters = _PARAMETERS_OF_ONE * depth**3 + vocabulary * 64 * depth
        return operations / (6 * _ATTENTION * parameters)

    depth = 1
    while depth < _DEEPEST and tokens(depth + 1) >= enough * _PARAMETERS_OF_ONE * (depth + 1) ** 3:
        depth += 1
    epochs = tokens(depth) * _BYTES_A_TOKEN / max(1, text_bytes)
    batch = max(_FEWEST_TOKENS_A_STEP, min(2048 * depth, round(tokens(depth) / _FEWEST_STEPS)))
    dropout, weight_decay = _up_to(epochs, _REGULARISATION, otherwise=_MOST_REGULARISATION)
    return Size(depth, vocabulary, batch, dropout, weight_decay, tokens(depth), epochs)


def _up_to(value: float, steps: Sequence[tuple[float, _T]], *, otherwise: _T) -> _T:
    """What goes with the first limit that a value is below."""
    return next((found for limit, found in steps if value < limit), otherwise)

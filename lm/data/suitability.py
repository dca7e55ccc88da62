"""Whether data suit a model: warnings, each a sentence with advice."""

from __future__ import annotations

_FEWEST_TOKENS_A_PARAMETER = 0.02
"""A thousandth of the 20 tokens a parameter that spend a budget of arithmetic best (Hoffmann et al. 2022). Such
a model knows the text by heart before it has learned anything else."""

_MOST_TOKENS_A_PARAMETER = 1000
"""Fifty times as many as the same rule has: a larger model would be better after the same arithmetic."""

_MANY_EPOCHS = 20
"""Up to 4 epochs are nearly as good as new text, and beyond 16 little is left to gain (Muennighoff et al. 2023)."""


def too_large(tokens: int, parameters: int) -> list[str]:
    """Whether a model has far more parameters than so many tokens can teach."""
    if tokens >= _FEWEST_TOKENS_A_PARAMETER * parameters:
        return []
    by_heart = "the model is far too large for this text and will learn it by heart"
    return [f"{by_heart}: a smaller one, or more text, would do better (--depth, --d-model)"]


def too_small(tokens: int, parameters: int, *, epochs: float) -> list[str]:
    """Whether a model will see far more tokens of a text than its parameters can hold."""
    if min(tokens, epochs * tokens) <= _MOST_TOKENS_A_PARAMETER * parameters:
        return []
    return ["the model is far too small for this much text: a larger one would do better (--depth, --d-model)"]


def too_often(tokens: int, parameters: int, *, epochs: float, is_evaluated: bool) -> list[str]:
    """Whether a text is so small, and comes so often, that the model is all but certain to overfit."""
    if epochs <= _MANY_EPOCHS or tokens >= parameters:
        return []
    advice = "--patience 3 ends the run then, or give fewer --steps" if is_evaluated else "fewer --steps"
    return [f"{epochs:.0f} times the same small text: validation will get worse long before the end ({advice})"]

"""Examples and texts that are longer than the context: what is cut of them, and which cannot be cut."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def shortened(ids: NDArray[Any], *, context: int) -> NDArray[Any]:
    """An example that fits into the context: a longer one loses the beginning of its prompt.

    Args:
        ids: (tokens,) start, prompt, completion, end. The start is kept.
        context: tokens that the model reads. A row may have one more, its last being only predicted.
    """
    return ids if len(ids) <= context + 1 else np.concatenate([ids[:1], ids[-context:]])


def beginning(ids: NDArray[Any], *, context: int) -> NDArray[Any]:
    """A text with the tokens that start and end it, cut to `context` tokens before its end token, which is kept."""
    return ids if len(ids) <= context else np.concatenate([ids[: context - 1], ids[-1:]])


def too_long(learned: int, *, context: int) -> str | None:
    """What to say of a completion that does not fit behind the token that starts a text; None if it fits.

    Args:
        learned: tokens of the completion, its end included.
        context: tokens that the model reads.
    """
    if learned <= context:
        return None
    return f"the completion is {learned - 1} tokens, and with its end does not fit into the context of {context}"

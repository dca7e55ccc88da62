"""Biases as people write them: TEXT=VALUE or ID=VALUE."""

from __future__ import annotations

import math
from collections.abc import Iterable

from lm.errors import UsageError
from lm.tokenizer.tokenizer import Tokenizer


def read_biases(written: Iterable[str], tokenizer: Tokenizer) -> dict[tuple[int, ...], float]:
    """The sequences of tokens to favour or disfavour, and by how much.

    Args:
        written: each `TEXT=VALUE` or `ID=VALUE`, split at the last `=`; what has only digits is an id. A text of
            several tokens is a sequence, of which the last token is biased where the others stand before it.
        tokenizer: splits texts.

    Raises:
        UsageError: one is not of this form, names no token, or its value is neither -inf nor between -1e20 and 1e20.
    """
    return dict(_read(text, tokenizer) for text in written)


_GREATEST = 1e20
"""Nothing is gained by more, and float32 has room to add such biases and to divide them by a low temperature."""


_DIGITS = 18
"""More than any id has; Python refuses to read thousands of them."""


_SETTING = ("logit_bias",)


def _read(written: str, tokenizer: Tokenizer) -> tuple[tuple[int, ...], float]:
    text, _, value = written.rpartition("=")
    try:
        bias = float(value)
    except ValueError:
        bias = math.nan
    if not text or math.isnan(bias) or bias == math.inf:
        raise UsageError(f"{written!r} is not TEXT=VALUE or ID=VALUE with a number or -inf", settings=_SETTING)
    if abs(bias) > _GREATEST and bias != -math.inf:
        raise UsageError(
            f"{written!r}: a bias is between -1e20 and 1e20, or -inf to ban a token", settings=["logit_bias"]
        )
    if not text.isdecimal():
        tokens = tuple(tokenizer.encode(text))
        if not tokens:
            raise UsageError(
                f"{written!r}: the tokenizer makes no token of this text; give an ID", settings=["logit_bias"]
            )
        return tokens, bias
    if len(text.lstrip("0")) > _DIGITS or int(text) >= tokenizer.vocab_size:
        raise UsageError(
            f"there is no token {text}; ids go from 0 to {tokenizer.vocab_size - 1}", settings=["logit_bias"]
        )
    return (int(text),), bias

"""What is raised where a model's output is not a number, and the log-normaliser of logits that shows it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lm.errors import InputError


def not_a_number(where: str = "") -> InputError:
    """The error to raise where logits, or what is computed from them, are NaN or infinite.

    Args:
        where: the file or line that was read, for the message; nothing if no file is to blame.
    """
    return InputError(
        f"{where}{': ' * bool(where)}the model's output is not a number; the model is damaged, or its values are too "
        "large for the dtype (try float32)"
    )


def log_normaliser(logits: Tensor) -> Tensor:
    """The logarithm of the summed exponentials of each row: (rows, vocabulary) -> (rows,), NaN where it isn't finite.

    A log-probability made with it is NaN exactly if a logit of the row is NaN or +inf, or all of them are -inf.
    """
    total = logits.logsumexp(-1)
    return total.where(total.isfinite(), torch.nan)


def check_number(value: float) -> None:
    """Raise InputError if a probability of a row of logits, or a log-probability, is NaN."""
    if math.isnan(value):
        raise not_a_number()

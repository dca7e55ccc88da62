"""The errors a user can cause, each with the exit code it ends the program with, and advice beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self


class LMError(Exception):
    """Something the user can put right: the message names the file, field or offset and says what to do.

    Attributes:
        settings: the names of settings to change, such as "batch_size"; the command line adds their flags.
    """

    exit_code = 1

    def __init__(self, message: str = "", *, settings: Sequence[str] = ()) -> None:
        """Say what is wrong, without flags, and which settings put it right."""
        super().__init__(message)
        self.settings = tuple(settings)

    def at(self, place: str) -> Self:
        """The same error with a place in front of the message, such as a file and its line."""
        return type(self)(f"{place}: {self}", settings=self.settings)


class UsageError(LMError):
    """A flag, preset or field with a value that cannot be used."""

    exit_code = 2


class InputError(LMError):
    """A file or folder that is missing, unreadable, or not what was asked for."""


class TrainingError(LMError):
    """Training cannot continue, for instance because the loss is no longer a number."""


class OutOfMemoryError(TrainingError):
    """A training step needs more memory than there is; the message names the settings that lower it."""


class Advice(str):
    """A warning as plain text.

    Attributes:
        settings: the names of settings that the advice is about; the command line adds their flags.
    """

    settings: tuple[str, ...]

    def __new__(cls, text: str, *, settings: Sequence[str] = ()) -> Self:
        """Say what is likely to go wrong, without flags, and which settings would help."""
        advice = super().__new__(cls, text)
        advice.settings = tuple(settings)
        return advice


def not_a_number(where: str = "") -> InputError:
    """The error to raise where logits, or what is computed from them, are NaN or infinite.

    Args:
        where: the file or line that was read, for the message; nothing if no file is to blame.
    """
    return InputError(
        f"{where}{': ' * bool(where)}the model's output is not a number; the model is damaged, or its values are too "
        "large for the dtype (try float32)"
    )


def check_number(value: float) -> None:
    """Raise InputError if a probability of a row of logits, or a log-probability, is NaN."""
    if math.isnan(value):
        raise not_a_number()

"""Errors that a user can cause, with exit codes."""

from __future__ import annotations

from typing import Self


class LMError(Exception):
    """An error that the user can fix; the message names the file or setting, and what is wrong."""

    exit_code = 1

    def at(self, location: str) -> Self:
        """Return the same error with a place in front of the message, such as a file and line."""
        return type(self)(f"{location}: {self}")


class UsageError(LMError):
    """A flag, preset or field has an invalid value."""

    exit_code = 2


class InputError(LMError):
    """A file or folder is missing, unreadable or invalid."""


class TrainingError(LMError):
    """Training cannot continue, for instance because the loss is NaN."""


def missing_packages(purpose: str, *packages: str) -> InputError:
    """Return the error that `purpose`, such as "export to GGUF", needs packages that are not installed."""
    return InputError(f"{purpose} needs {' and '.join(packages)}: pip install {' '.join(packages)}")


def nan_logits_error() -> InputError:
    """Return the error for NaN or infinite logits."""
    return InputError(
        "the model's output is not a number; "
        "the model is damaged, or its values are too large for the dtype (try float32)"
    )

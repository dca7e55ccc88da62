"""The errors a user can cause, each with the exit code it ends the program with."""

from __future__ import annotations


class LMError(Exception):
    """Something the user can put right: the message names the file, field or offset and says what to do."""

    exit_code = 1


class UsageError(LMError):
    """A flag, preset or field with a value that cannot be used."""

    exit_code = 2


class InputError(LMError):
    """A file or folder that is missing, unreadable, or not what was asked for."""


class TrainingError(LMError):
    """Training cannot go on, for instance because the loss is no longer a number."""


class OutOfMemoryError(TrainingError):
    """A training step needs more memory than there is; the message names the settings that lower it."""

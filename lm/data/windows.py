"""Language-modelling data: fixed-length windows of a token stream, optionally masked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lm.data.batch import Batch
from lm.data.masking import Masking
from lm.data.training_data import TrainingData
from lm.errors import InputError
from lm.pseudorandom import hash64, permute_indices

_EVALUATION_TOKENS = 16_384
"""Positions of a validation batch; the loss doesn't depend on it."""

_VALIDATION_SEED = 0
"""Validation masks are the same in every evaluation and for every seed."""


class TooLittleTextError(InputError):
    """The training split is shorter than a window."""


class TokenReader(Protocol):
    """A token sequence that can be read in parts, such as a split."""

    bytes: int

    def __len__(self) -> int: ...

    def read(self, start: int, stop: int) -> NDArray[np.int64]: ...


class Windows(TrainingData):
    """Windows of the training split, and the validation split in order.

    Each epoch visits disjoint windows once, in a new order and from a new offset. Masks depend on (seed, sample), so
    that they differ in each epoch.
    """

    def __init__(
        self,
        train: TokenReader,
        validation: TokenReader,
        *,
        context: int,
        rows: int,
        seed: int,
        masking: Masking | None = None,
    ) -> None:
        """Create batches of `rows` windows of context + 1 tokens, the last only as a target.

        Raises:
            InputError: a split is too short.
        """
        if len(train) <= context:
            raise TooLittleTextError(
                f"the training split has {len(train)} tokens, but one window takes {context + 1}: "
                "add text, or use a shorter context"
            )
        if len(validation) == 1:
            raise InputError("the validation split has 1 token, which nothing before it predicts: hold out more text")
        self._train, self._validation, self._context, self._rows = train, validation, context, rows
        self._seed, self._masking = seed, masking
        self.samples = max(1, len(train) // context - 1)
        self.tokens = self.samples * context
        self.steps_per_epoch = self.samples / rows
        self.validation_bytes = validation.bytes

    def batch(self, consumed: int, *, fraction: float = 1.0) -> Batch:
        samples = np.arange(consumed, consumed + math.ceil(fraction * self._rows), dtype=np.uint64)
        epochs, indices = np.divmod(samples, np.uint64(self.samples))
        keys = hash64(hash64(np.array([self._seed], dtype=np.uint64)) ^ epochs)
        offsets = hash64(keys) % np.uint64(len(self._train) - self.tokens)
        starts = permute_indices(indices, self.samples, keys) * np.uint64(self._context) + offsets
        windows = [self._train.read(start, start + self._context + 1) for start in starts.tolist()]
        return self._make_batch(np.stack(windows), consumed, self._seed)

    def validation(self) -> Iterator[Batch]:
        """Yield disjoint windows that predict every token of the validation split but the first exactly once."""
        length, n_targets = self._context, max(0, len(self._validation) - 1)
        whole, rows = n_targets // length, max(1, _EVALUATION_TOKENS // length)
        for first in range(0, whole, rows):
            count = min(rows, whole - first)
            tokens = self._validation.read(first * length, (first + count) * length + 1)
            windows = tokens[np.arange(count)[:, None] * length + np.arange(length + 1)]
            yield self._make_batch(windows, first, _VALIDATION_SEED)
        if n_targets % length:
            rest = self._validation.read(whole * length, n_targets + 1)[None]
            yield self._make_batch(rest, whole, _VALIDATION_SEED)

    def _make_batch(self, windows: NDArray[np.int64], first: int, seed: int) -> Batch:
        """Return (rows, length + 1) tokens of consecutive samples as a batch."""
        if self._masking is None:
            return Batch(windows[:, :-1], windows[:, 1:])
        samples = np.arange(first, first + len(windows), dtype=np.uint64)
        keys = hash64(hash64(hash64(np.array([seed], dtype=np.uint64))) ^ samples)
        return self._masking.batch(windows[:, :-1], keys=keys)

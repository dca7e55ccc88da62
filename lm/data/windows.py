"""Language-modelling data: fixed-length windows of a token stream, optionally masked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from lm.config.run_config import RunConfig
from lm.corpus.store import Split, open_split
from lm.data.batch import Batch, batch_rows
from lm.data.masking import Masking, sample_keys
from lm.data.training_data import TrainingData
from lm.errors import InputError
from lm.pseudorandom import hash64, permute_indices
from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer

_EVALUATION_TOKENS = 16_384
"""Positions of a validation batch; the loss doesn't depend on it."""


class TooLittleTextError(InputError):
    """The training split is shorter than a window."""


class TokenReader(Protocol):
    """A token sequence that can be read in parts, such as a split."""

    def __len__(self) -> int: ...

    def read(self, start: int, stop: int) -> NDArray[np.integer]: ...


class WindowOrder:
    """Order of training windows.

    Each epoch visits disjoint windows once, in a new order and from a new offset.
    """

    def __init__(self, *, tokens: int, context: int, seed: int) -> None:
        """Create the order for `tokens` > `context` tokens; windows have context + 1, the last only as a target."""
        self.context = context
        self.windows = max(1, tokens // context - 1)
        self._offsets = np.uint64(tokens - self.windows * context)
        self._key = hash64(np.array([seed], dtype=np.uint64))

    def starts(self, first: int, count: int) -> list[int]:
        """Return where the windows of samples first … first + count - 1 start."""
        samples = np.arange(first, first + count, dtype=np.uint64)
        epochs, indices = np.divmod(samples, np.uint64(self.windows))
        keys = hash64(self._key ^ epochs)
        windows = permute_indices(indices, self.windows, keys)
        starts = windows * np.uint64(self.context) + hash64(keys) % self._offsets
        return [int(start) for start in starts]

    def batch(self, tokens: TokenReader, first: int, count: int) -> NDArray[np.int64]:
        """Return the (count, context + 1) tokens of samples first … first + count - 1."""
        rows = [tokens.read(start, start + self.context + 1) for start in self.starts(first, count)]
        return np.stack(rows).astype(np.int64)


def evaluation_batches(tokens: TokenReader, *, context: int, rows: int) -> Iterator[NDArray[np.int64]]:
    """Yield disjoint windows that predict every token but the first exactly once.

    Yields:
        (up to `rows`, context + 1) tokens, and a last window with the rest.
    """
    n_targets = len(tokens) - 1
    whole = n_targets // context
    for first in range(0, whole, rows):
        count = min(rows, whole - first)
        span = tokens.read(first * context, (first + count) * context + 1).astype(np.int64)
        yield np.stack([span[row * context : (row + 1) * context + 1] for row in range(count)])
    if n_targets % context:
        yield tokens.read(whole * context, len(tokens)).astype(np.int64)[None]


class WindowData(TrainingData):
    """Training data of a language model: windows of the training split, and the validation split in order."""

    def __init__(self, train: Split, validation: Split, *, context: int, rows: int, seed: int) -> None:
        """Create batches of `rows` windows; InputError if a split is too short."""
        if len(train) <= context:
            raise TooLittleTextError(
                f"the training split has {len(train)} tokens, but one window takes {context + 1}: "
                "add text, or use a shorter context"
            )
        if len(validation) == 1:
            raise InputError("the validation split has 1 token, which nothing before it predicts: hold out more text")
        self._train, self._validation, self._context, self._rows = train, validation, context, rows
        self._order = WindowOrder(tokens=len(train), context=context, seed=seed)
        self.samples = self._order.windows
        self.tokens = self.samples * context
        self.steps_per_epoch = self.samples / rows
        self.validation_bytes = validation.bytes

    @classmethod
    def open(cls, folder: Path, config: RunConfig) -> Self:
        return cls(
            open_split(folder, "train"),
            open_split(folder, "validation"),
            context=config.model.context_length,
            rows=batch_rows(config),
            seed=config.training.seed,
        )

    def batch(self, consumed: int, *, fraction: float = 1.0) -> Batch:
        return _next_token_batch(self._order.batch(self._train, consumed, math.ceil(fraction * self._rows)))

    def validation(self) -> Iterator[Batch]:
        """Yield disjoint windows of the validation split, in order."""
        yield from map(_next_token_batch, self._validation_windows())

    def _validation_windows(self) -> Iterator[NDArray[np.int64]]:
        if len(self._validation) > 1:
            rows = max(1, _EVALUATION_TOKENS // self._context)
            yield from evaluation_batches(self._validation, context=self._context, rows=rows)

    def describe_batch_size(self) -> str:
        return f"{self._rows} x {self._context} tokens"


def _next_token_batch(windows: NDArray[np.int64]) -> Batch:
    """Return (rows, length + 1) tokens as a batch that predicts each but the first."""
    return Batch(windows[:, :-1], windows[:, 1:])


_VALIDATION_SEED = 0
"""Validation masks are the same in every evaluation and for every seed."""


class MaskedWindowData(WindowData):
    """Windows with masks that depend on (seed, sample), so that they differ in each epoch."""

    def __init__(
        self, train: Split, validation: Split, *, context: int, rows: int, seed: int, masking: Masking
    ) -> None:
        """Create batches as `WindowData`, masked by `masking`."""
        super().__init__(train, validation, context=context, rows=rows, seed=seed)
        self._seed, self._masking = seed, masking

    @classmethod
    def open(cls, folder: Path, config: RunConfig) -> Self:
        """Open the tokens in a folder for a run; UsageError if the tokenizer has no mask token."""
        training = config.training
        tokenizer = Tokenizer.load(folder / FILE_NAME)
        return cls(
            open_split(folder, "train"),
            open_split(folder, "validation"),
            context=config.model.context_length,
            rows=batch_rows(config),
            seed=training.seed,
            masking=Masking.from_tokenizer(tokenizer, fraction=training.masking_rate, whole_words=training.whole_words),
        )

    def batch(self, consumed: int, *, fraction: float = 1.0) -> Batch:
        """Return the masked windows after `consumed` ones."""
        windows = self._order.batch(self._train, consumed, math.ceil(fraction * self._rows))
        samples = np.arange(consumed, consumed + len(windows), dtype=np.uint64)
        return self._masking.batch(windows[:, :-1], keys=sample_keys(self._seed, samples))

    def validation(self) -> Iterator[Batch]:
        """Yield disjoint windows of the validation split, with fixed masks."""
        first = 0
        for windows in self._validation_windows():
            samples = np.arange(first, first + len(windows), dtype=np.uint64)
            yield self._masking.batch(windows[:, :-1], keys=sample_keys(_VALIDATION_SEED, samples))
            first += len(windows)

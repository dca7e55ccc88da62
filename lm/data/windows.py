"""Language-modelling data: fixed-length windows of a token stream, optionally masked."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from lm.config.run_config import IGNORE_INDEX
from lm.corpus.ragged import Indices, hash64
from lm.corpus.store import Split
from lm.data.batch import Batch, TrainingData, shuffle_samples, uniform
from lm.errors import InputError
from lm.tokenizer.special_tokens import require_mask_token
from lm.tokenizer.tokenizer import Tokenizer

_EVALUATION_TOKENS = 16_384
"""Positions of a validation batch; the loss doesn't depend on it."""

_VALIDATION_SEED = 0
"""Validation masks are the same in every evaluation and for every seed."""

_MASKED_FRACTION, _REPLACED_FRACTION = 0.8, 0.1
"""Fractions of the predicted tokens that are masked, and replaced by random tokens; the rest is unchanged."""


class Masking:
    """Masks tokens as a pure function of rows and keys.

    Each token is selected with the same probability, and at least one per row. Special tokens are neither selected nor
    used as replacements.

    Source: Devlin et al. 2019, section 3.1; new masks in each epoch, Liu et al. 2019 (RoBERTa).
    """

    def __init__(self, tokenizer: Tokenizer, *, fraction: float) -> None:
        """Mask a fraction of the tokens of a tokenizer; UsageError if it has no mask token."""
        self._fraction, self._mask_id = fraction, require_mask_token(tokenizer)
        self._is_ordinary = np.ones(tokenizer.vocab_size, dtype=bool)
        self._is_ordinary[list(tokenizer.special_tokens.values())] = False
        self._ordinary_ids = np.flatnonzero(self._is_ordinary)

    def batch(self, tokens: NDArray[np.int64], *, keys: Indices) -> Batch:
        """Return (rows, length) IDs as a batch with masked inputs and their targets; `keys` has one key per row."""
        length = tokens.shape[1]
        draws, replacement_draws, token_draws = np.split(uniform(keys, 3 * length), 3, axis=1)
        draws = draws + ~self._is_ordinary[tokens]  # special tokens are selected only if a row has no others
        chosen = draws < np.maximum(self._fraction, np.nextafter(draws.min(axis=1, keepdims=True), 3.0))
        others = self._ordinary_ids[(token_draws * len(self._ordinary_ids)).astype(np.int64)]
        is_replaced = replacement_draws < _MASKED_FRACTION + _REPLACED_FRACTION
        replaced = np.where(replacement_draws < _MASKED_FRACTION, self._mask_id, np.where(is_replaced, others, tokens))
        return Batch(
            inputs=np.where(chosen, replaced, tokens),
            targets=np.where(chosen, tokens, IGNORE_INDEX),
            input_lengths=np.full(len(tokens), length, dtype=np.int64),
        )


class Windows(TrainingData):
    """Windows of the training split, and the validation split in order.

    Each epoch visits disjoint windows once, in a new order and from a new offset. Masks depend on (seed, sample), so
    that they differ in each epoch.
    """

    def __init__(
        self,
        train: Split,
        validation: Split,
        *,
        context: int,
        rows: int,
        seed: int,
        masking: Masking | None = None,
    ) -> None:
        """Create batches of `rows` windows of context + 1 tokens, the last only as a target.

        Raises:
            InputError: the training split is too short.
        """
        if len(train) <= context:
            raise InputError(
                f"the training split has {len(train)} tokens, but one window takes {context + 1}: "
                "add text, or use a shorter context"
            )
        self._train, self._validation, self._context, self._rows = train, validation, context, rows
        self._seed, self._masking = seed, masking
        self.samples = max(1, len(train) // context - 1)
        self.tokens = self.samples * context
        self.steps_per_epoch = self.samples / rows
        self.validation_bytes = validation.bytes if len(validation) > 1 else 0

    def batch(self, consumed: int) -> Batch:
        samples = np.arange(consumed, consumed + self._rows, dtype=np.uint64)
        order, keys = shuffle_samples(samples, self.samples, self._seed)
        starts = order * self._context + (hash64(keys) % np.uint64(len(self._train) - self.tokens)).astype(np.int64)
        windows = [self._train.read(start, start + self._context + 1) for start in starts.tolist()]
        return self._make_batch(np.stack(windows), consumed, self._seed)

    def validation(self) -> Iterator[Batch]:
        """Yield disjoint windows that predict every token of the validation split but the first exactly once."""
        length, n_targets = self._context, max(0, len(self._validation) - 1)
        step = max(1, _EVALUATION_TOKENS // length) * length
        for start in range(0, n_targets, step):
            tokens = self._validation.read(start, min(start + step, n_targets) + 1)
            whole, rest = divmod(len(tokens) - 1, length)
            if whole:
                windows = tokens[np.arange(whole)[:, None] * length + np.arange(length + 1)]
                yield self._make_batch(windows, start // length, _VALIDATION_SEED)
            if rest:
                yield self._make_batch(tokens[None, whole * length :], start // length + whole, _VALIDATION_SEED)

    def _make_batch(self, windows: NDArray[np.int64], first: int, seed: int) -> Batch:
        """Return (rows, length + 1) tokens of consecutive samples as a batch."""
        if self._masking is None:
            return Batch(windows[:, :-1], windows[:, 1:])
        samples = np.arange(first, first + len(windows), dtype=np.uint64)
        keys = hash64(hash64(hash64(np.array([seed], dtype=np.uint64))) ^ samples)
        return self._masking.batch(windows[:, :-1], keys=keys)

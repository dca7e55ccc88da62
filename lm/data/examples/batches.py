"""Examples as batches: the model reads prompt and completion, and only the completion is predicted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from lm.config.data import IGNORED
from lm.data.batch import Batch, padded
from lm.data.examples.store import Examples
from lm.data.permutation import mix, permute
from lm.errors import InputError

_EVALUATION_TOKENS = 16_384


class ExampleData:
    """Training data of prompts and completions: each example is a row; every epoch has an order of its own.

    A row is longer than the context by one token at most, its last being only a target. Where an example does not fit,
    its prompt loses its beginning, but not the token that starts the text.

    Attributes:
        shortened: how many examples of the training split lost the beginning of their prompt.
    """

    def __init__(self, train: Examples, validation: Examples, *, context: int, rows: int, seed: int) -> None:
        """Batches of `rows` examples; InputError if a completion does not fit into `context` tokens."""
        for examples in (train, validation):
            _refuse_long_completions(examples, context)
        self._train, self._validation, self._context, self._rows = train, validation, context, rows
        self._key = mix(np.array([seed], dtype=np.uint64))
        self.samples = len(train)
        self.tokens = int(train.index["learned"].sum())
        self.steps_per_epoch = self.samples / rows
        self.validation_bytes = int(validation.index["bytes"].sum())
        self.shortened = int((train.lengths() > context + 1).sum())

    def batch(self, consumed: int, *, share: float = 1.0) -> Batch:
        """The examples that follow `consumed` ones, `share` of a batch; it may go over the end of an epoch."""
        samples = np.arange(consumed, consumed + math.ceil(share * self._rows), dtype=np.uint64)
        epochs, places = np.divmod(samples, np.uint64(self.samples))
        numbers = permute(places, self.samples, mix(self._key ^ epochs))
        return self._rows_of(self._train, numbers.tolist())

    def validation(self) -> Iterator[Batch]:
        """The validation split, examples of similar length together."""
        rows = max(1, _EVALUATION_TOKENS // self._context)
        order = np.argsort(self._validation.lengths(), kind="stable").tolist()
        for first in range(0, len(order), rows):
            yield self._rows_of(self._validation, order[first : first + rows])

    def plan(self, steps: int) -> None:
        """Nothing of examples depends on how many steps there are."""

    def _rows_of(self, examples: Examples, numbers: Sequence[int]) -> Batch:
        inputs, targets = [], []
        for number in numbers:
            ids, learned = examples.read(number)
            if len(ids) > self._context + 1:
                ids = np.concatenate([ids[:1], ids[-self._context :]])
            inputs.append(ids[:-1])
            targets.append(np.where(np.arange(1, len(ids)) < len(ids) - learned, IGNORED, ids[1:]))
        return Batch(padded(inputs, value=0), padded(targets, value=IGNORED))


def _refuse_long_completions(examples: Examples, context: int) -> None:
    """InputError if a completion and its end do not fit behind the token that starts a text."""
    too_long = np.flatnonzero(examples.index["learned"] > context)
    if len(too_long):
        record = examples.index[too_long[0]]
        others = f", and {len(too_long) - 1:,} more are too long" if len(too_long) > 1 else ""
        raise InputError(
            f"{examples.files[record['file']]}: line {record['line']}: the completion is {record['learned'] - 1} "
            f"tokens, and with its end does not fit into the context of {context}{others}; leave it out, or use a "
            "longer --context"
        )

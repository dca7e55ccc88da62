"""Supervised examples as batches: the model reads prompt and completion, and predicts the completion.

Examples longer than the context are truncated: prompts from the left, texts with labels from the right.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from lm.config.run_config import RunConfig
from lm.corpus.tokenized_examples import StoredExamples, open_examples
from lm.data.batch import Batch, batch_rows
from lm.data.bucketing import length_batches
from lm.data.training_data import LabelledPrompt, TrainingData
from lm.errors import Advice, InputError
from lm.pseudorandom import hash64, permute_indices

_EVALUATION_TOKENS = 16_384
"""Positions of a validation batch, including padding; the loss doesn't depend on it."""


class StoredRows(Protocol):
    """The stored rows of a split: examples or conversations."""

    @property
    def records(self) -> NDArray[Any]:
        """(rows,) records, as `lm.corpus.tokenized_examples.EXAMPLE_DTYPE`."""
        ...

    def __len__(self) -> int: ...

    def lengths(self) -> NDArray[np.int64]: ...


Rows = TypeVar("Rows", bound=StoredRows)


class RowData(TrainingData, Generic[Rows]):
    """Training data with an example or a conversation per row, in a new order in each epoch.

    Attributes:
        n_truncated: number of training rows that are longer than the context.
    """

    def __init__(self, train: Rows, validation: Rows, *, context: int, rows: int, seed: int) -> None:
        self._train, self._validation, self._context, self._rows = train, validation, context, rows
        self._key = hash64(np.array([seed], dtype=np.uint64))
        self.samples = len(train)
        self.steps_per_epoch = self.samples / rows
        self.validation_bytes = int(validation.records["bytes"].sum())
        self.n_truncated = int((train.lengths() > context + 1).sum())

    def batch(self, consumed: int, *, fraction: float = 1.0) -> Batch:
        """Return the rows after `consumed` ones; a batch may cross the end of an epoch."""
        numbers = np.arange(consumed, consumed + math.ceil(fraction * self._rows), dtype=np.uint64)
        epochs, indices = np.divmod(numbers, np.uint64(self.samples))
        return self._make_batch(
            self._train, permute_indices(indices, self.samples, hash64(self._key ^ epochs)).tolist()
        )

    def validation(self) -> Iterator[Batch]:
        """Yield the validation split, bucketed by length."""
        rows = max(1, _EVALUATION_TOKENS // self._context)
        for numbers in length_batches(self._validation.lengths(), rows=rows):
            yield self._make_batch(self._validation, numbers.tolist())

    @abstractmethod
    def _make_batch(self, split: Rows, numbers: Sequence[int]) -> Batch:
        """Return the rows with these numbers."""


class ExampleData(RowData[StoredExamples]):
    """Training data of prompts and completions; prompts longer than the context are truncated."""

    def __init__(
        self, train: StoredExamples, validation: StoredExamples, *, context: int, rows: int, seed: int
    ) -> None:
        """Create batches of `rows` examples; InputError if a completion does not fit into `context` tokens."""
        super().__init__(train, validation, context=context, rows=rows, seed=seed)
        for examples in (train, validation):
            self._check(examples)
        self.tokens = int(train.records["learned"].sum())

    @classmethod
    def open(cls, folder: Path, config: RunConfig) -> Self:
        return cls(
            open_examples(folder, "train"),
            open_examples(folder, "validation"),
            context=config.model.context_length,
            rows=batch_rows(config),
            seed=config.training.seed,
        )

    def labelled_prompts(self, labels: Sequence[str], limit: int) -> list[LabelledPrompt]:
        """Return validation examples with their label indices; none if there are too many labels."""
        split, numbers = self._validation, {label: number for number, label in enumerate(labels)}
        if split.labels is None:
            return []
        prompts, count = [], min(limit, len(split))
        for index in (number * len(split) // count for number in range(count)):
            ids, learned = split.read(index)
            prompts.append(LabelledPrompt(ids[1:-learned], numbers[split.labels[index]]))
        return prompts

    def describe_batch_size(self) -> str:
        return f"{self._rows} examples"

    def warnings(self) -> list[Advice]:
        """Warn about examples longer than the context."""
        if not self.n_truncated:
            return []
        problem = f"{self.n_truncated:,} of {self.samples:,} examples are longer than the context"
        return [Advice(f"{problem}: the beginning of the prompt is left out", settings=["context_length"])]

    def _check(self, examples: StoredExamples) -> None:
        _refuse_long_completions(examples, self._context)

    def _make_batch(self, split: StoredExamples, numbers: Sequence[int]) -> Batch:
        rows, learned = zip(*map(split.read, numbers), strict=True)
        return Batch.from_rows([truncate_prompt(ids, context=self._context) for ids in rows], learned)


def _refuse_long_completions(examples: StoredExamples, context: int) -> None:
    """Raise InputError for the first completion that does not fit, with the number of others."""
    too_long = np.flatnonzero(examples.records["learned"] > context)
    if len(too_long):
        record = examples.records[too_long[0]]
        others = f", and {len(too_long) - 1:,} more are too long" if len(too_long) > 1 else ""
        problem = completion_length_error(record["learned"], context=context)
        raise InputError(
            f"{examples.files[record['file']]}: line {record['line']}: {problem}{others}; leave it out, or use a "
            "longer context",
            settings=["context_length"],
        )


def truncate_prompt(ids: NDArray[Any], *, context: int) -> NDArray[Any]:
    """Truncate an example to the context by removing the beginning of its prompt.

    Args:
        ids: (tokens,) start, prompt, completion, end; the start is kept.
        context: tokens that the model reads; a row may have one more, which is only predicted.
    """
    return ids if len(ids) <= context + 1 else np.concatenate([ids[:1], ids[-context:]])


def truncate_text(ids: NDArray[Any], *, context: int) -> NDArray[Any]:
    """Truncate a text to `context` tokens; its end token is kept."""
    return ids if len(ids) <= context else np.concatenate([ids[: context - 1], ids[-1:]])


def completion_length_error(learned: int, *, context: int) -> str | None:
    """Return an error message for a completion that does not fit into the context, else None.

    Args:
        learned: tokens of the completion, including the end token.
    """
    if learned <= context:
        return None
    return f"the completion is {learned - 1} tokens, and with its end does not fit into the context of {context}"

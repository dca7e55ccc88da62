"""Examples and conversations as batches: the model reads all of a row, and predicts what is learned of it.

Rows longer than the context are truncated: prompts from the left, texts with labels and conversations from the right.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from lm.config.run_config import RunConfig
from lm.corpus.store import SPLITS, Split, open_split
from lm.data.batch import Batch, batch_rows
from lm.data.bucketing import length_batches
from lm.data.labels import label_indices
from lm.data.training_data import LabelledPrompt, TrainingData
from lm.errors import InputError
from lm.pseudorandom import hash64, permute_indices

_EVALUATION_TOKENS = 16_384
"""Positions of a validation batch, including padding; the loss doesn't depend on it."""


class RowData(TrainingData):
    """Training data with an example or a conversation per row, in a new order in each epoch."""

    noun: ClassVar[str]
    truncated: ClassVar[str]

    def __init__(self, train: Split, validation: Split, *, context: int, rows: int, seed: int) -> None:
        self._train, self._validation, self._context, self._rows = train, validation, context, rows
        self._key = hash64(np.array([seed], dtype=np.uint64))
        self._used = {split.name: self._choose_rows(split) for split in (train, validation)}
        self.samples = len(self._used["train"])
        self.steps_per_epoch = self.samples / rows
        self.n_truncated = int((self._lengths(train) > context + 1).sum())
        self.tokens = self._count(train)[0]
        self.validation_bytes = self._count(validation)[1]

    @classmethod
    def open(cls, folder: Path, config: RunConfig) -> Self:
        train, validation = (open_split(folder, split) for split in SPLITS)
        context = config.model.context_length
        return cls(train, validation, context=context, rows=batch_rows(config), seed=config.training.seed)

    def batch(self, consumed: int, *, fraction: float = 1.0) -> Batch:
        """Return the rows after `consumed` ones; a batch may cross the end of an epoch."""
        numbers = np.arange(consumed, consumed + math.ceil(fraction * self._rows), dtype=np.uint64)
        epochs, indices = np.divmod(numbers, np.uint64(self.samples))
        order = permute_indices(indices, self.samples, hash64(self._key ^ epochs)).astype(np.int64)
        return self._make_batch(self._train, self._used["train"][order])

    def validation(self) -> Iterator[Batch]:
        """Yield the validation split, bucketed by length."""
        rows, used = max(1, _EVALUATION_TOKENS // self._context), self._used["validation"]
        for numbers in length_batches(self._validation.lengths[used], rows=rows):
            yield self._make_batch(self._validation, used[numbers])

    def describe_batch_size(self) -> str:
        return f"{self._rows} {self.noun}"

    def warnings(self) -> list[str]:
        """Warn about truncated rows."""
        if not self.n_truncated:
            return []
        return [f"{self.n_truncated:,} of {self.samples:,} {self.noun} are longer than the context: {self.truncated}"]

    def _choose_rows(self, split: Split) -> NDArray[np.int64]:
        """Return the rows that are used; InputError if one cannot be."""
        return np.arange(split.documents)

    def _lengths(self, split: Split) -> NDArray[np.int64]:
        return split.lengths[self._used[split.name]]

    def _count(self, split: Split) -> tuple[int, int]:
        """Return the learned tokens of a split, and their UTF-8 bytes."""
        return tuple(int(_values(split, name).sum()) for name in ("learned", "bytes"))  # type: ignore[return-value]

    @abstractmethod
    def _make_batch(self, split: Split, numbers: NDArray[np.int64]) -> Batch:
        """Return the rows with these numbers."""


def _values(split: Split, column: str) -> NDArray[np.int64]:
    return split.column(column).astype(np.int64) if split.documents else np.empty(0, dtype=np.int64)


class ExampleData(RowData):
    """Training data of prompts and completions; prompts longer than the context are truncated."""

    noun, truncated = "examples", "the beginning of the prompt is left out"

    def _choose_rows(self, split: Split) -> NDArray[np.int64]:
        too_long = np.flatnonzero(_values(split, "learned") > self._context)
        if len(too_long):
            first = int(too_long[0])
            file, line, learned = (int(split.column(name)[first]) for name in ("file", "line", "learned"))
            name = (*split.manifest.sources, *split.manifest.validation_sources)[file].path
            others = f", and {len(too_long) - 1:,} more are too long" * (len(too_long) > 1)
            problem = completion_length_error(learned, context=self._context)
            raise InputError(f"{name}: line {line}: {problem}{others}")
        return super()._choose_rows(split)

    def labelled_prompts(self, labels: Sequence[str], limit: int) -> list[LabelledPrompt]:
        """Return validation examples with their label indices; none if there are too many labels."""
        split, numbers = self._validation, {label: number for number, label in enumerate(labels)}
        if split.labels is None:
            return []
        count = min(limit, split.documents)
        chosen = np.arange(count) * split.documents // max(1, count)
        rows, learned = split.take(chosen), _values(split, "learned")[chosen].tolist()
        return [
            LabelledPrompt(rows.row(row)[1 : -learned[row]], numbers[split.labels[number]])
            for row, number in enumerate(chosen.tolist())
        ]

    def _make_batch(self, split: Split, numbers: NDArray[np.int64]) -> Batch:
        rows = split.take(numbers)
        texts = [truncate_prompt(rows.row(row), context=self._context) for row in range(len(rows))]
        return Batch.from_rows(texts, split.column("learned")[numbers].tolist())


class LabelledData(RowData):
    """Training data of a masked classifier: one text per row, with its label as the only target."""

    noun, truncated = "texts", "their ends are left out"

    def __init__(
        self, train: Split, validation: Split, *, context: int, rows: int, seed: int, labels: Sequence[str]
    ) -> None:
        """Create batches of `rows` texts; InputError if an example has none of these labels."""
        super().__init__(train, validation, context=context, rows=rows, seed=seed)
        self._numbers = {split.name: label_indices(split, labels) for split in (train, validation)}
        lengths = train.lengths - _values(train, "learned") + 1
        self.tokens = int(np.minimum(lengths, context).sum())
        self.n_truncated = int((lengths > context).sum())

    @classmethod
    def open(cls, folder: Path, config: RunConfig) -> Self:
        train, validation = (open_split(folder, split) for split in SPLITS)
        context, seed, labels = config.model.context_length, config.training.seed, config.model.labels
        return cls(train, validation, context=context, rows=batch_rows(config), seed=seed, labels=labels)

    def labelled_prompts(self, labels: Sequence[str], limit: int) -> list[LabelledPrompt]:
        return ExampleData.labelled_prompts(self, labels, limit)  # type: ignore[arg-type]

    def _make_batch(self, split: Split, numbers: NDArray[np.int64]) -> Batch:
        rows, learned = split.take(numbers), split.column("learned")[numbers].tolist()
        texts = [
            truncate_text(np.append(ids[:-count], ids[-1]), context=self._context)
            for ids, count in ((rows.row(row), learned[row]) for row in range(len(rows)))
        ]
        return Batch.from_texts(texts, self._numbers[split.name][numbers].tolist())


class ConversationData(RowData):
    """Training data of conversations; what is beyond the context is left out."""

    holds_conversations: ClassVar[bool] = True
    noun, truncated = "conversations", "their last turns are left out"

    def _choose_rows(self, split: Split) -> NDArray[np.int64]:
        """Return the conversations with a reply within the context."""
        used = np.flatnonzero(self._count_within(split)[:, 0] > 0)
        if split is self._train and not len(used):
            raise InputError(f"no conversation has a reply within the context of {self._context} tokens")
        return used

    def _count(self, split: Split) -> tuple[int, int]:
        learned, text_bytes = self._count_within(split).sum(axis=0).tolist()
        return learned, text_bytes

    def _count_within(self, split: Split) -> NDArray[np.int64]:
        """Return (conversations, 2) tokens of the assistant in the first `context` + 1 of each, and their bytes."""
        counts = np.stack([_values(split, name) for name in ("learned", "bytes")], axis=1)
        for row in np.flatnonzero(split.lengths > self._context + 1).tolist():
            inside = split.take(np.array([row]), "replies").values[: self._context + 1]
            counts[row] = (inside >= 0).sum(), inside.clip(0).sum()
        return counts

    def warnings(self) -> list[str]:
        """Warn about conversations longer than the context."""
        total = self._train.documents + self._validation.documents
        left_out = total - sum(map(len, self._used.values()))
        problem = f"{left_out:,} of {total:,} conversations have no reply within the context: they are left out"
        return [*([problem] if left_out else []), *super().warnings()]

    def _make_batch(self, split: Split, numbers: NDArray[np.int64]) -> Batch:
        size, rows, replies = self._context + 1, split.take(numbers), split.take(numbers, "replies")
        return Batch.from_masked_rows(
            [rows.row(row)[:size] for row in range(len(rows))],
            [replies.row(row)[:size] >= 0 for row in range(len(rows))],
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
    """Return an error message for a completion, its end token included, that does not fit, else None."""
    if learned <= context:
        return None
    return f"the completion is {learned - 1} tokens, and with its end does not fit into the context of {context}"

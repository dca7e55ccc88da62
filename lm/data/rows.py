"""Examples, labelled texts and conversations as batches: one per row, in a new order in each epoch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm.corpus.ragged import RaggedArray
from lm.corpus.store import Split
from lm.data.batch import PADDING, Batch
from lm.data.bucketing import length_batches
from lm.data.labels import label_indices
from lm.data.training_data import LabelledPrompt, TrainingData
from lm.errors import InputError
from lm.pseudorandom import hash64, permute_indices

_EVALUATION_TOKENS = 16_384
"""Positions of a validation batch, including padding; the loss doesn't depend on it."""


class Rows(TrainingData):
    """Rows truncated to the context: prompts from the left, texts with labels and conversations from the right.

    Completions of examples, replies of conversations and labels of texts are learned. A row of which nothing is learned
    within the context is left out.
    """

    def __init__(
        self, train: Split, validation: Split, *, context: int, rows: int, seed: int, labels: Sequence[str] = ()
    ) -> None:
        """Create batches of `rows` rows.

        Args:
            labels: of a classifier, for which the label is the only target of a text.

        Raises:
            InputError: nothing is learned within the context, or an example has none of the labels.
        """
        self._train, self._validation, self._context, self._rows = train, validation, context, rows
        self.holds_conversations = train.manifest.kind == "conversations"
        self._key, splits = hash64(np.array([seed], dtype=np.uint64)), (train, validation)
        self._labels = {split.name: label_indices(split, labels) for split in splits} if labels else {}
        learned, sizes = zip(*map(self._count, splits), strict=True)
        self._used = {split.name: np.flatnonzero(count) for split, count in zip(splits, learned, strict=True)}
        self.samples = len(self._used["train"])
        if not self.samples:
            raise InputError(f"no {self._what} fits into the context of {context} tokens")
        self.steps_per_epoch = self.samples / rows
        self.tokens, self.validation_bytes = int(learned[0].sum()), int(sizes[1].sum())
        lengths, room = train.lengths[self._used["train"]], context + 1
        if labels:
            lengths, room = lengths - learned[0] + 1, context
            self.tokens = int(np.minimum(lengths, room).sum())
        self.n_truncated = int((lengths > room).sum())

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

    @property
    def _noun(self) -> str:
        return "conversations" if self.holds_conversations else "texts" if self._labels else "examples"

    @property
    def _what(self) -> str:
        return "reply" if self.holds_conversations else "completion"

    def warnings(self) -> list[str]:
        """Warn about truncated rows, and those of which nothing is learned within the context."""
        documents = self._train.documents + self._validation.documents
        left_out, end = documents - sum(map(len, self._used.values())), "ends"
        if self._noun == "examples":
            end = "beginnings of prompts"
        counted = (
            (left_out, documents, f"are left out: no {self._what} fits into the context"),
            (self.n_truncated, self.samples, f"are longer than the context: their {end} are left out"),
        )
        return [f"{count:,} of {total:,} {self._noun} {problem}" for count, total, problem in counted if count]

    def labelled_prompts(self, labels: Sequence[str], limit: int) -> list[LabelledPrompt]:
        """Return validation examples with their label indices; none if there are too many labels."""
        split, numbers = self._validation, {label: number for number, label in enumerate(labels)}
        if split.labels is None:
            return []
        count = min(limit, split.documents)
        chosen = np.arange(count) * split.documents // max(1, count)
        rows, learned = split.take(chosen), split.column("learned")[chosen].tolist()
        return [
            LabelledPrompt(rows.row(row)[1 : -learned[row]], numbers[split.labels[number]])
            for row, number in enumerate(chosen.tolist())
        ]

    def _count(self, split: Split) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (rows,) learned tokens of each row within the context, and their UTF-8 bytes."""
        learned, sizes = (np.array(split.column(name), dtype=np.int64) for name in ("learned", "bytes"))
        if self.holds_conversations:
            for row in np.flatnonzero(split.lengths > self._context + 1).tolist():
                inside = split.take(np.array([row]), "replies").values[: self._context + 1]
                learned[row], sizes[row] = (inside >= 0).sum(), inside.clip(0).sum()
        elif not self._labels:
            learned[learned > self._context] = 0
        return learned, sizes * (learned > 0)

    def _make_batch(self, split: Split, numbers: NDArray[np.int64]) -> Batch:
        taken, context = split.take(numbers), self._context
        rows, learned = [taken.row(row) for row in range(len(taken))], split.column("learned")[numbers].tolist()
        if self._labels:
            texts = [np.append(ids[:-count], ids[-1]) for ids, count in zip(rows, learned, strict=True)]
            inputs = RaggedArray.from_rows([truncate_text(ids, context=context) for ids in texts])
            targets = self._labels[split.name][numbers][:, None]
            return Batch(inputs.to_padded(PADDING), targets, input_lengths=inputs.lengths())
        if self.holds_conversations:
            replies = split.take(numbers, "replies")
            masks = [replies.row(row)[: context + 1] >= 0 for row in range(len(rows))]
            return Batch.from_rows([ids[: context + 1] for ids in rows], masks)
        return Batch.from_rows([truncate_prompt(ids, context=context) for ids in rows], learned)


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

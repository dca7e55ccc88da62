"""Examples as batches: the model reads prompt and completion, and only the completion is predicted.

Examples that are longer than the context are truncated: prompts from the left, texts with labels from the right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from lm.config.run import RunConfig
from lm.corpus.examples import StoredExamples, open_examples
from lm.data.batch import Batch, batch_rows
from lm.data.bucketing import length_batches
from lm.data.training_data import LabelledPrompt, TrainingData
from lm.errors import Advice, InputError
from lm.pseudorandom import mix, permute

_EVALUATION_TOKENS = 16_384
"""Of a batch of validation, padding included: as for running text. The loss does not depend on it."""


class ExampleData(TrainingData):
    """Training data of prompts and completions: each example is a row; every epoch has an order of its own.

    Attributes:
        shortened: how many examples of the training split lost the beginning of their prompt (see `shortened`).
    """

    def __init__(
        self, train: StoredExamples, validation: StoredExamples, *, context: int, rows: int, seed: int
    ) -> None:
        """Batches of `rows` examples; InputError if a completion does not fit into `context` tokens."""
        self._train, self._validation, self._context, self._rows = train, validation, context, rows
        for examples in (train, validation):
            self._check(examples)
        self._key = mix(np.array([seed], dtype=np.uint64))
        self.samples = len(train)
        self.tokens = int(train.index["learned"].sum())
        self.steps_per_epoch = self.samples / rows
        self.validation_bytes = int(validation.index["bytes"].sum())
        self.shortened = int((train.lengths() > context + 1).sum())

    @classmethod
    def open(cls, folder: Path, config: RunConfig) -> Self:
        """The examples in a folder, cut to the context of a run."""
        return cls(
            open_examples(folder, "train"),
            open_examples(folder, "validation"),
            context=config.model.context_length,
            rows=batch_rows(config),
            seed=config.training.seed,
        )

    def batch(self, consumed: int, *, fraction: float = 1.0) -> Batch:
        """The examples that follow `consumed` ones, `fraction` of a batch; it may go over the end of an epoch."""
        samples = np.arange(consumed, consumed + math.ceil(fraction * self._rows), dtype=np.uint64)
        epochs, places = np.divmod(samples, np.uint64(self.samples))
        numbers = permute(places, self.samples, mix(self._key ^ epochs))
        return self._of(self._train, numbers.tolist())

    def validation(self) -> Iterator[Batch]:
        """The validation split, examples of similar length together."""
        rows = max(1, _EVALUATION_TOKENS // self._context)
        for numbers in length_batches(self._validation.lengths(), rows=rows):
            yield self._of(self._validation, numbers.tolist())

    def labelled_prompts(self, labels: Sequence[str], limit: int) -> list[LabelledPrompt]:
        """Validation examples with the labels that their completions are; none where the text of labels isn't kept."""
        split, numbers = self._validation, {label: number for number, label in enumerate(labels)}
        if split.labels is None:
            return []
        found, count = [], min(limit, len(split))
        for place in (number * len(split) // count for number in range(count)):
            ids, learned = split.read(place)
            found.append(LabelledPrompt(ids[1:-learned], numbers[split.labels[place]]))
        return found

    def batch_size(self) -> str:
        """How much a batch is: so many examples."""
        return f"{self._rows} examples"

    def epoch_size(self, parameters: int) -> tuple[float, str]:  # noqa: ARG002
        """How much there is to learn; prompts are only read."""
        return self.tokens, "tokens of completions in each"

    def warnings(self, *, parameters: int, epochs: float, patience: int | None) -> list[Advice]:  # noqa: ARG002
        """Whether examples are longer than the context."""
        if not self.shortened:
            return []
        too_long = f"{self.shortened:,} of {self.samples:,} examples are longer than the context"
        return [Advice(f"{too_long}: the beginning of the prompt is left out", settings=["context_length"])]

    def _check(self, examples: StoredExamples) -> None:
        """InputError if a completion does not fit into the context."""
        _refuse_long_completions(examples, self._context)

    def _of(self, examples: StoredExamples, numbers: Sequence[int]) -> Batch:
        rows, learned = zip(*map(examples.read, numbers), strict=True)
        return Batch.of_rows([shortened(ids, context=self._context) for ids in rows], learned)


def _refuse_long_completions(examples: StoredExamples, context: int) -> None:
    """InputError that names the first completion that does not fit, and says how many others do not."""
    found = np.flatnonzero(examples.index["learned"] > context)
    if len(found):
        record = examples.index[found[0]]
        others = f", and {len(found) - 1:,} more are too long" if len(found) > 1 else ""
        raise InputError(
            f"{examples.files[record['file']]}: line {record['line']}: "
            f"{too_long(record['learned'], context=context)}{others}; leave it out, or use a longer context",
            settings=["context_length"],
        )


def shortened(ids: NDArray[Any], *, context: int) -> NDArray[Any]:
    """An example that fits into the context: a longer one loses the beginning of its prompt.

    Args:
        ids: (tokens,) start, prompt, completion, end. The start is kept.
        context: tokens that the model reads. A row may have one more, its last being only predicted.
    """
    return ids if len(ids) <= context + 1 else np.concatenate([ids[:1], ids[-context:]])


def beginning(ids: NDArray[Any], *, context: int) -> NDArray[Any]:
    """A text with the tokens that start and end it, cut to `context` tokens before its end token, which is kept."""
    return ids if len(ids) <= context else np.concatenate([ids[: context - 1], ids[-1:]])


def too_long(learned: int, *, context: int) -> str | None:
    """What to say of a completion that does not fit behind the token that starts a text; None if it fits.

    Args:
        learned: tokens of the completion, its end included.
        context: tokens that the model reads.
    """
    if learned <= context:
        return None
    return f"the completion is {learned - 1} tokens, and with its end does not fit into the context of {context}"

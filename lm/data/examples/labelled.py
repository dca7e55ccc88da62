"""Batches of texts with labels, for classifiers: the same prepared examples, of which each completion is a label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from lm.config.run import RunConfig
from lm.data.batch import Batch, batch_rows
from lm.data.examples.batches import ExampleData
from lm.data.examples.shortening import beginning
from lm.data.examples.store import Examples, open_examples
from lm.data.manifest import SPLITS
from lm.errors import UsageError
from lm.text.examples import DELIMITER
from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer


class LabelledData(ExampleData):
    """Training data of a classifier: each text is a row, read whole or from its beginning, and has one target."""

    def __init__(
        self, train: Examples, validation: Examples, *, context: int, rows: int, seed: int, reader: _LabelReader
    ) -> None:
        """Batches of `rows` texts, the first `context` tokens of each; `reader` knows their labels."""
        super().__init__(train, validation, context=context, rows=rows, seed=seed)
        self._reader = reader
        lengths = train.lengths() - train.index["learned"] + 1
        self.tokens = int(np.minimum(lengths, context).sum())
        self.shortened = int((lengths > context).sum())

    @classmethod
    def open(cls, folder: Path, config: RunConfig) -> Self:
        """The texts in a folder, cut to the context of a run, with the labels of its model."""
        train, validation = (open_examples(folder, split) for split in SPLITS)
        reader = _LabelReader(Tokenizer.load(folder / FILE_NAME), config.model.labels)
        return cls(
            train,
            validation,
            context=config.model.context_length,
            rows=batch_rows(config),
            seed=config.training.seed,
            reader=reader,
        )

    def _check(self, examples: Examples) -> None:
        """Labels are not read, so none is too long."""

    def epoch_size(self, parameters: int) -> tuple[float, str]:  # noqa: ARG002
        """How much there is to learn from."""
        return self.tokens, "tokens of text in each"

    def warnings(self, *, parameters: int, epochs: float, patience: int | None) -> list[str]:  # noqa: ARG002
        """Whether texts are longer than the context, or labels as many as examples."""
        found = []
        if self.shortened:
            too_long = f"{self.shortened:,} of {self.samples:,} texts are longer than the context"
            found.append(f"{too_long}: their ends are left out (--context)")
        if 2 * len(self._reader.labels) > self.samples:
            many = f"{len(self._reader.labels):,} labels for {self.samples:,} texts"
            found.append(f"{many}: a classifier chooses among few; completions are for a model that writes them")
        return found

    def _of(self, examples: Examples, numbers: Sequence[int]) -> Batch:
        rows, learned = zip(*map(examples.read, numbers), strict=True)
        texts = [
            beginning(np.concatenate([ids[:-count], ids[-1:]]), context=self._context)
            for ids, count in zip(rows, learned, strict=True)
        ]
        return Batch.of_texts(texts, [self._reader.number(*row) for row in zip(rows, learned, strict=True)])


class _LabelReader:
    """Knows the labels of examples by their tokens; each is decoded once."""

    def __init__(self, tokenizer: Tokenizer, labels: Sequence[str] = ()) -> None:
        self.labels = labels
        self._tokenizer, self._decoded = tokenizer, dict[bytes, str]()
        self._numbers = {label: number for number, label in enumerate(labels)}

    def label(self, ids: NDArray[np.int64], learned: int) -> str:
        """The label of an example, of which the last `learned` tokens are the label and the end."""
        completion = ids[-learned:-1]
        key = completion.tobytes()
        if key not in self._decoded:
            self._decoded[key] = self._tokenizer.decode(completion).removeprefix(DELIMITER)
        return self._decoded[key]

    def number(self, ids: NDArray[np.int64], learned: int) -> int:
        """Which of the labels it is."""
        return self._numbers[self.label(ids, learned)]


def labels_of(folder: Path) -> tuple[str, ...]:
    """The labels of all examples in a folder, those held out included, in alphabetical order.

    Raises:
        InputError: the folder holds no prepared examples.
        UsageError: all have the same label, so there is nothing to learn.
    """
    reader = _LabelReader(Tokenizer.load(folder / FILE_NAME))
    found = sorted({label for split in SPLITS for label in _labels(open_examples(folder, split), reader)})
    if len(found) < 2:
        raise UsageError(f"all examples have the same label, {found[0]!r}: a classifier needs two or more")
    return tuple(found)


def _labels(examples: Examples, reader: _LabelReader) -> Iterator[str]:
    return (reader.label(*examples.read(number)) for number in range(len(examples)))

"""Labels of prepared examples: counting, detection of labels among completions, and batches for classifiers.

Completions that a decoder learns count as labels if there are 2 to 200 different ones of at most 100 bytes, with five
examples each on average (`find_label_completions`). They are recorded in the run and used by `lm classify`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from lm.config.data import DataConfig
from lm.config.run_config import RunConfig
from lm.corpus.manifest import SPLITS
from lm.corpus.shards import read_manifest
from lm.corpus.tokenized_examples import StoredExamples, open_examples
from lm.data.batch import Batch, batch_rows
from lm.data.example_data import ExampleData, truncate_text
from lm.errors import Advice, InputError, UsageError
from lm.text.examples import LABEL_DELIMITER, parse_label
from lm.text.rows import without_skip_hint
from lm.text.text_files import find_text_files
from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer

_MAX_LABELS, _MAX_LABEL_BYTES, _MIN_EXAMPLES = 200, 100, 5
"""Limits of completions that are labels: number, bytes, and mean number of examples of each."""


class LabelledData(ExampleData):
    """Training data of a masked classifier: one text per row, with its label as the only target."""

    def __init__(
        self,
        train: StoredExamples,
        validation: StoredExamples,
        *,
        context: int,
        rows: int,
        seed: int,
        labels: Sequence[str],
    ) -> None:
        """Create batches of `rows` texts.

        Raises:
            InputError: an example has none of these labels.
        """
        super().__init__(train, validation, context=context, rows=rows, seed=seed)
        self._labels = labels
        self._numbers = _label_indices((train, validation), labels)
        lengths = train.lengths() - train.records["learned"] + 1
        self.tokens = int(np.minimum(lengths, context).sum())
        self.n_truncated = int((lengths > context).sum())

    @classmethod
    def open(cls, folder: Path, config: RunConfig) -> Self:
        train, validation = (open_examples(folder, split) for split in SPLITS)
        return cls(
            train,
            validation,
            context=config.model.context_length,
            rows=batch_rows(config),
            seed=config.training.seed,
            labels=config.model.labels,
        )

    def _check(self, examples: StoredExamples) -> None:
        """Labels are not read, so none is too long."""

    def warnings(self) -> list[Advice]:
        """Warn about truncated texts."""
        warnings: list[Advice] = []
        if self.n_truncated:
            too_long = f"{self.n_truncated:,} of {self.samples:,} texts are longer than the context"
            warnings.append(Advice(f"{too_long}: their ends are left out", settings=["context_length"]))
        return warnings

    def _make_batch(self, split: StoredExamples, numbers: Sequence[int]) -> Batch:
        rows, learned = zip(*map(split.read, numbers), strict=True)
        texts = [
            truncate_text(np.concatenate([ids[:-count], ids[-1:]]), context=self._context)
            for ids, count in zip(rows, learned, strict=True)
        ]
        return Batch.from_texts(texts, self._numbers[split is self._validation][list(numbers)].tolist())


def load_labels(folder: Path) -> tuple[str, ...]:
    """Return the labels of all examples in a folder, including held-out ones, sorted.

    Raises:
        InputError: the folder holds no prepared examples.
        UsageError: there is only one label, or there are too many.
    """
    labels = sorted({label for split in SPLITS for label in _read_labels(open_examples(folder, split))})
    if len(labels) < 2:
        raise UsageError(f"all examples have the same label, {labels[0]!r}: a classifier needs two or more")
    return tuple(labels)


def find_label_completions(folder: Path) -> tuple[str, ...]:
    """Return the completions of the examples in a folder, sorted, if they are labels; else none.

    They are labels if they are few, short and frequent, and differ in their tokens.

    Raises:
        InputError: the folder holds no prepared examples.
    """
    if not 2 <= (read_manifest(folder).labels or 0) <= _MAX_LABELS:
        return ()
    examples, distinct = 0, set[str]()
    for split in (open_examples(folder, name) for name in SPLITS):
        assert split.labels is not None
        labels, sizes = split.labels.tolist(), split.records["bytes"].tolist()
        distinct |= {
            label if size == len(label.encode()) else LABEL_DELIMITER + label
            for label, size in set(zip(labels, sizes, strict=True))
        }
        examples += len(split)
    completions = tuple(sorted(distinct, key=parse_label))
    is_seen_often = examples >= _MIN_EXAMPLES * len(completions)
    if not is_seen_often or max(len(parse_label(completion).encode()) for completion in completions) > _MAX_LABEL_BYTES:
        return ()
    encoded = Tokenizer.load(folder / FILE_NAME).encode_batch(list(completions))
    are_distinct = len({ids.tobytes() for ids in encoded}) == len({*map(parse_label, completions)}) == len(completions)
    return completions if are_distinct else ()


def read_completions(name: str) -> tuple[str, ...]:
    """Return the different completions of a file of examples, sorted by label.

    Raises:
        InputError: there is no such file, or it has no examples.
    """
    files = find_text_files([name], DataConfig(supervised=True))
    with without_skip_hint():
        completions = {example.completion for file in files for example in file.examples()}
    return tuple(sorted(completions, key=parse_label))


@dataclass(frozen=True)
class LabelCounts:
    """Number of examples per label, most frequent first.

    Attributes:
        train: of the training split; 0 for a label that is only held out.
    """

    train: Mapping[str, int]
    validation: Mapping[str, int]

    @property
    def majority(self) -> tuple[str, float]:
        """The most frequent label, and its fraction of the training split."""
        label, count = next(iter(self.train.items()))
        return label, count / max(1, sum(self.train.values()))


def count_labels(folder: Path) -> LabelCounts:
    """Count the labels of the examples in a folder; InputError if it holds none."""
    train, validation = (Counter(_read_labels(open_examples(folder, split))) for split in SPLITS)
    labels = sorted({*train, *validation}, key=lambda label: (-train[label], label))
    return LabelCounts(*({label: counts[label] for label in labels} for counts in (train, validation)))


def _label_indices(splits: Sequence[StoredExamples], labels: Sequence[str]) -> list[NDArray[np.int64]]:
    """Return (examples,) label indices of each split.

    Raises:
        InputError: an example has none of these labels.
    """
    indices = {label: number for number, label in enumerate(labels)}
    try:
        return [np.array([indices[label] for label in _read_labels(split)], dtype=np.int64) for split in splits]
    except KeyError:
        problem = "the examples have labels that the model has not learned; name the corpus of the run"
        raise InputError(problem) from None


def _read_labels(examples: StoredExamples) -> list[str]:
    """Return the label of each example; UsageError if there are too many different ones."""
    if examples.labels is None:
        raise UsageError(
            "the examples have too many different completions to be labels: a classifier chooses among few"
        )
    return examples.labels.tolist()

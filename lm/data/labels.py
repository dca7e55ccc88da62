"""Labels of prepared examples: counting, and detection of labels among completions.

Completions that a decoder learns count as labels if there are 2 to 200 different ones of at most 100 bytes, with five
examples each on average (`find_label_completions`). They are recorded in the run and used by `lm classify`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lm.config.data import DataConfig
from lm.corpus.store import SPLITS, Manifest, Split, open_split
from lm.errors import InputError, UsageError
from lm.text.find import find_text_files
from lm.text.records import LABEL_DELIMITER, parse_label
from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer

_MAX_LABELS, _MAX_LABEL_BYTES, _MIN_EXAMPLES = 200, 100, 5
"""Limits of completions that are labels: number, bytes, and mean number of examples of each."""


def load_labels(folder: Path) -> tuple[str, ...]:
    """Return the labels of all examples in a folder, including held-out ones, sorted.

    Raises:
        InputError: the folder holds no prepared examples.
        UsageError: there is only one label, or there are too many.
    """
    labels = sorted({label for split in SPLITS for label in _read_labels(open_split(folder, split))})
    if len(labels) < 2:
        raise UsageError(f"all examples have the same label, {labels[0]!r}: a classifier needs two or more")
    return tuple(labels)


def find_label_completions(folder: Path) -> tuple[str, ...]:
    """Return the completions of the examples in a folder, sorted, if they are labels; else none.

    They are labels if they are few, short and frequent, and differ in their tokens.

    Raises:
        InputError: the folder holds no prepared examples.
    """
    if not 2 <= (Manifest.read(folder).labels) <= _MAX_LABELS:
        return ()
    examples, distinct = 0, set[str]()
    for split in (open_split(folder, name) for name in SPLITS):
        if not split.documents or split.labels is None:
            continue
        labels, sizes = split.labels.tolist(), split.column("bytes").tolist()
        distinct |= {
            label if size == len(label.encode()) else LABEL_DELIMITER + label
            for label, size in set(zip(labels, sizes, strict=True))
        }
        examples += split.documents
    completions = tuple(sorted(distinct, key=parse_label))
    is_seen_often = examples >= _MIN_EXAMPLES * len(completions)
    if not is_seen_often or max(len(parse_label(completion).encode()) for completion in completions) > _MAX_LABEL_BYTES:
        return ()
    encoded = Tokenizer.load(folder / FILE_NAME).encode_batch(list(completions))
    are_distinct = len({ids.tobytes() for ids in encoded}) == len({*map(parse_label, completions)}) == len(completions)
    return completions if are_distinct else ()


def read_completions(name: str, data: DataConfig) -> tuple[str, ...]:
    """Return the different completions of a file of examples, sorted by label.

    Raises:
        InputError: there is no such file, or it has no examples.
    """
    files = find_text_files([name], data)
    if any(file.kind != "examples" for file in files):
        files = find_text_files([name], replace(data, label_column=data.label_column or "label"))
    completions = {record.parts[-1].text for file in files for record in file.records()}
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
    train, validation = (Counter(_read_labels(open_split(folder, split))) for split in SPLITS)
    labels = sorted({*train, *validation}, key=lambda label: (-train[label], label))
    return LabelCounts(*({label: counts[label] for label in labels} for counts in (train, validation)))


def label_indices(split: Split, labels: Sequence[str]) -> NDArray[np.int64]:
    """Return (examples,) label indices of a split; InputError if an example has none of these labels."""
    indices = {label: number for number, label in enumerate(labels)}
    try:
        return np.array([indices[label] for label in _read_labels(split)], dtype=np.int64)
    except KeyError:
        raise InputError(
            "the examples have labels that the model has not learned; name the corpus of the run"
        ) from None


def _read_labels(examples: Split) -> list[str]:
    """Return the label of each example; UsageError if there are too many different ones."""
    if examples.labels is None:
        raise UsageError(
            "the examples have too many different completions to be labels: a classifier chooses among few"
        )
    labels: list[str] = examples.labels.tolist()
    return labels

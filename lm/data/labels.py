"""Labels of prepared examples: counting, and detection of labels among completions.

Completions that a decoder learns count as labels if there are 2 to 200 different ones of at most 100 bytes, with five
examples each on average (`find_label_completions`). They are recorded in the run and used by `lm classify`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lm.config.data import DataConfig, FilesConfig
from lm.corpus.store import SPLITS, Manifest, Split, open_split
from lm.errors import InputError, UsageError
from lm.text.find import find_text_files
from lm.text.records import LABEL_DELIMITER, parse_label
from lm.text.text_file import TextFile
from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer

_MAX_LABELS, _MAX_LABEL_BYTES, _MIN_EXAMPLES = 200, 100, 5
"""Limits of completions that are labels: number, bytes, and mean number of examples of each."""


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
    """Count the labels of the examples in a folder.

    Raises:
        InputError: the folder holds no prepared examples.
        UsageError: there are too many different labels.
    """
    train, validation = (Counter(_read_labels(open_split(folder, split))) for split in SPLITS)
    labels = sorted({*train, *validation}, key=lambda label: (-train[label], label))
    return LabelCounts(*({label: counts[label] for label in labels} for counts in (train, validation)))


def load_labels(folder: Path) -> tuple[str, ...]:
    """Return the labels of all examples in a folder, sorted; raises as `count_labels`, and for a single label."""
    labels = sorted(count_labels(folder).train)
    if len(labels) < 2:
        raise UsageError(f"all examples have the same label, {labels[0]!r}: a classifier needs two or more")
    return tuple(labels)


def find_label_completions(folder: Path) -> tuple[str, ...]:
    """Return the completions of the examples in a folder, sorted, if they are labels; else none.

    They are labels if they are few, short and frequent, and differ in their tokens.
    """
    manifest, found = Manifest.read(folder), set[tuple[str, int]]()
    if not 2 <= manifest.labels <= _MAX_LABELS:
        return ()
    for split in (open_split(folder, name) for name in SPLITS):
        found |= {*zip(_read_labels(split), split.column("bytes").tolist(), strict=True)}
    distinct = {label if size == len(label.encode()) else LABEL_DELIMITER + label for label, size in found}
    completions = tuple(sorted(distinct, key=parse_label))
    if sum(split.documents for split in manifest.splits.values()) < _MIN_EXAMPLES * len(completions):
        return ()
    if len(completions) > manifest.labels or max(len(label.encode()) for label, _ in found) > _MAX_LABEL_BYTES:
        return ()
    encoded = Tokenizer.load(folder / FILE_NAME).encode_batch(list(completions))
    return completions if len({ids.tobytes() for ids in encoded}) == len(completions) else ()


def find_examples(names: Sequence[str], data: DataConfig, reading: FilesConfig | None = None) -> list[TextFile]:
    """Return files of examples, with labels in the column `label` if none is named; InputError for others."""
    files = find_text_files(names, data, reading)
    if any(file.kind != "examples" for file in files):
        files = find_text_files(names, data.replace(label_column=data.label_column or "label"), reading)
    for file in files:
        if file.kind != "examples":
            raise InputError(f"{file.name}: holds {file.kind}, not examples")
    return files


def read_completions(name: str, data: DataConfig) -> tuple[str, ...]:
    """Return the different completions of a file of examples, sorted by label; InputError if it has none."""
    files = find_examples([name], data)
    completions = {record.parts[-1].text for file in files for record in file.records()}
    return tuple(sorted(completions, key=parse_label))


def label_indices(split: Split, labels: Sequence[str]) -> NDArray[np.int64]:
    """Return (examples,) label indices of a split; InputError if an example has none of these labels."""
    indices = {label: number for number, label in enumerate(labels)}
    try:
        return np.array([indices[label] for label in _read_labels(split)], dtype=np.int64)
    except KeyError:
        raise InputError(
            "the examples have labels that the model has not learned; name the corpus of the run"
        ) from None


def _read_labels(split: Split) -> list[str]:
    """Return the label of each example; UsageError if there are too many different ones."""
    if split.labels is None:
        raise UsageError(
            "the examples have too many different completions to be labels: a classifier chooses among few"
        )
    labels: list[str] = split.labels.tolist()
    return labels

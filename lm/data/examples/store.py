"""Examples on disk: their tokens in shards, and an index of where each ends and which of its tokens are learned.

A split's shards (see `lm.data.shards`) hold, one after another, the tokens of its examples: start of text, prompt,
completion, end of text. Its `train-examples.npy` or `validation-examples.npy` has a record (`EXAMPLE`) for each
example. Nothing is cut off, so that the same folder serves models of any context.

A classifier chooses among labels, which are completions without their delimiter. Tokens may not tell their text, so
`labels.json` is a list of the distinct ones, and `train-labels.npy` and `validation-labels.npy` have the number of each
example's label. Where there are too many completions to be labels, or too long ones, none are stored.
"""

from __future__ import annotations

import contextlib
import io
import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lm import files
from lm.data import shards
from lm.data.array_writer import ArrayWriter
from lm.data.manifest import SplitName, SplitRecord
from lm.data.part_store import PartSplit, StoredPart, array_name, read_array
from lm.data.shards import ShardWriter, Tokens
from lm.errors import InputError
from lm.text.examples import DELIMITER, Example
from lm.tokenizer.framing import Frame
from lm.tokenizer.tokenizer import Ids

EXAMPLE = np.dtype([("end", "<i8"), ("learned", "<i8"), ("bytes", "<i8"), ("file", "<i4"), ("line", "<i8")])
"""An example: where its tokens end, counted over the split; how many of the last of them are learned; UTF-8 bytes of
its completion; and the numbers of its file and line (files for validation are counted after the others)."""


LABELS = "labels.json"

_TOKENS, _INDEX, _LABELS = "tokens", "examples", "labels"
_MOST_LABELS, _MOST_LABEL_BYTES = 1 << 16, 1 << 24


def index_name(split: SplitName) -> str:
    """The file name of a split's records."""
    return array_name(split, _INDEX)


@dataclass(frozen=True)
class Examples:
    """The examples of one split, read through mmap.

    Attributes:
        tokens: the tokens of all examples.
        index: (examples,) records of type EXAMPLE.
        files: the names of the files that the records count.
        labels: (examples,) the label of each, if labels were kept.
    """

    tokens: Tokens
    index: npt.NDArray[Any]
    files: tuple[str, ...]
    labels: npt.NDArray[np.object_] | None = None

    def __len__(self) -> int:
        """How many examples there are."""
        return len(self.index)

    def lengths(self) -> npt.NDArray[np.int64]:
        """(examples,) how many tokens each has."""
        return np.diff(self.index["end"], prepend=0)

    def read(self, number: int) -> tuple[npt.NDArray[np.int64], int]:
        """The tokens of an example, and how many of the last of them are learned."""
        start = int(self.index["end"][number - 1]) if number else 0
        record = self.index[number]
        return self.tokens.read(start, int(record["end"])), int(record["learned"])


def open_examples(folder: Path | str, split: SplitName) -> Examples:
    """The examples of a split of a prepared folder.

    Raises:
        InputError: the folder holds no prepared examples, or they are damaged.
    """
    folder = Path(folder)
    manifest, tokens = shards.read_manifest(folder), shards.open_split(folder, split)
    index = _open_index(folder / index_name(split))
    if index is None or len(index) != tokens.documents or (len(index) and index["end"][-1] != len(tokens)):
        raise InputError(f"{folder / index_name(split)}: missing or damaged; prepare the examples again")
    names = tuple(record.path for record in (*manifest.sources, *manifest.validation_sources))
    labels = _open_labels(folder, split, examples=len(index)) if manifest.labels else None
    return Examples(tokens, index, names, labels)


def _open_labels(folder: Path, split: SplitName, *, examples: int) -> npt.NDArray[np.object_]:
    """The label of each example; InputError if they are damaged."""
    texts, path = files.read_json(folder / LABELS), folder / array_name(split, _LABELS)
    if isinstance(texts, list) and all(isinstance(each, str) for each in texts):
        with contextlib.suppress(OSError, ValueError, EOFError, IndexError):
            numbers = np.load(path)
            if numbers.shape == (examples,) and numbers.min(initial=0) >= 0:
                return np.array(texts, dtype=object)[numbers]
    raise InputError(f"{path}: missing or damaged; prepare the examples again")


def _open_index(path: Path) -> npt.NDArray[Any] | None:
    try:
        index: npt.NDArray[Any] = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError):
        return None
    return index if index.dtype == EXAMPLE and index.ndim == 1 else None


class _Labels:
    """Numbers the labels of examples, unless they are too many to be labels."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.too_many = False
        self._bytes = 0

    def number(self, label: str) -> int:
        """The number of a label; 0 for each if there are too many."""
        if self.too_many:
            return 0
        if (known := self.numbers.get(label)) is not None:
            return known
        self._bytes += len(label.encode())
        if len(self.numbers) == _MOST_LABELS or self._bytes > _MOST_LABEL_BYTES:
            self.too_many, self.numbers = True, {}
            return 0
        return self.numbers.setdefault(label, len(self.numbers))

    @property
    def texts(self) -> list[str]:
        """The labels in the order of their numbers."""
        return list(self.numbers)


class ExampleWriter:
    """Writes what a part of a corpus adds to one split: tokens, and records whose ends are counted over the part."""

    def __init__(self, folder: Path, split: SplitName, *, dtype: str, frame: Frame) -> None:
        """Write into `folder`, which exists; `frame` is the tokens around each example."""
        self._tokens = ArrayWriter(folder / array_name(split, _TOKENS), dtype=dtype, lasting=False)
        self._index = folder / index_name(split)
        self._frame = frame
        self._records = io.BytesIO()
        self._labels, self._numbers = _Labels(), array("i")
        self._label_files = folder / array_name(split, _LABELS), folder / _label_texts(split)
        self._examples = self._bytes = 0

    def add(self, example: Example, prompt: Ids, completion: Ids, *, file: int) -> None:
        """Write an example, given the tokens of its prompt and its completion."""
        self._tokens.append(self._frame.around(prompt, completion))
        size = len(example.completion.encode())
        record = (len(self._tokens), len(completion) + len(self._frame.after), size, file, example.line)
        self._records.write(np.array([record], dtype=EXAMPLE).tobytes())
        self._numbers.append(self._labels.number(example.completion.removeprefix(DELIMITER)))
        self._examples += 1
        self._bytes += len(example.prompt.encode()) + size

    def close(self) -> PartSplit:
        """Finish all files."""
        self._tokens.close()
        np.save(self._index, np.frombuffer(self._records.getvalue(), dtype=EXAMPLE))
        np.save(self._label_files[0], np.array(self._numbers, dtype="<i4"))
        texts = None if self._labels.too_many else self._labels.texts
        self._label_files[1].write_text(json.dumps(texts), encoding="utf-8")
        return PartSplit(self._examples, self._bytes)

    def discard(self) -> None:
        """Close a file that is still open because writing has failed."""
        self._tokens.discard()


def _label_texts(split: SplitName) -> str:
    """The file name of the labels that a part adds to a split."""
    return f"{split}-labels.json"


class JoinedLabels:
    """Gathers the labels of all splits.

    Attributes:
        count: how many there are; 0 if there are too many, and None if an earlier version made a part without them.
    """

    def __init__(self) -> None:
        self._labels = _Labels()
        self._numbers: dict[SplitName, list[npt.NDArray[Any]]] = {}
        self._are_unknown = False

    def add(self, part: StoredPart, split: SplitName) -> None:
        """Take what a part adds to a split."""
        try:
            texts = files.read_json(part.folder / _label_texts(split))
        except InputError:
            self._are_unknown = True
            return
        if texts is None:
            self._labels.too_many = True
            return
        numbers = np.array([self._labels.number(text) for text in texts], dtype="<i4")
        self._numbers.setdefault(split, []).append(numbers[part.array(split, _LABELS)])

    @property
    def count(self) -> int | None:
        """How many labels there are."""
        if self._are_unknown:
            return None
        return 0 if self._labels.too_many else len(self._labels.numbers)

    def write(self, folder: Path, splits: Sequence[SplitName]) -> None:
        """Write the labels into a folder, if they are not too many; they are on the disk when this returns."""
        if not self.count:
            return
        files.replace_text(folder / LABELS, json.dumps(self._labels.texts))
        for split in splits:
            with contextlib.closing(ArrayWriter(folder / array_name(split, _LABELS), dtype="int32")) as writer:
                for numbers in self._numbers.get(split, []):
                    writer.append(numbers)


class JoinedExamples:
    """Writes the examples that all parts of a corpus add to one split."""

    def __init__(self, folder: Path, split: SplitName, *, dtype: str, labels: JoinedLabels) -> None:
        """Write into `folder`, which exists; `labels` gathers those of all splits."""
        self._split: SplitName = split
        self._labels = labels
        self._shards = ShardWriter(folder, split, dtype=dtype)
        self._index = ArrayWriter(folder / index_name(split), dtype=EXAMPLE)
        self._tokens = self._bytes = 0

    def add(self, part: StoredPart) -> None:
        """Write what a part adds."""
        for records in read_array(part.array(self._split, _INDEX)):
            moved = records.copy()
            moved["end"] += self._tokens
            self._index.append(moved)
        self._labels.add(part, self._split)
        tokens = part.array(self._split, _TOKENS)
        for ids in read_array(tokens):
            self._shards.append(ids)
        self._tokens += len(tokens)
        self._bytes += part.splits[self._split].bytes

    def close(self) -> SplitRecord:
        """Finish all files; they are on the disk when this returns."""
        self._shards.close()
        self._index.close()
        return SplitRecord(len(self._index), self._tokens, self._bytes, tuple(self._shards.shards))

    def discard(self) -> None:
        """Close files that are still open because writing has failed."""
        self._shards.discard()
        self._index.discard()

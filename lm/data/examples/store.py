"""Examples on disk: their tokens in shards, and an index of where each ends and which of its tokens are learned.

A split's shards (see `lm.data.shards`) hold, one after another, the tokens of its examples: start of text, prompt,
completion, end of text. Its `train-examples.npy` or `validation-examples.npy` has a record (`EXAMPLE`) for each
example. Nothing is cut off, so that the same folder serves models of any context.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lm.data import shards
from lm.data.array_writer import ArrayWriter
from lm.data.manifest import SplitName, SplitRecord
from lm.data.part_store import PartSplit, StoredPart, array_name, read_array
from lm.data.shards import ShardWriter, Tokens
from lm.errors import InputError
from lm.text.examples import Example
from lm.tokenizer.framing import Frame
from lm.tokenizer.tokenizer import Ids

EXAMPLE = np.dtype([("end", "<i8"), ("learned", "<i8"), ("bytes", "<i8"), ("file", "<i4"), ("line", "<i8")])
"""An example: where its tokens end, counted over the split; how many of the last of them are learned; UTF-8 bytes of
its completion; and the numbers of its file and line (files for validation are counted after the others)."""


_TOKENS, _INDEX = "tokens", "examples"


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
    """

    tokens: Tokens
    index: npt.NDArray[Any]
    files: tuple[str, ...]

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
    return Examples(tokens, index, tuple(record.path for record in (*manifest.sources, *manifest.validation_sources)))


def _open_index(path: Path) -> npt.NDArray[Any] | None:
    try:
        index: npt.NDArray[Any] = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError):
        return None
    return index if index.dtype == EXAMPLE and index.ndim == 1 else None


class ExampleWriter:
    """Writes what a part of a corpus adds to one split: tokens, and records whose ends are counted over the part."""

    def __init__(self, folder: Path, split: SplitName, *, dtype: str, frame: Frame) -> None:
        """Write into `folder`, which exists; `frame` is the tokens around each example."""
        self._tokens = ArrayWriter(folder / array_name(split, _TOKENS), dtype=dtype, lasting=False)
        self._index = folder / index_name(split)
        self._frame = frame
        self._records = io.BytesIO()
        self._examples = self._bytes = 0

    def add(self, example: Example, prompt: Ids, completion: Ids, *, file: int) -> None:
        """Write an example, given the tokens of its prompt and its completion."""
        self._tokens.append(self._frame.around(prompt, completion))
        size = len(example.completion.encode())
        record = (len(self._tokens), len(completion) + len(self._frame.after), size, file, example.line)
        self._records.write(np.array([record], dtype=EXAMPLE).tobytes())
        self._examples += 1
        self._bytes += len(example.prompt.encode()) + size

    def close(self) -> PartSplit:
        """Finish all files."""
        self._tokens.close()
        np.save(self._index, np.frombuffer(self._records.getvalue(), dtype=EXAMPLE))
        return PartSplit(self._examples, self._bytes)

    def discard(self) -> None:
        """Close a file that is still open because writing has failed."""
        self._tokens.discard()


class JoinedExamples:
    """Writes the examples that all parts of a corpus add to one split."""

    def __init__(self, folder: Path, split: SplitName, *, dtype: str) -> None:
        """Write into `folder`, which exists."""
        self._split: SplitName = split
        self._shards = ShardWriter(folder, split, dtype=dtype)
        self._index = ArrayWriter(folder / index_name(split), dtype=EXAMPLE)
        self._tokens = self._bytes = 0

    def add(self, part: StoredPart) -> None:
        """Write what a part adds."""
        for records in read_array(part.array(self._split, _INDEX)):
            moved = records.copy()
            moved["end"] += self._tokens
            self._index.append(moved)
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

"""Supervised examples on disk: token shards, and an index of example ends and learned tokens.

A split's shards (see `lm.corpus.shards`) hold its examples one after another: start of text, prompt, completion, end of
text. `train-examples.npy` and `validation-examples.npy` have a record (`EXAMPLE_DTYPE`) per example. Nothing is
truncated, so the same folder serves models of any context length.

For classifiers, `labels.json` lists the distinct completions without delimiter, and `train-labels.npy` and
`validation-labels.npy` have the label index of each example. If there are too many or too long ones, none are stored.

Examples are held out by a hash of prompt and completion.
"""

from __future__ import annotations

import contextlib
import io
import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from lm import files
from lm.corpus import repetition, shards
from lm.corpus.manifest import SPLITS, Repetition, SplitName, SplitRecord
from lm.corpus.repetition import TokenizedDocuments
from lm.corpus.shards import (
    ArrayWriter,
    ChunkSplit,
    ShardWriter,
    StoredChunk,
    TokenShards,
    WrittenShards,
    array_file_name,
    merged_splits,
    read_in_blocks,
    token_dtype,
)
from lm.corpus.text_corpus import (
    BytesCallback,
    Chunk,
    ChunkInput,
    Corpus,
    HeldOutRule,
    compute_hash_bound,
    count_text_bytes,
    hash_text,
    write_splits,
)
from lm.errors import InputError
from lm.text.conversations import Conversation
from lm.text.examples import Example
from lm.text.text_files import TextFile
from lm.tokenizer.special_tokens import SpecialTokenFrame, build_example_frame
from lm.tokenizer.tokenizer import Ids, Tokenizer

EXAMPLE_DTYPE = np.dtype([("end", "<i8"), ("learned", "<i8"), ("bytes", "<i8"), ("file", "<i4"), ("line", "<i8")])
"""An example: where its tokens end, counted over the split; how many of the last of them are learned; UTF-8 bytes of
its completion; and the numbers of its file and line (files for validation are counted after the others)."""


LABELS_FILE = "labels.json"

_TOKENS, _INDEX, _LABELS = "tokens", "examples", "labels"
_MAX_LABELS, _MAX_LABEL_BYTES = 1 << 16, 1 << 24


def index_file_name(split: SplitName) -> str:
    return array_file_name(split, _INDEX)


@dataclass(frozen=True)
class StoredExamples:
    """The examples of a split, memory-mapped.

    Attributes:
        records: (examples,) of EXAMPLE_DTYPE.
        files: the file names that the records refer to.
        labels: (examples,) label of each, if labels were stored.
    """

    tokens: TokenShards
    records: npt.NDArray[Any]
    files: tuple[str, ...]
    labels: npt.NDArray[np.object_] | None = None

    def __len__(self) -> int:
        return len(self.records)

    def lengths(self) -> npt.NDArray[np.int64]:
        return np.diff(self.records["end"], prepend=0)

    def read(self, number: int) -> tuple[npt.NDArray[np.int64], int]:
        """Return the tokens of an example, and how many of the last of them are learned."""
        start = int(self.records["end"][number - 1]) if number else 0
        record = self.records[number]
        return self.tokens.read(start, int(record["end"])), int(record["learned"])


def open_examples(folder: Path | str, split: SplitName) -> StoredExamples:
    """Open the examples of a split of a prepared folder.

    Raises:
        InputError: the folder has no prepared examples, or they are damaged.
    """
    folder = Path(folder)
    manifest, tokens = shards.read_manifest(folder), shards.open_split(folder, split)
    records = _open_records(folder / index_file_name(split))
    if records is None or len(records) != tokens.documents or (len(records) and records["end"][-1] != len(tokens)):
        raise InputError(f"{folder / index_file_name(split)}: missing or damaged; prepare the examples again")
    names = tuple(record.path for record in (*manifest.sources, *manifest.validation_sources))
    labels = _open_labels(folder, split, examples=len(records)) if manifest.labels else None
    return StoredExamples(tokens, records, names, labels)


def _open_labels(folder: Path, split: SplitName, *, examples: int) -> npt.NDArray[np.object_]:
    texts, path = files.read_json(folder / LABELS_FILE), folder / array_file_name(split, _LABELS)
    if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
        with contextlib.suppress(OSError, ValueError, EOFError, IndexError):
            numbers = np.load(path)
            if numbers.shape == (examples,) and numbers.min(initial=0) >= 0:
                return np.array(texts, dtype=object)[numbers]
    raise InputError(f"{path}: missing or damaged; prepare the examples again")


def _open_records(path: Path) -> npt.NDArray[Any] | None:
    try:
        records: npt.NDArray[Any] = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError):
        return None
    return records if records.dtype == EXAMPLE_DTYPE and records.ndim == 1 else None


class _LabelNumbering:
    """Numbers the labels of examples, unless there are too many."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.too_many = False
        self._bytes = 0

    def number(self, label: str) -> int:
        """Return the number of a label; always 0 if there are too many."""
        if self.too_many:
            return 0
        if (known := self.numbers.get(label)) is not None:
            return known
        self._bytes += len(label.encode())
        if len(self.numbers) == _MAX_LABELS or self._bytes > _MAX_LABEL_BYTES:
            self.too_many, self.numbers = True, {}
            return 0
        return self.numbers.setdefault(label, len(self.numbers))

    @property
    def texts(self) -> list[str]:
        return list(self.numbers)


class RowWriter:
    """Writes the tokens and the index of a chunk in one split; a subclass adds what else it stores."""

    def __init__(self, folder: Path, split: SplitName, *, dtype: str) -> None:
        self._tokens = ArrayWriter(folder / array_file_name(split, _TOKENS), dtype=dtype, lasting=False)
        self._index = folder / index_file_name(split)
        self._records = io.BytesIO()
        self._rows = self._bytes = 0

    def append(self, item: SplitRow[Any], ids: npt.NDArray[Any], *, learned: int, learned_bytes: int) -> None:
        """Append a row, given how many of its tokens are learned, and the UTF-8 bytes of their text."""
        self._tokens.append(ids)
        record = (len(self._tokens), learned, learned_bytes, item.file, item.row.line)
        self._records.write(np.array([record], dtype=EXAMPLE_DTYPE).tobytes())
        self._rows += 1
        self._bytes += count_text_bytes(item)

    def close(self) -> ChunkSplit:
        self._tokens.close()
        np.save(self._index, np.frombuffer(self._records.getvalue(), dtype=EXAMPLE_DTYPE))
        return ChunkSplit(self._rows, self._bytes)

    def discard(self) -> None:
        self._tokens.discard()


class _ExampleWriter(RowWriter):
    """Writes the examples of a chunk in one split, with their labels."""

    def __init__(self, folder: Path, dtype: str, frame: SpecialTokenFrame, split: SplitName) -> None:
        super().__init__(folder, split, dtype=dtype)
        self._frame = frame
        self._labels, self._numbers = _LabelNumbering(), array("i")
        self._label_files = folder / array_file_name(split, _LABELS), folder / _label_file_name(split)

    def add(self, item: SplitRow[Example], tokens: tuple[Ids, Ids]) -> None:
        prompt, completion = tokens
        learned, learned_bytes = len(completion) + len(self._frame.after), len(item.row.completion.encode())
        self.append(item, self._frame.wrap(prompt, completion), learned=learned, learned_bytes=learned_bytes)
        self._numbers.append(self._labels.number(item.row.label))

    def close(self) -> ChunkSplit:
        np.save(self._label_files[0], np.array(self._numbers, dtype="<i4"))
        texts = None if self._labels.too_many else self._labels.texts
        self._label_files[1].write_text(json.dumps(texts), encoding="utf-8")
        return super().close()


def _label_file_name(split: SplitName) -> str:
    return f"{split}-labels.json"


class LabelCollector:
    """Collects the labels of all splits.

    Attributes:
        count: number of labels; 0 if too many.
    """

    def __init__(self) -> None:
        self._labels = _LabelNumbering()
        self._numbers: dict[SplitName, list[npt.NDArray[Any]]] = {}

    def add(self, chunk: StoredChunk, split: SplitName) -> None:
        """Add the labels of a chunk in a split."""
        texts = files.read_json(chunk.folder / _label_file_name(split))
        if texts is None:
            self._labels.too_many = True
            return
        numbers = np.array([self._labels.number(text) for text in texts], dtype="<i4")
        self._numbers.setdefault(split, []).append(numbers[chunk.array(split, _LABELS)])

    @property
    def count(self) -> int:
        return 0 if self._labels.too_many else len(self._labels.numbers)

    def write(self, folder: Path, splits: Sequence[SplitName]) -> None:
        """Write the labels durably, unless there are too many."""
        if not self.count:
            return
        files.replace_text(folder / LABELS_FILE, json.dumps(self._labels.texts))
        for split in splits:
            with contextlib.closing(ArrayWriter(folder / array_file_name(split, _LABELS), dtype="int32")) as writer:
                for numbers in self._numbers.get(split, []):
                    writer.append(numbers)


class RowMerger:
    """Merges the tokens and the index of all chunks in one split; a subclass adds what else it stores."""

    def __init__(self, folder: Path, split: SplitName, *, dtype: str) -> None:
        self._split: SplitName = split
        self._shards = ShardWriter(folder, split, dtype=dtype)
        self._index = ArrayWriter(folder / index_file_name(split), dtype=EXAMPLE_DTYPE)
        self._tokens = self._bytes = 0

    def add(self, chunk: StoredChunk) -> None:
        for records in read_in_blocks(chunk.array(self._split, _INDEX)):
            shifted = records.copy()
            shifted["end"] += self._tokens
            self._index.append(shifted)
        tokens = chunk.array(self._split, _TOKENS)
        for ids in read_in_blocks(tokens):
            self._shards.append(ids)
        self._tokens += len(tokens)
        self._bytes += chunk.splits[self._split].bytes

    def close(self) -> SplitRecord:
        self._shards.close()
        self._index.close()
        return SplitRecord(len(self._index), self._tokens, self._bytes, tuple(self._shards.shards))

    def discard(self) -> None:
        self._shards.discard()
        self._index.discard()


class _ExampleMerger(RowMerger):
    """Merges the examples of all chunks in one split."""

    def __init__(self, folder: Path, dtype: str, labels: LabelCollector, split: SplitName) -> None:
        """Write into an existing folder; `labels` collects the labels of all splits."""
        super().__init__(folder, split, dtype=dtype)
        self._labels = labels

    def add(self, chunk: StoredChunk) -> None:
        super().add(chunk)
        self._labels.add(chunk, self._split)


R = TypeVar("R", Example, Conversation)


@dataclass(frozen=True, slots=True)
class SplitRow(Generic[R]):
    """An example or a conversation with its split and file."""

    split: SplitName
    file: int
    file_name: str
    row: R

    @property
    def texts(self) -> Sequence[str]:
        return self.row.texts

    @property
    def location(self) -> str:
        return f"{self.file_name}: line {self.row.line}"


def choose_held_out_examples(corpus: Corpus) -> HeldOutRule:
    """Return which examples are held out.

    With a fraction, an example is held out if its hash is below a bound, so equal ones stay together. The bound is the
    fraction or, with few examples, one that holds out that fraction of them, but at least one.
    """
    few = corpus.fraction and corpus.has_few_documents
    return HeldOutRule(compute_hash_bound(corpus.fraction), fraction=corpus.fraction if few else None)


def assign_splits(
    chunk: Chunk, read: Callable[[TextFile], Iterable[R]], describe: Callable[[R], str]
) -> Iterator[SplitRow[R]]:
    """Yield the rows of a chunk with their splits; rows are held out whose description has a hash below a bound."""
    rows: Iterable[tuple[ChunkInput, R]]
    rows = ((chunk_input, row) for chunk_input in chunk.inputs for row in read(chunk_input.file))
    fraction, bound = chunk.inputs[0].held_out.fraction, 0
    if fraction is not None:
        rows = few = list(rows)
        hashes = [hash_text(describe(row)) for chunk_input, row in few if chunk_input.held_out.fraction is not None]
        bound = compute_hash_bound(fraction, hashes)
    for chunk_input, row in rows:
        below = chunk_input.held_out.bound if chunk_input.held_out.fraction is None else bound
        split: SplitName = "validation" if hash_text(describe(row)) < below else "train"
        yield SplitRow(split, chunk_input.number, chunk_input.file.name, row)


def write_example_chunk(
    chunk: Chunk, tokenizer: Tokenizer, folder: Path, done: BytesCallback | None
) -> dict[SplitName, ChunkSplit]:
    """Tokenize a chunk of examples into an empty folder.

    Prompt and completion are tokenized separately, so that training sees the boundary that generation sees.
    """

    def encode(group: Sequence[SplitRow[Example]]) -> list[tuple[Ids, Ids]]:
        prompts, completions = zip(*(item.texts for item in group), strict=True)
        return list(zip(tokenizer.encode_batch(prompts), tokenizer.encode_batch(completions), strict=True))

    items = assign_splits(chunk, TextFile.examples, lambda example: "\0".join(example.texts))
    create = partial(_ExampleWriter, folder, token_dtype(tokenizer.vocab_size), build_example_frame(tokenizer))
    return write_splits(items, encode, create, done)


def merge_example_chunks(chunks: Iterable[StoredChunk], tokenizer: Tokenizer, folder: Path) -> WrittenShards:
    labels = LabelCollector()
    create = partial(_ExampleMerger, folder, token_dtype(tokenizer.vocab_size), labels)
    with merged_splits(chunks, create) as splits:
        labels.write(folder, SPLITS)
        return WrittenShards(splits, count_row_copies(folder, splits, tokenizer), labels=labels.count)


def count_row_copies(folder: Path, splits: Mapping[str, SplitRecord], tokenizer: Tokenizer) -> Repetition:
    """Count copies among the written examples or conversations of both splits."""
    train, held_out = (
        TokenizedDocuments(
            TokenShards(folder, split, splits[split], mapped=False),
            np.append(0, np.load(folder / index_file_name(split), mmap_mode="r")["end"]),
        )
        for split in SPLITS
    )
    return repetition.count_copies(train, held_out, vocab_size=tokenizer.vocab_size, folder=folder)

"""Sentence pairs on disk: sentences as word indices, words as tokens; memory-mapped.

A folder holds, for each side (source and target):

    SIDE-words.npy, SIDE-word-ends.npy      tokens of the distinct words, and where each word ends
    SPLIT-SIDE.npy, SPLIT-SIDE-ends.npy     word indices of the sentences of a split, and where each sentence ends

if sources have dependency trees

    SPLIT-places.npy, SPLIT-places-ends.npy three integers per token, its position in the tree, by sentence

and `validation.jsonl`, the text of the validation split; `tokenizer.json`, and `source_tokenizer.json` if sources have
their own; and the manifest, written last.

Words are stored separately so that BPE dropout can segment them differently in each epoch (`lm.data.bpe_dropout`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lm.corpus.manifest import PairManifest, SplitName
from lm.corpus.ragged import RaggedArray
from lm.corpus.shards import ArrayWriter
from lm.errors import InputError
from lm.text.dependency_trees import DependencyHeads
from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer

SideName = Literal["source", "target"]
SIDES: tuple[SideName, ...] = ("source", "target")
VALIDATION_TEXTS_FILE = "validation.jsonl"
TREE_POSITION_SIZE = 3
"""Integers per tree position: see `lm.text.dependency_trees.compute_tree_positions`."""
SOURCE_TOKENIZER = "source_tokenizer.json"


@dataclass(frozen=True)
class StoredSentences:
    """The sources or the targets of a split.

    Attributes:
        words: (sentences,) word indices of each sentence.
        table: (words,) tokens of each word.
    """

    words: RaggedArray
    table: RaggedArray

    def __len__(self) -> int:
        return len(self.words)


@dataclass(frozen=True)
class StoredPairs:
    """A folder of sentence pairs.

    Attributes:
        tokenizer: of the targets; of the sources too, unless they have their own.
        source_tokenizer: of the sources, if separate.
    """

    folder: Path
    manifest: PairManifest
    tokenizer: Tokenizer
    source_tokenizer: Tokenizer | None

    def sentences(self, split: SplitName, side: SideName) -> StoredSentences:
        """Return the sources or targets of a split; InputError if damaged."""
        words = _open_ragged(self.folder, f"{split}-{side}", f"{split}-{side}-ends")
        if len(words) != self.manifest.splits[split].pairs:
            raise InputError(f"{self.folder / f'{split}-{side}.npy'}: damaged; prepare the pairs again")
        return StoredSentences(words, _open_ragged(self.folder, f"{side}-words", f"{side}-word-ends"))

    def tree_positions(self, split: SplitName) -> RaggedArray | None:
        """Return (tokens, 3) tree positions of each source, if there are trees."""
        if not self.manifest.has_dependency_heads:
            return None
        return _open_ragged(self.folder, f"{split}-places", f"{split}-places-ends", columns=TREE_POSITION_SIZE)

    def validation_texts(self) -> Iterator[tuple[str, str, DependencyHeads | None]]:
        """Yield source, target and heads of each validation pair, as in the files."""
        with (self.folder / VALIDATION_TEXTS_FILE).open(encoding="utf-8") as file:
            for line in file:
                values = json.loads(line)
                heads = values.get("heads")
                yield values["source"], values["target"], None if heads is None else tuple(heads)


def open_pairs(folder: Path | str) -> StoredPairs:
    """Open a folder of sentence pairs.

    Raises:
        InputError: it has no prepared pairs, or they are damaged.
    """
    folder = Path(folder)
    manifest = PairManifest.read(folder)
    own = folder / SOURCE_TOKENIZER
    stored = StoredPairs(
        folder, manifest, Tokenizer.load(folder / FILE_NAME), Tokenizer.load(own) if own.is_file() else None
    )
    for split in ("train", "validation"):
        for side in SIDES:
            stored.sentences(split, side)
        stored.tree_positions(split)
    return stored


def _open_ragged(folder: Path, values: str, ends: str, *, columns: int | None = None) -> RaggedArray:
    try:
        rows = RaggedArray(*(np.load(folder / f"{name}.npy", mmap_mode="r") for name in (values, ends)))
        rows = rows if columns is None else RaggedArray(rows.values.reshape(-1, columns), rows.ends)
        if len(rows.values) == (rows.ends[-1] if len(rows) else 0):
            return rows
    except (OSError, ValueError, EOFError):
        pass
    raise InputError(f"{folder / values}.npy: missing or damaged; prepare the pairs again")


class RaggedWriter:
    """Writes rows of integers, and where each row ends."""

    def __init__(self, folder: Path, name: str, *, dtype: str) -> None:
        self._values = ArrayWriter(folder / f"{name}.npy", dtype=dtype)
        self._ends = ArrayWriter(folder / f"{name}-ends.npy", dtype="int64")
        self._length = 0

    def append(self, rows: RaggedArray) -> None:
        self._ends.append(rows.ends + self._length)
        self._values.append(rows.values.ravel())
        self._length += len(rows.values)

    def close(self) -> None:
        self._values.close()
        self._ends.close()

    def discard(self) -> None:
        self._values.discard()
        self._ends.discard()


class SentenceWriter(RaggedWriter):
    """Writes the sources or targets of a split."""

    def __init__(self, folder: Path, split: SplitName, side: SideName, table: WordTable) -> None:
        """Write into an existing folder; `table` has the words of this side in all splits."""
        super().__init__(folder, f"{split}-{side}", dtype="uint32")
        self._table = table

    def append_tokens(self, sentences: RaggedArray, starts: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
        """Append sentences given as tokens; `starts` tells which tokens start a word."""
        self.append(self._table.words(sentences, starts))


class TreePositionWriter(RaggedWriter):
    """Writes the (tokens, 3) tree positions of the sources of a split."""

    def __init__(self, folder: Path, split: SplitName) -> None:
        super().__init__(folder, f"{split}-places", dtype="int32")


def write_word_table(folder: Path, side: SideName, table: WordTable, *, dtype: str) -> None:
    """Write the words of a side durably."""
    rows = table.rows()
    for name, values, kind in ((f"{side}-words", rows.values, dtype), (f"{side}-word-ends", rows.ends, "int64")):
        with contextlib.closing(ArrayWriter(folder / f"{name}.npy", dtype=kind)) as writer:
            writer.append(values)


MAX_TABLE_TOKENS = 1 << 21
"""Maximum total tokens of the words of a table, to bound memory."""


class WordTable:
    """Numbers words by their tokens.

    If the table is full, a new word is split into single-token words. It decodes to the same tokens; only BPE dropout
    then treats each token as a word.
    """

    def __init__(self, *, most_tokens: int = MAX_TABLE_TOKENS) -> None:
        self._most_tokens = most_tokens
        self._numbers: dict[bytes, int] = {}
        self._tokens = array("I")
        self._ends = array("q")

    def words(self, sentences: RaggedArray, starts: NDArray[np.bool_]) -> RaggedArray:
        """Return the word indices of sentences.

        Args:
            sentences: tokens of each sentence.
            starts: (tokens,) whether a token starts a word, as the first of a sentence does.
        """
        tokens = sentences.values.astype(np.uint32)
        bounds = np.append(np.flatnonzero(starts), len(tokens))
        data, size = tokens.tobytes(), tokens.itemsize
        numbers, counts = [], []
        edges = (bounds * size).tolist()
        for start, end in itertools.pairwise(edges):
            known = self._numbers.get(data[start:end])
            added = [known] if known is not None else self._add(data[start:end], size)
            numbers += added
            counts.append(len(added))
        ends = np.append(0, np.cumsum(counts, dtype=np.int64))
        return RaggedArray(np.array(numbers, dtype=np.int64), ends[np.searchsorted(bounds, sentences.ends)])

    def rows(self) -> RaggedArray:
        return RaggedArray(np.array(self._tokens, dtype=np.int64), np.array(self._ends, dtype=np.int64))

    def _add(self, word: bytes, size: int) -> list[int]:
        if len(word) > size and len(self._tokens) + len(word) // size > self._most_tokens:
            parts = [word[start : start + size] for start in range(0, len(word), size)]
            return [self._numbers[part] if part in self._numbers else self._number(part) for part in parts]
        return [self._number(word)]

    def _number(self, word: bytes) -> int:
        number = self._numbers[word] = len(self._ends)
        self._tokens.frombytes(word)
        self._ends.append(len(self._tokens))
        return number

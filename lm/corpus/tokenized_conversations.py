"""Conversations on disk: token shards, an index of their ends, and which tokens the assistant writes.

A split's shards (see `lm.corpus.shards`) hold its conversations one after another, as the chat template of the
tokenizer writes them. `train-examples.npy` and `validation-examples.npy` have a record (`EXAMPLE_DTYPE`) per
conversation, as of examples; `train-replies.npy` and `validation-replies.npy` have the UTF-8 bytes that each token of
the assistant spells, 0 for end-of-turn tokens, and -1 for all other tokens. `validation.jsonl` has the held-out
conversations as messages.

Conversations are held out by a hash of their messages.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lm import files
from lm.corpus.manifest import SplitName, SplitRecord
from lm.corpus.shards import (
    ArrayWriter,
    ChunkSplit,
    StoredChunk,
    WrittenShards,
    array_file_name,
    merged_splits,
    read_in_blocks,
    token_dtype,
)
from lm.corpus.text_corpus import BytesCallback, Chunk, Corpus, write_splits
from lm.corpus.tokenized_examples import (
    RowMerger,
    RowWriter,
    SplitRow,
    StoredExamples,
    assign_splits,
    count_row_copies,
    open_examples,
)
from lm.errors import InputError
from lm.text.conversations import Conversation
from lm.text.text_files import TextFile, are_conversations
from lm.tokenizer.chat_template import EncodedConversation
from lm.tokenizer.tokenizer import Tokenizer

HELD_OUT_FILE = "validation.jsonl"
_REPLIES, _MAX_TOKEN_BYTES = "replies", np.iinfo(np.int16).max


@dataclass(frozen=True)
class StoredConversations:
    """The conversations of a split, memory-mapped.

    Attributes:
        reply_bytes: (tokens of the split,) UTF-8 bytes that each token spells; -1 where the assistant doesn't write,
            such as the first token of a conversation.
        numbers: of the selected conversations; None for all.
    """

    examples: StoredExamples
    reply_bytes: npt.NDArray[np.int16]
    numbers: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.examples) if self.numbers is None else len(self.numbers)

    @property
    def records(self) -> npt.NDArray[Any]:
        return self.examples.records if self.numbers is None else self.examples.records[self.numbers]

    def lengths(self) -> npt.NDArray[np.int64]:
        return self.examples.lengths() if self.numbers is None else self.examples.lengths()[self.numbers]

    def read(self, number: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the tokens of a conversation, and of each whether the assistant writes it."""
        row = number if self.numbers is None else int(self.numbers[number])
        ids, end = self.examples.read(row)[0], int(self.examples.records["end"][row])
        return ids, self.reply_bytes[end - len(ids) : end] >= 0

    def with_replies_within(self, context: int) -> StoredConversations:
        """Return the conversations in whose first `context` + 1 tokens the assistant writes."""
        has_reply = self.count_within(context)[:, 0] > 0
        return self if has_reply.all() else replace(self, numbers=np.flatnonzero(has_reply))

    def count_within(self, context: int) -> npt.NDArray[np.int64]:
        """Return (conversations, 2) tokens of the assistant in the first `context` + 1 of each, and their bytes."""
        ends, lengths = self.examples.records["end"].astype(np.int64), self.examples.lengths()
        counts = np.stack([self.examples.records[name].astype(np.int64) for name in ("learned", "bytes")], axis=1)
        for row in np.flatnonzero(lengths > context + 1).tolist():
            start = int(ends[row] - lengths[row])
            inside = self.reply_bytes[start : start + context + 1]
            counts[row] = (inside >= 0).sum(), inside.clip(0).sum()
        return counts


def open_conversations(folder: Path | str, split: SplitName) -> StoredConversations:
    """Open the conversations of a split of a prepared folder.

    Raises:
        InputError: the folder has no prepared conversations, or they are damaged.
    """
    examples, path = open_examples(folder, split), Path(folder) / array_file_name(split, _REPLIES)
    with contextlib.suppress(OSError, ValueError, EOFError):
        reply_bytes = np.load(path, mmap_mode="r")
        if (reply_bytes.dtype, reply_bytes.shape) == (np.int16, (len(examples.tokens),)):
            return StoredConversations(examples, reply_bytes)
    raise InputError(f"{path}: missing or damaged; prepare the conversations again")


def holds_conversations(corpus: Corpus) -> bool:
    """Return whether a corpus holds conversations to learn from; InputError if only some of its files do."""
    return are_conversations([summary.file for summary in (*corpus.files, *corpus.validation_files)])


class _ConversationWriter(RowWriter):
    """Writes the conversations of a chunk in one split, and the text of held-out ones."""

    def __init__(self, folder: Path, dtype: str, split: SplitName) -> None:
        super().__init__(folder, split, dtype=dtype)
        self._replies = ArrayWriter(folder / array_file_name(split, _REPLIES), dtype="int16", lasting=False)
        self._texts = (folder / HELD_OUT_FILE).open("w", encoding="utf-8") if split == "validation" else None

    def add(self, item: SplitRow[Conversation], encoded: EncodedConversation) -> None:
        sizes = np.array([len(text.encode()) for text in encoded.texts])
        self.append(item, np.array(encoded.ids), learned=sum(encoded.is_reply), learned_bytes=int(sizes.sum()))
        self._replies.append(np.where(encoded.is_reply, sizes.clip(max=_MAX_TOKEN_BYTES), -1).astype(np.int16))
        if self._texts is not None:
            self._texts.write(item.row.to_json() + "\n")

    def close(self) -> ChunkSplit:
        self._replies.close()
        if self._texts is not None:
            self._texts.close()
        return super().close()

    def discard(self) -> None:
        super().discard()
        self._replies.discard()
        if self._texts is not None:
            self._texts.close()


def write_conversation_chunk(
    chunk: Chunk, tokenizer: Tokenizer, folder: Path, done: BytesCallback | None
) -> dict[SplitName, ChunkSplit]:
    """Tokenize a chunk of conversations into an empty folder, with the tokenizer's chat template.

    Raises:
        InputError: the template refuses a conversation; the message names file and line.
    """
    template = tokenizer.chat_template
    if template is None:
        raise InputError("the tokenizer has no chat template, so it cannot encode conversations")

    def encode(group: Sequence[SplitRow[Conversation]]) -> list[EncodedConversation]:
        return [template.encode_replies(tokenizer, item.row.messages) for item in group]

    items = assign_splits(chunk, TextFile.conversations, Conversation.to_json)
    create = partial(_ConversationWriter, folder, token_dtype(tokenizer.vocab_size))
    return write_splits(items, encode, create, done)


class _ConversationMerger(RowMerger):
    """Merges the conversations of all chunks in one split, and the text of held-out ones."""

    def __init__(self, folder: Path, dtype: str, split: SplitName) -> None:
        super().__init__(folder, split, dtype=dtype)
        self._replies = ArrayWriter(folder / array_file_name(split, _REPLIES), dtype="int16")
        self._texts: list[str] = []
        self._text_file = folder / HELD_OUT_FILE

    def add(self, chunk: StoredChunk) -> None:
        super().add(chunk)
        for marks in read_in_blocks(chunk.array(self._split, _REPLIES)):
            self._replies.append(marks)
        if self._split == "validation":
            self._texts.append((chunk.folder / HELD_OUT_FILE).read_text(encoding="utf-8"))

    def close(self) -> SplitRecord:
        self._replies.close()
        if self._split == "validation":
            files.replace_text(self._text_file, "".join(self._texts))
        return super().close()

    def discard(self) -> None:
        super().discard()
        self._replies.discard()


def merge_conversation_chunks(chunks: Iterable[StoredChunk], tokenizer: Tokenizer, folder: Path) -> WrittenShards:
    with merged_splits(chunks, partial(_ConversationMerger, folder, token_dtype(tokenizer.vocab_size))) as splits:
        return WrittenShards(splits, count_row_copies(folder, splits, tokenizer))

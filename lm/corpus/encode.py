"""Encoding: the tokens of records, and which of them are learned, for training and scoring.

text            start, text, end; a start token that ends the previous document too is its end
example         start, prompt, completion, end: prompt and completion apart, so that training sees the boundary that
generation sees; completion and end are learned
conversation    as the chat template writes it; what the assistant writes is learned
prompt          a record that a model continues: a text without its end, or a conversation that ends with the user
pair            bare tokens of both sides; batches add the special tokens

A source token with a dependency tree is four integers: its ID and the three of
`lm.text.parallel_text.compute_tree_positions`, shared by all tokens of a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm.corpus import RaggedArray
from lm.errors import InputError, UsageError
from lm.text import Part, Record
from lm.text.decode import normalize_text
from lm.text.parallel_text import TreePositions, compute_tree_positions
from lm.tokenizer import Tokenizer, encode_pieces
from lm.tokenizer.chat_template import SpecialTokenFrame, build_example_frame, build_text_frame
from lm.tokenizer.offsets import TokenOffsets, assign_word_indices

Tokenizers = tuple[Tokenizer, Tokenizer | None]
"""Tokenizer of the text, or of targets, and of sources if they have their own."""

Integers = NDArray[np.int64]
Ids = Sequence[int] | NDArray[Any]

OUTSIDE_TREE = (-1, -1, -1)
"""The tree position of special tokens."""


@dataclass(slots=True)
class Encoded:
    """Tokens of a record, and what else the store keeps of it.

    Attributes:
        tokens: with special tokens; of a pair, the bare tokens of the target.
        learned: how many tokens are learned, of examples and conversations.
        bytes: UTF-8 bytes of the learned text.
        replies: (tokens,) bytes that each token of the assistant spells, -1 for all other tokens.
        spelled: (tokens,) what each token of the assistant spells.
        words: (tokens,) whether each token of a pair begins a word.
        source_tokens: bare tokens of the source.
        places: (source tokens, 3) tree positions.
    """

    tokens: NDArray[Any]
    learned: int = 0
    bytes: int = 0
    replies: Integers | None = None
    spelled: Sequence[str] = ()
    words: NDArray[np.bool_] | None = None
    source_tokens: NDArray[Any] | None = None
    source_words: NDArray[np.bool_] | None = None
    places: Integers | None = None


def encode(records: Sequence[Record], tokenizers: Tokenizers) -> list[Encoded]:
    """Encode records of one kind; InputError if a character has no token, or a chat template refuses a conversation."""
    kind, (tokenizer, source_tokenizer) = records[0].kind if records else "text", tokenizers
    if kind == "pairs":
        return _encode_pairs(records, tokenizer, source_tokenizer or tokenizer)
    if kind == "conversations":
        return [_encode_conversation(record, tokenizer) for record in records]
    return (_encode_examples if kind == "examples" else _encode_text)(records, tokenizer)


def encode_prompt(prompt: str | Sequence[Part], tokenizer: Tokenizer) -> list[int]:
    """Return the tokens that a model continues: of a text, read as files are, or of messages that end without reply.

    Raises:
        InputError: as of `encode`.
        UsageError: the text is empty, and the tokenizer has no start token.
    """
    if isinstance(prompt, str):
        record = Record.of_text(normalize_text(prompt))._replace(ends=False)
    else:
        record = Record(tuple(prompt))
    ids: list[int] = encode([record], (tokenizer, None))[0].tokens.tolist()
    if not ids:
        raise UsageError("the prompt is empty, and this tokenizer has no start-of-text token: give a prompt")
    return ids


def _encode_text(records: Sequence[Record], tokenizer: Tokenizer) -> list[Encoded]:
    frame = build_text_frame(tokenizer)
    after = frame.after if frame.after != frame.before else ()
    frames = (SpecialTokenFrame(frame.before * each.starts, after * each.ends) for each in records)
    return [Encoded(own.wrap(ids)) for own, ids in zip(frames, encode_pieces(records, tokenizer), strict=True)]


def _encode_examples(records: Sequence[Record], tokenizer: Tokenizer) -> list[Encoded]:
    frame = build_example_frame(tokenizer)
    prompts, completions = (
        tokenizer.encode_batch([record.parts[place].text for record in records]) for place in (0, 1)
    )
    return [
        Encoded(
            frame.wrap(prompt, completion),
            learned=len(completion) + len(frame.after),
            bytes=len(record.parts[1].text.encode()),
        )
        for record, prompt, completion in zip(records, prompts, completions, strict=True)
    ]


def _encode_conversation(record: Record, tokenizer: Tokenizer) -> Encoded:
    if tokenizer.chat_template is None:
        raise InputError("the tokenizer has no chat template, so it cannot encode conversations")
    encoded = tokenizer.chat_template.encode(tokenizer, record.parts)
    sizes = np.array([-1 if text is None else len(text.encode()) for text in encoded.texts], dtype=np.int64)
    return Encoded(
        np.array(encoded.ids),
        learned=int((sizes >= 0).sum()),
        bytes=int(sizes.clip(min=0).sum()),
        replies=sizes,
        spelled=[text or "" for text in encoded.texts],
    )


def _encode_pairs(records: Sequence[Record], tokenizer: Tokenizer, source_tokenizer: Tokenizer) -> list[Encoded]:
    trees = TreeReader(source_tokenizer)
    sources = source_tokenizer.encode_words([record.source or "" for record in records])
    targets = tokenizer.encode_words([record.text for record in records])
    found = []
    for record, (source, source_words), (target, words) in zip(records, sources, targets, strict=True):
        encoded = Encoded(
            target, words=_word_starts(words), source_tokens=source, source_words=_word_starts(source_words)
        )
        if record.dependency_heads is not None:  # words are separated by white space then: each has one position
            numbers = trees.words(record.source or "", source)
            encoded.source_words = _word_starts(source_words) | _word_starts(numbers)
            encoded.places = compute_tree_positions(record.dependency_heads)[numbers]
        found.append(encoded)
    return found


def _word_starts(numbers: NDArray[Any]) -> NDArray[np.bool_]:
    return np.diff(numbers.astype(np.int64), prepend=-1) != 0


class TreeReader:
    """Maps tokens to words and their tree positions."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._offsets = TokenOffsets(tokenizer)

    def words(self, sentence: str, ids: Ids) -> Integers:
        """Return (tokens,) word indices, from 0; see `assign_word_indices`."""
        ids = np.asarray(ids)
        ends = self._offsets.ends(Record.of_text(sentence), ids).tolist() if len(ids) else []
        return np.array(assign_word_indices(sentence, ends), dtype=np.int64)

    def read(self, sentence: str, ids: Ids, heads: Sequence[int]) -> Integers:
        """Return (tokens, 4) tokens of a sentence with the tree positions of their words."""
        return attach_positions(ids, compute_tree_positions(heads)[self.words(sentence, ids)])


def attach_positions(ids: Ids, positions: TreePositions) -> Integers:
    """Return (tokens, 4) IDs with tree positions."""
    return np.concatenate([np.asarray(ids, dtype=np.int64)[:, None], positions], axis=1)


def wrap_sources(sources: RaggedArray, frame: SpecialTokenFrame) -> RaggedArray:
    """Add special tokens to sources; where these have trees, outside of them."""
    if sources.values.ndim == 1:
        return sources.wrap_rows(frame.before, frame.after)
    before, after = ([(index, *OUTSIDE_TREE) for index in ids] for ids in (frame.before, frame.after))
    return sources.wrap_rows(before, after)

"""Encoding: the tokens of records, and which of them are learned, for training and scoring.

text            start, text, end; a start token that ends the previous document too is its end
example         start, prompt, completion, end: prompt and completion apart, so that training sees the boundary that
generation sees; completion and end are learned
conversation    as the chat template writes it; what the assistant writes is learned
pair            bare tokens of both sides; batches add the special tokens
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm.config.data import DataKind
from lm.corpus.tree_positions import TreeReader
from lm.errors import InputError
from lm.text.dependency_trees import compute_tree_positions
from lm.text.records import Record
from lm.tokenizer.special_tokens import build_example_frame, build_text_frame
from lm.tokenizer.tokenizer import Tokenizer, encode_pieces

Tokenizers = tuple[Tokenizer, Tokenizer | None]
"""Tokenizer of the text, or of targets, and of sources if they have their own."""

_MAX_TOKEN_BYTES = np.iinfo(np.int16).max


@dataclass(slots=True)
class Encoded:
    """Tokens of a record, and what else the store keeps of it.

    Attributes:
        tokens: with special tokens; of a pair, the bare tokens of the target.
        learned: how many tokens are learned, of examples and conversations.
        bytes: UTF-8 bytes of the learned text.
        label: the completion of an example, without delimiter.
        replies: (tokens,) bytes that each token of the assistant spells, -1 for all other tokens.
        spelled: (tokens,) what each token of the assistant spells.
        words: (tokens,) whether each token of a pair begins a word.
        source: bare tokens of the source.
        places: (source tokens, 3) tree positions.
    """

    tokens: NDArray[Any]
    learned: int = 0
    bytes: int = 0
    label: str = ""
    replies: NDArray[np.int16] | None = None
    spelled: Sequence[str] = ()
    words: NDArray[np.bool_] | None = None
    source: NDArray[Any] | None = None
    source_words: NDArray[np.bool_] | None = None
    places: NDArray[np.int64] | None = None


def check_tokenizers(kind: DataKind, tokenizers: Tokenizers) -> None:
    """Raise an error unless the tokenizers can encode records of a kind.

    Raises:
        InputError: there is no chat template, which conversations need.
        UsageError: there is no end token, which examples and pairs need.
    """
    if kind == "conversations" and tokenizers[0].chat_template is None:
        raise InputError("the tokenizer has no chat template, so it cannot encode conversations")
    if kind in ("examples", "pairs"):
        for tokenizer in filter(None, tokenizers):
            build_example_frame(tokenizer)


def encode(records: Sequence[Record], tokenizers: Tokenizers) -> list[Encoded]:
    """Encode records of one kind; InputError if a character has no token, or a chat template refuses a conversation."""
    kind, (tokenizer, source_tokenizer) = records[0].kind if records else "text", tokenizers
    if kind == "pairs":
        return _encode_pairs(records, tokenizer, source_tokenizer or tokenizer)
    if kind == "conversations":
        return [_encode_conversation(record, tokenizer) for record in records]
    return (_encode_examples if kind == "examples" else _encode_text)(records, tokenizer)


def _encode_text(records: Sequence[Record], tokenizer: Tokenizer) -> list[Encoded]:
    frame = build_text_frame(tokenizer)
    after = frame.after if frame.after != frame.before else ()
    found = []
    for record, own in zip(records, encode_pieces(records, tokenizer), strict=True):
        parts = (frame.before if record.starts else (), own, after if record.ends else ())
        found.append(Encoded(np.concatenate([np.array(part, dtype=own.dtype) for part in parts])))
    return found


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
            label=record.label,
        )
        for record, prompt, completion in zip(records, prompts, completions, strict=True)
    ]


def _encode_conversation(record: Record, tokenizer: Tokenizer) -> Encoded:
    assert tokenizer.chat_template is not None, "checked by check_tokenizers"
    encoded = tokenizer.chat_template.encode_replies(tokenizer, record.parts)
    sizes = np.array([-1 if text is None else len(text.encode()) for text in encoded.texts], dtype=np.int64)
    return Encoded(
        np.array(encoded.ids),
        learned=int((sizes >= 0).sum()),
        bytes=int(sizes.clip(min=0).sum()),
        replies=sizes.clip(max=_MAX_TOKEN_BYTES).astype(np.int16),
        spelled=[text or "" for text in encoded.texts],
    )


def _encode_pairs(records: Sequence[Record], tokenizer: Tokenizer, source_tokenizer: Tokenizer) -> list[Encoded]:
    trees = TreeReader(source_tokenizer)
    sources = source_tokenizer.encode_words([record.source or "" for record in records])
    targets = tokenizer.encode_words([record.text for record in records])
    found = []
    for record, (source, source_words), (target, words) in zip(records, sources, targets, strict=True):
        encoded = Encoded(target, words=_word_starts(words), source=source, source_words=_word_starts(source_words))
        if record.dependency_heads is not None:  # words are separated by white space then: each has one position
            numbers = trees.words(record.source or "", source)
            encoded.source_words = _word_starts(source_words) | _word_starts(numbers)
            encoded.places = compute_tree_positions(record.dependency_heads)[numbers]
        found.append(encoded)
    return found


def _word_starts(numbers: NDArray[Any]) -> NDArray[np.bool_]:
    return np.diff(numbers.astype(np.int64), prepend=-1) != 0

"""Encoding: the tokens of a document, example, conversation or sentence pair, and which of them are learned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm.corpus.tree_positions import TreeReader
from lm.errors import InputError, UsageError
from lm.text.conversations import Conversation
from lm.text.dependency_trees import compute_tree_positions
from lm.text.documents import TextPiece
from lm.text.examples import Example
from lm.text.parallel_text import SentencePair
from lm.tokenizer.special_tokens import build_example_frame, build_text_frame
from lm.tokenizer.tokenizer import Tokenizer

Record = TextPiece | Example | Conversation | SentencePair

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
        words: (tokens,) whether each token of a pair begins a word.
        source: bare tokens of the source.
        places: (source tokens, 3) tree positions.
    """

    tokens: NDArray[Any]
    learned: int = 0
    bytes: int = 0
    label: str = ""
    replies: NDArray[np.int16] | None = None
    words: NDArray[np.bool_] | None = None
    source: NDArray[Any] | None = None
    source_words: NDArray[np.bool_] | None = None
    places: NDArray[np.int64] | None = None


def make_encoder(
    kind: str, tokenizer: Tokenizer, source_tokenizer: Tokenizer | None = None
) -> Callable[[Sequence[Any]], list[Encoded]]:
    """Return the function that encodes records of a kind.

    Args:
        tokenizer: of the targets; of the sources too, unless they have their own.

    Raises:
        InputError: the tokenizer has no chat template, and needs one.
        UsageError: the tokenizer has no end token, and needs one.
    """
    if kind == "text":
        return lambda pieces: _encode_text(pieces, tokenizer)
    if kind == "examples":
        build_example_frame(tokenizer)
        return lambda examples: _encode_examples(examples, tokenizer)
    if kind == "conversations":
        if tokenizer.chat_template is None:
            raise InputError("the tokenizer has no chat template, so it cannot encode conversations")
        return lambda conversations: [_encode_conversation(one, tokenizer) for one in conversations]
    source = source_tokenizer or tokenizer
    if tokenizer.end_of_text is None or source.end_of_text is None:
        raise UsageError("the tokenizer has no end-of-text token, so no sentence could end; use one that has")
    trees = TreeReader(source)
    return lambda pairs: _encode_pairs(pairs, tokenizer, source, trees)


def _encode_text(pieces: Sequence[TextPiece], tokenizer: Tokenizer) -> list[Encoded]:
    """Encode pieces; a document begins with the start token, and ends with the end token if that is another one.

    If it is the same, the start token of the next document ends the previous one.
    """
    frame = build_text_frame(tokenizer)
    after = frame.after if frame.after != frame.before else ()
    found = []
    for piece, ids in zip(pieces, tokenizer.encode_batch([one.context + one.text for one in pieces]), strict=True):
        own = ids[piece.context_tokens :]
        before = frame.before if piece.starts_document else ()
        found.append(Encoded(np.concatenate([np.array(part, dtype=own.dtype) for part in (before, own)])))
        if piece.ends_document and after:
            found[-1].tokens = np.append(found[-1].tokens, np.array(after, dtype=own.dtype))
    return found


def _encode_examples(examples: Sequence[Example], tokenizer: Tokenizer) -> list[Encoded]:
    """Encode prompt and completion separately, so that training sees the boundary that generation sees."""
    frame = build_example_frame(tokenizer)
    prompts = tokenizer.encode_batch([example.prompt for example in examples])
    completions = tokenizer.encode_batch([example.completion for example in examples])
    return [
        Encoded(
            frame.wrap(prompt, completion),
            learned=len(completion) + len(frame.after),
            bytes=len(example.completion.encode()),
            label=example.label,
        )
        for example, prompt, completion in zip(examples, prompts, completions, strict=True)
    ]


def _encode_conversation(conversation: Conversation, tokenizer: Tokenizer) -> Encoded:
    assert tokenizer.chat_template is not None
    encoded = tokenizer.chat_template.encode_replies(tokenizer, conversation.messages)
    sizes = np.array([len(text.encode()) for text in encoded.texts], dtype=np.int64)
    return Encoded(
        np.array(encoded.ids),
        learned=sum(encoded.is_reply),
        bytes=int(sizes.sum()),
        replies=np.where(encoded.is_reply, sizes.clip(max=_MAX_TOKEN_BYTES), -1).astype(np.int16),
    )


def _encode_pairs(
    pairs: Sequence[SentencePair], tokenizer: Tokenizer, source_tokenizer: Tokenizer, trees: TreeReader
) -> list[Encoded]:
    sources = source_tokenizer.encode_words([pair.source for pair in pairs])
    targets = tokenizer.encode_words([pair.target for pair in pairs])
    found = []
    for pair, (source, source_words), (target, words) in zip(pairs, sources, targets, strict=True):
        encoded = Encoded(target, words=_word_starts(words), source=source, source_words=_word_starts(source_words))
        if pair.heads is not None:  # words are separated by white space then, so that each has one position
            numbers = trees.words(pair.source, source)
            encoded.source_words = _word_starts(source_words) | _word_starts(numbers)
            encoded.places = compute_tree_positions(pair.heads)[numbers]
        found.append(encoded)
    return found


def _word_starts(numbers: NDArray[Any]) -> NDArray[np.bool_]:
    return np.diff(numbers.astype(np.int64), prepend=-1) != 0

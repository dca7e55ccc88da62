"""Surprisal of completions after their prompts, and of replies in conversations: what fine-tuning minimises."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm.data.batch import Batch
from lm.data.bucketing import batched, length_batches
from lm.data.example_data import completion_length_error, truncate_prompt
from lm.errors import InputError
from lm.evaluation.batch_scoring import Nats, score_batches
from lm.evaluation.perplexity import PerplexityResult
from lm.model.transformer import DecoderOnly
from lm.processes import ParallelMap
from lm.text.conversations import Conversation
from lm.text.documents import TextPiece
from lm.text.examples import Example
from lm.tokenizer.offsets import RoundTripLoss, TokenOffsets
from lm.tokenizer.special_tokens import build_example_frame
from lm.tokenizer.tokenizer import Tokenizer

_EXAMPLES_AT_ONCE = 4096
"""Examples sorted by length together: enough that batches have hardly any padding."""


@dataclass(frozen=True)
class CompletionScores:
    """Progress of scoring completions.

    Attributes:
        result: totals so far, end tokens included; `documents` counts examples or conversations.
        shortened: how many so far were truncated to fit the context.
    """

    result: PerplexityResult
    shortened: int


def score_completions(
    model: DecoderOnly,
    tokenizer: Tokenizer,
    examples: Iterable[Example],
    *,
    context: int,
    batch_size: int,
    name: str,
    parallel_map: ParallelMap[Batch, list[Nats]] | None = None,
) -> Iterator[CompletionScores]:
    """Score examples in bounded memory, as in training (see `lm.data.example_data`).

    Args:
        parallel_map: scores batches in other processes, with `score_batch`.

    Yields:
        The totals after every few thousand examples, at least once; the last are final.

    Raises:
        InputError: a text cannot be encoded, a completion exceeds the context, or the model outputs NaN.
        UsageError: the tokenizer has no start or end token.
    """
    encoded = (_encode_examples(chunk, tokenizer, context, name) for chunk in batched(examples, _EXAMPLES_AT_ONCE))
    yield from _score(model, encoded, batch_size=batch_size, name=name, parallel_map=parallel_map)


def score_conversations(
    model: DecoderOnly,
    tokenizer: Tokenizer,
    conversations: Iterable[Conversation],
    *,
    context: int,
    batch_size: int,
    name: str,
    parallel_map: ParallelMap[Batch, list[Nats]] | None = None,
) -> Iterator[CompletionScores]:
    """Score the assistant's tokens of conversations, as in training (see `lm.data.conversation_data`).

    Arguments and results are those of `score_completions`. Conversations without a reply within the context are left
    out, and count as shortened.

    Raises:
        InputError: a conversation cannot be encoded, or the model outputs NaN.
    """
    encoded = (
        _encode_conversations(chunk, tokenizer, context, name) for chunk in batched(conversations, _EXAMPLES_AT_ONCE)
    )
    yield from _score(model, encoded, batch_size=batch_size, name=name, parallel_map=parallel_map)


def _score(
    model: DecoderOnly,
    encoded: Iterable[list[_EncodedExample]],
    *,
    batch_size: int,
    name: str,
    parallel_map: ParallelMap[Batch, list[Nats]] | None,
) -> Iterator[CompletionScores]:
    result, count = PerplexityResult(), 0
    for framed in encoded:
        count += sum(example.is_shortened for example in framed)
        scored = [example for example in framed if example.is_scored.any()]
        numbers = length_batches([len(example.ids) for example in scored], rows=batch_size)
        parts = [[scored[row] for row in rows] for rows in numbers]
        batches = (
            Batch.from_masked_rows(
                [completion.ids for completion in part], [completion.is_scored for completion in part]
            )
            for part in parts
        )
        for part, of_batch in zip(parts, score_batches(model, batches, parallel_map), strict=True):
            for completion, nats in zip(part, of_batch, strict=True):
                where = f"{name}: line {completion.line}"
                result.add_document(nats, completion.texts, completion.round_trip_losses, where=where)
        yield CompletionScores(result, count)
    yield CompletionScores(result, count)


@dataclass(frozen=True)
class _EncodedExample:
    """An encoded example or conversation.

    Attributes:
        ids: (tokens,) all tokens.
        is_scored: (tokens,) which of them are scored.
        is_shortened: whether some were left out, to fit the context.
        round_trip_losses: what encoding loses of the texts.
    """

    texts: Sequence[str]
    line: int
    ids: NDArray[Any]
    is_scored: NDArray[np.bool_]
    is_shortened: bool
    round_trip_losses: Sequence[RoundTripLoss]


def _encode_examples(
    examples: Sequence[Example], tokenizer: Tokenizer, context: int, name: str
) -> list[_EncodedExample]:
    frame, offsets, framed = build_example_frame(tokenizer), TokenOffsets(tokenizer), []
    for example in examples:
        where = f"{name}: line {example.line}"
        try:
            prompt, completion = tokenizer.encode_batch([example.prompt, example.completion])
        except InputError as error:
            raise error.at(where) from None
        learned = len(completion) + len(frame.after)
        if problem := completion_length_error(learned, context=context):
            raise InputError(f"{where}: {problem}; leave it out")
        whole = frame.wrap(prompt, completion)
        ids = truncate_prompt(whole, context=context)
        loss = offsets.round_trip_loss(TextPiece(example.completion, starts_document=True), completion)
        is_scored = np.arange(len(ids)) >= len(ids) - learned
        framed.append(
            _EncodedExample([example.completion], example.line, ids, is_scored, len(ids) < len(whole), [loss])
        )
    return framed


def _encode_conversations(
    conversations: Sequence[Conversation], tokenizer: Tokenizer, context: int, name: str
) -> list[_EncodedExample]:
    template, offsets, framed = tokenizer.chat_template, TokenOffsets(tokenizer), []
    assert template is not None, "the caller scores conversations of a run with a chat template only"
    for conversation in conversations:
        where = f"{name}: line {conversation.line}"
        try:
            encoded = template.encode_replies(tokenizer, conversation.messages)
            within = [column[: context + 1] for column in encoded]
            runs = itertools.groupby(zip(*within[1:], strict=True), key=itemgetter(0))
            texts = ["".join(text for _, text in run) for is_reply, run in runs if is_reply]
            losses = [
                offsets.round_trip_loss(TextPiece(text, starts_document=True), own)
                for text, own in zip(texts, tokenizer.encode_batch(texts), strict=True)
            ]
        except InputError as error:
            raise error.at(where) from None
        ids, is_reply = map(np.array, within[:2])
        framed.append(_EncodedExample(texts, conversation.line, ids, is_reply, len(ids) < len(encoded.ids), losses))
    return framed

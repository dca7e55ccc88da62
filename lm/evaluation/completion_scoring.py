"""Surprisal of given completions after their prompts, the quantity that supervised fine-tuning minimises."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm.data.batch import Batch
from lm.data.bucketing import length_batches
from lm.data.examples import completion_length_error, truncate_prompt
from lm.errors import InputError, nan_logits_error
from lm.evaluation.perplexity import PerplexityResult
from lm.evaluation.scoring import Nats, score_batches
from lm.model.transformer import DecoderOnly
from lm.processes import ParallelMap
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
        result: totals so far, end tokens included; `documents` counts examples.
        shortened: examples so far whose prompt was truncated to fit the context.
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
    """Score examples in bounded memory, as in training (see `lm.data.examples`).

    Args:
        model: in eval mode.
        tokenizer: the model's.
        examples: prompts and completions.
        context: window length in tokens.
        batch_size: examples scored together.
        name: of the file, for messages.
        parallel_map: scores batches in other processes, with `score_batch`.

    Yields:
        The totals after every few thousand examples, at least once; the last are final.

    Raises:
        InputError: a text cannot be encoded, a completion exceeds the context, or the model outputs NaN.
        UsageError: the tokenizer has no start or end token.
    """
    result, count, rows = PerplexityResult(), 0, iter(examples)
    while chunk := list(islice(rows, _EXAMPLES_AT_ONCE)):
        framed = _encode_examples(chunk, tokenizer, context, name)
        count += sum(example.is_shortened for example in framed)
        numbers = length_batches([len(example.ids) for example in framed], rows=batch_size)
        parts = [[framed[row] for row in rows] for rows in numbers]
        batches = (Batch.from_rows([each.ids for each in part], [each.learned for each in part]) for part in parts)
        for part, scored in zip(parts, score_batches(model, batches, parallel_map), strict=True):
            for each, nats in zip(part, scored, strict=True):
                _add_scores(result, each, nats, name)
        yield CompletionScores(result, count)
    yield CompletionScores(result, count)


def _add_scores(result: PerplexityResult, framed: _EncodedExample, nats: Nats, name: str) -> None:
    """Count a completion; InputError if its surprisal is NaN."""
    example = framed.example
    if not np.isfinite(nats).all():
        raise nan_logits_error(f"{name}: line {example.line}")
    result.add(nats)
    result.documents += 1
    result.words += len(example.completion.split())
    result.bytes += len(example.completion.encode())
    result.add_round_trip_loss(framed.round_trip_loss)


@dataclass(frozen=True)
class _EncodedExample:
    """An encoded example.

    Attributes:
        example: as text.
        ids: (tokens,) start, prompt, completion, end.
        learned: how many of the last tokens are scored.
        is_shortened: whether the prompt was truncated.
        loss: what encoding loses of the completion.
    """

    example: Example
    ids: NDArray[Any]
    learned: int
    is_shortened: bool
    round_trip_loss: RoundTripLoss


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
        framed.append(_EncodedExample(example, ids, learned, len(ids) < len(whole), loss))
    return framed

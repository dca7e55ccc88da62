"""The surprisal of given completions, each after its prompt: what fine-tuning on examples makes smaller."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from lm.errors import InputError, UsageError
from lm.evaluation.perplexity import Tally
from lm.evaluation.scoring import score_windows
from lm.evaluation.windows import Window
from lm.model.transformer import DecoderOnly
from lm.text.examples import Example
from lm.tokenizer.tokenizer import Tokenizer

_EXAMPLES_AT_ONCE = 4096  # are put in order of length together


@dataclass(frozen=True)
class CompletionsScored:
    """How far scoring has come.

    Attributes:
        tally: sums over the completions so far, the token that ends each included; `documents` counts examples.
        shortened: examples so far whose prompt lost its beginning, as they are longer than the context.
    """

    tally: Tally
    shortened: int


def measure_completions(
    model: DecoderOnly,
    tokenizer: Tokenizer,
    examples: Iterable[Example],
    *,
    context: int,
    batch_size: int,
    name: str,
) -> Iterator[CompletionsScored]:
    """Score examples of a file of any length, as training does (see `lm.data.examples.batches`).

    Args:
        model: in eval mode.
        tokenizer: the model's.
        examples: prompts and completions.
        context: tokens that the model reads at once.
        batch_size: examples scored together.
        name: of the file, for messages.

    Yields:
        The sums after every few thousand examples, at least once; the last are those of all.

    Raises:
        InputError: a text cannot be encoded, a completion does not fit into the context, or the model's output is not
            a number.
        UsageError: the tokenizer has no tokens that start and end a text.
    """
    tally, shortened, rows = Tally(), 0, iter(examples)
    while chunk := list(islice(rows, _EXAMPLES_AT_ONCE)):
        windows = _windows(chunk, tokenizer, context, name)
        shortened += sum(window.is_shortened for window in windows)
        order = sorted(range(len(chunk)), key=lambda row: len(windows[row].window.tokens))
        for first in range(0, len(order), batch_size):
            batch = order[first : first + batch_size]
            scored = score_windows(model, [windows[row].window for row in batch])
            for row, nats in zip(batch, scored, strict=True):
                if not np.isfinite(nats).all():
                    where = f"{name}: line {chunk[row].line}"
                    raise InputError(f"{where}: the model's output is not a number; the model is damaged")
                tally.add(nats)
                tally.documents += 1
                tally.words += len(chunk[row].completion.split())
                tally.bytes += len(chunk[row].completion.encode())
        yield CompletionsScored(tally, shortened)
    yield CompletionsScored(tally, shortened)


@dataclass(frozen=True)
class _Cut:
    window: Window
    is_shortened: bool


def _windows(examples: Sequence[Example], tokenizer: Tokenizer, context: int, name: str) -> list[_Cut]:
    """Each example as the model reads it; where it is too long, its prompt loses its beginning."""
    start, end = tokenizer.start_of_text, tokenizer.end_of_text
    if start is None or end is None:
        raise UsageError("the tokenizer has no tokens that start and end a text, which examples need")
    cut = []
    for example in examples:
        where = f"{name}: line {example.line}"
        try:
            prompt, completion = tokenizer.encode_batch([example.prompt, example.completion])
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        ids, learned = np.concatenate([[start], prompt, completion, [end]]).astype(np.int64), len(completion) + 1
        if learned > context:
            raise InputError(
                f"{where}: the completion is {learned - 1} tokens, and with its end does not fit into the context of "
                f"{context}; leave it out"
            )
        is_shortened = len(ids) > context + 1
        if is_shortened:
            ids = np.concatenate([ids[:1], ids[-context:]])
        cut.append(_Cut(Window(ids, scored=learned, unscored=0), is_shortened))
    return cut

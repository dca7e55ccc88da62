"""Generation as a stream of events: tokens as they are chosen, and why each sample ended."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lm.decoding.filters import History
from lm.decoding.sampling import NOTHING_LEFT, Sampler
from lm.decoding.steps import Steps
from lm.decoding.stop_strings import TextUntil
from lm.errors import UsageError
from lm.tokenizer.tokenizer import Tokenizer

FinishReason = Literal["length", "end_of_text", "stop"]
Alternatives = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Token:
    """A token was chosen.

    Attributes:
        row: number of the sample.
        id: the token; the one that ends a text is among them, and so are those of a stop string.
        logprob: nats, under the model itself (temperature 1, no filter).
        text: what is certain of the sample's text now and was not before.
        alternatives: the most likely tokens in this place and their log-probabilities, best first.
    """

    row: int
    id: int
    logprob: float
    text: str = ""
    alternatives: Alternatives = ()


@dataclass(frozen=True, slots=True)
class Finish:
    """A sample ended.

    Attributes:
        row: number of the sample.
        reason: it has all the tokens asked for ("length"), its text is complete ("end_of_text"), or a stop string came.
        text: the rest of the sample's text.
    """

    row: int
    reason: FinishReason
    text: str = ""


def prompt_ids(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """A prompt's ids, after the document-start token if the tokenizer has one.

    Raises:
        UsageError: there is neither a prompt nor a start token to begin from.
    """
    start = [] if tokenizer.start_of_text is None else [tokenizer.start_of_text]
    ids = [*start, *tokenizer.encode(prompt)]
    if not ids:
        raise UsageError("there is nothing to begin from: this tokenizer has no document-start token; give a prompt")
    return ids


def end_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokens that end a text: one, or none."""
    return () if tokenizer.end_of_text is None else (tokenizer.end_of_text,)


@torch.inference_mode()
def generate(
    steps: Steps,
    prompt: Sequence[int] | Tensor,
    sampler: Sampler,
    *,
    max_tokens: int | Sequence[int],
    stop_ids: Collection[int] = (),
    n: int = 1,
    first: int = 0,
    numbers: Sequence[int] = (),
    texts: Sequence[TextUntil] = (),
    alternatives: int = 0,
) -> Iterator[Token | Finish]:
    """Continue a prompt, or one for each of several sources, in samples side by side; those that end leave the batch.

    Args:
        steps: of a model, with nothing fed yet.
        prompt: ids, at least one; or (sources, length) of them.
        sampler: chooses the tokens; sample i draws the same numbers whatever `n` and `first`.
        max_tokens: how many tokens a sample may have, at least 1; for all samples, or for each.
        stop_ids: tokens that end a sample.
        n: how many samples of each prompt.
        first: number of the first sample; the others follow.
        numbers: of all samples, instead.
        texts: one a sample, if text is wanted, or is to end at a stop string.
        alternatives: how many of the most likely tokens come with each token.

    Yields:
        Tokens in the order they come, a round for all samples after another, and one Finish for each sample.

    Raises:
        UsageError: the sampler rules out every token.
    """
    tokens = prompt.cpu() if isinstance(prompt, Tensor) else torch.tensor([list(prompt)])
    length, sources = tokens.shape[1], torch.arange(len(tokens)).repeat_interleave(n)
    logits = steps.feed(tokens, last_only=True)[:, -1]
    if n > 1:
        steps.reorder(sources)
        logits, tokens = logits[sources.to(logits.device)], tokens[sources]
    numbers = numbers or range(first, first + len(sources))
    limits = [max_tokens] * len(sources) if isinstance(max_tokens, int) else max_tokens
    rows = [
        _Row(number, limit, sampler.generator(number), texts[i] if texts else None)
        for i, (number, limit) in enumerate(zip(numbers, limits, strict=True))
    ]
    while True:
        chosen, logprobs = sampler.choose(logits, [row.generator for row in rows], History(tokens, length))
        others = _most_likely(logits, alternatives)
        going = []
        ids, nats = torch.stack((chosen.double(), logprobs.double())).tolist()  # the one transfer of a step
        for index, (row, token, logprob) in enumerate(zip(rows, map(int, ids), nats, strict=True)):
            if token == NOTHING_LEFT:
                raise UsageError("no token is left to choose: --logit-bias or --no-repeat-ngram rules out every one")
            fresh = row.text.feed(token) if row.text else ""
            yield Token(row.number, token, logprob, fresh, others[index] if others else ())
            if token in stop_ids or row.is_stopped or tokens.shape[1] + 1 - length >= row.limit:
                yield row.finish("end_of_text" if token in stop_ids else "length")
            else:
                going.append(index)
        if not going:
            return
        tokens = torch.cat((tokens.to(chosen.device), chosen[:, None]), dim=1)
        if len(going) < len(rows):
            kept = torch.tensor(going)
            steps.reorder(kept)
            tokens, rows = tokens[kept.to(tokens.device)], [rows[index] for index in going]
        logits = steps.feed(tokens[:, -1:])[:, -1]


@dataclass(frozen=True, slots=True)
class _Row:
    """A sample that goes on."""

    number: int
    limit: int
    generator: random.Random
    text: TextUntil | None

    @property
    def is_stopped(self) -> bool:
        return self.text is not None and self.text.stopped

    def finish(self, reason: FinishReason) -> Finish:
        rest = self.text.finish() if self.text else ""  # a stop string may be complete only now
        return Finish(self.number, "stop" if self.is_stopped else reason, rest)


def _most_likely(logits: Tensor, k: int) -> list[Alternatives]:
    """The `k` best tokens of each row of (rows, vocabulary) logits."""
    if not k:
        return []
    best = logits.log_softmax(-1).topk(min(k, logits.shape[-1]))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [tuple(zip(ids, nats, strict=True)) for ids, nats in pairs]

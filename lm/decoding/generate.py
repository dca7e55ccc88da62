"""Generation as a stream of events: tokens as they are chosen, and why each sample ended."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lm.decoding.filters import History
from lm.decoding.sampling import NOTHING_LEFT, Sampler, nothing_left
from lm.decoding.steps.steps import Steps
from lm.decoding.stop_strings import TextUntil

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


@dataclass(frozen=True, slots=True)
class Row:
    """A sample that is asked for.

    Attributes:
        number: of the sample; it and the sampler's seed decide what is drawn.
        max_tokens: how many tokens the sample may have, at least 1.
        text: makes text of the tokens, and may end the sample at a stop string; None if no text is wanted.
    """

    number: int
    max_tokens: int
    text: TextUntil | None = None


@torch.inference_mode()
def generate(
    steps: Steps,
    prompts: Tensor,
    rows: Sequence[Row],
    sampler: Sampler,
    *,
    stop_ids: Collection[int] = (),
    alternatives: int = 0,
) -> Iterator[Token | Finish]:
    """Continue prompts in samples side by side; those that end leave the batch.

    Args:
        steps: of a model, with nothing fed yet.
        prompts: (prompts, length) ids; at least one each.
        rows: the samples: as many of the first prompt as of each other, one prompt after another.
        sampler: chooses the tokens; a sample draws the same numbers whatever samples are beside it.
        stop_ids: tokens that end a sample.
        alternatives: how many of the most likely tokens come with each token.

    Yields:
        Tokens in the order they come, a round for all samples after another, and one Finish for each sample.

    Raises:
        UsageError: the sampler rules out every token.
    """
    samples = [_Sample(row, sampler.stream(row.number), row.max_tokens) for row in rows]
    tokens, logits = _read(steps, prompts, len(rows) // len(prompts))
    while True:
        history = History(tokens, prompts.shape[1])
        chosen, logprobs = sampler.choose(logits, [sample.stream for sample in samples], history)
        choices = zip(*_transferred(chosen, logprobs), _most_likely(logits, alternatives), strict=True)
        for sample, (token, logprob, others) in zip(samples, choices, strict=True):
            yield from sample.take(token, logprob, others, stop_ids)
        places = [place for place, sample in enumerate(samples) if not sample.is_finished]
        if not places:
            return
        tokens = torch.cat((tokens.to(chosen.device), chosen[:, None]), dim=1)
        if len(places) < len(samples):
            kept = torch.tensor(places)
            steps.reorder(kept)
            tokens, samples = tokens[kept.to(tokens.device)], [samples[place] for place in places]
        logits = steps.feed(tokens[:, -1:])[:, -1]


def _read(steps: Steps, prompts: Tensor, copies: int) -> tuple[Tensor, Tensor]:
    """Feed the prompts, each once, and give each its rows.

    Returns:
        (rows, length) ids, and (rows, vocabulary) logits of the tokens that follow.
    """
    tokens = prompts.cpu()
    logits = steps.feed(tokens, last_only=True)[:, -1]
    if copies == 1:
        return tokens, logits
    rows = torch.arange(len(tokens)).repeat_interleave(copies)
    steps.reorder(rows)
    return tokens[rows], logits[rows.to(logits.device)]


@dataclass(slots=True)
class _Sample:
    """A sample as it grows.

    Attributes:
        row: what was asked for.
        stream: random numbers for its draws.
        left: tokens that it may still have.
        is_finished: whether it has ended.
    """

    row: Row
    stream: random.Random
    left: int
    is_finished: bool = False

    def take(
        self, token: int, logprob: float, alternatives: Alternatives, stop_ids: Collection[int]
    ) -> Iterator[Token | Finish]:
        """Grow by a token, and end if it is the last one."""
        if token == NOTHING_LEFT:
            raise nothing_left()
        number, text = self.row.number, self.row.text
        self.left -= 1
        yield Token(number, token, logprob, text.feed(token) if text else "", alternatives)
        if token in stop_ids or self.left <= 0 or (text and text.stopped):
            self.is_finished = True
            rest = text.finish() if text else ""  # a stop string may be complete only now
            reason: FinishReason = "end_of_text" if token in stop_ids else "length"
            yield Finish(number, "stop" if text and text.stopped else reason, rest)


def _transferred(chosen: Tensor, logprobs: Tensor) -> tuple[list[int], list[float]]:
    """Ids and nats as Python's numbers, in one transfer from the device."""
    ids, nats = torch.stack((chosen.double(), logprobs.double())).tolist()
    return list(map(int, ids)), nats


def _most_likely(logits: Tensor, k: int) -> list[Alternatives]:
    """The `k` best tokens of each row of (rows, vocabulary) logits, and their log-probabilities."""
    if not k:
        return [()] * len(logits)
    best = logits.log_softmax(-1).topk(min(k, logits.shape[-1]))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [tuple(zip(ids, nats, strict=True)) for ids, nats in pairs]

"""Generation as a stream of events: tokens as they are chosen, and why each sample ended."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lm.decoding.filters import History
from lm.decoding.finite import check_number
from lm.decoding.sampling import NOTHING_LEFT, Sampler, nothing_left
from lm.decoding.session import DecodeSession, Source
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
        stream: random numbers for its draws; None for those of the sampler for its number.
    """

    number: int
    max_tokens: int
    text: TextUntil | None = None
    stream: random.Random | None = None


@torch.inference_mode()
def generate(
    session: DecodeSession,
    prompts: Tensor,
    rows: Sequence[Row],
    sampler: Sampler,
    *,
    sources: Sequence[Source] | None = None,
    stop_ids: Collection[int] = (),
    alternatives: int = 0,
) -> Iterator[Token | Finish]:
    """Continue prompts in samples side by side; those that end leave the batch.

    Args:
        session: with no rows yet.
        prompts: (prompts, length) ids; at least one each.
        rows: the samples: as many of the first prompt as of each other, one prompt after another.
        sampler: chooses the tokens; a sample draws the same numbers whatever samples are beside it.
        sources: of models that translate: see `DecodeSession.add`.
        stop_ids: tokens that end a sample.
        alternatives: how many of the most likely tokens come with each token.

    Yields:
        Tokens in the order they come, a round for all samples after another, and one Finish for each sample.

    Raises:
        InputError: the model's output is not a number.
        UsageError: the sampler rules out every token.
    """
    tokens, copies = prompts.cpu(), len(rows) // len(prompts)
    logits = session.add(tokens.tolist(), sources).last
    if copies > 1:  # each prompt is read once, and has its rows then
        numbers = torch.arange(len(tokens)).repeat_interleave(copies)
        session.select(numbers.tolist())
        tokens, logits = tokens[numbers], logits[numbers.to(logits.device)]
    history = History(tokens, prompts.shape[1])
    batch = Batch(session, sampler, rows, history, logits, stop_ids=stop_ids, alternatives=alternatives)
    while len(batch):
        yield from batch.advance()


class Batch:
    """Samples that grow side by side, a token each in a round; those that end leave."""

    def __init__(
        self,
        session: DecodeSession,
        sampler: Sampler,
        rows: Sequence[Row],
        history: History,
        logits: Tensor,
        *,
        stop_ids: Collection[int] = (),
        alternatives: int = 0,
    ) -> None:
        """Samples whose prompts were read; the other arguments are those of `generate`.

        Args:
            session: that has read the prompts.
            sampler: chooses the tokens.
            rows: the samples.
            history: their prompts.
            logits: (rows, vocabulary) of the tokens that follow.
            stop_ids: tokens that end a sample.
            alternatives: how many of the most likely tokens come with each token.
        """
        self._session, self._sampler, self._history, self._logits = session, sampler, history, logits
        self._stop_ids, self._alternatives = stop_ids, alternatives
        self._samples = self._begun(rows)

    def __len__(self) -> int:
        """Samples that have not ended."""
        return len(self._samples)

    def advance(self) -> Iterator[Token | Finish]:
        """Choose the next token of each sample, and have the session read it."""
        samples = self._samples
        chosen, logprobs = self._sampler.choose(self._logits, [sample.stream for sample in samples], self._history)
        choices = zip(*_transferred(chosen, logprobs), most_likely(self._logits, self._alternatives), strict=True)
        for sample, (token, logprob, others) in zip(samples, choices, strict=True):
            yield from sample.take(token, logprob, others, self._stop_ids)
        self._samples = [sample for sample in samples if not sample.is_finished]
        if not self._samples:
            return
        self._history = self._history.to(chosen.device).followed(chosen)
        if len(self._samples) < len(samples):
            kept = [place for place, sample in enumerate(samples) if not sample.is_finished]
            self._leave(kept)
            self._history = self._history.of(torch.tensor(kept))
        self._logits = self._session.extend(self._history.tokens[:, -1:]).last

    def _leave(self, kept: Sequence[int]) -> None:
        """Keep only some samples in the session."""
        self._session.select(kept)

    def _begun(self, rows: Sequence[Row]) -> list[Sample]:
        return [Sample(row, row.stream or self._sampler.stream(row.number), row.max_tokens) for row in rows]


@dataclass(slots=True)
class Sample:
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
        """Grow by a token, and end if it is the last one.

        Raises:
            InputError: the log-probability is not a number.
            UsageError: there is no token.
        """
        check_number(logprob)
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


def most_likely(logits: Tensor, k: int) -> list[Alternatives]:
    """The `k` best tokens of each row of (rows, vocabulary) logits, and their log-probabilities."""
    if not k:
        return [()] * len(logits)
    best = logits.log_softmax(-1).topk(min(k, logits.shape[-1]))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [tuple(zip(ids, nats, strict=True)) for ids, nats in pairs]

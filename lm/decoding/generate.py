"""Generation as a stream of events: tokens as they are chosen, and why each sample ended."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

import torch
from torch import Tensor

from lm.decoding.sampling import NOTHING_LEFT, History, Sampler, check_number, nothing_left
from lm.decoding.session import DecodeSession, Source
from lm.tokenizer.tokenizer import TextStream

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


@dataclass
class Continuation:
    """What follows a prompt: a sample, as far as it has grown, or a result of a search.

    Attributes:
        text: what is certain of it, without special tokens, up to the first stop string.
        tokens: ids; the one that ended the text is among them, and so are those of a stop string.
        logprobs: of each token, in nats, under the model itself.
        alternatives: to each token of a sample, if they were asked for.
        finish_reason: see `Finish`; None while a sample grows, "interrupted" where it was not left to end.
        score: of a result of a search, see `Hypothesis`.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    alternatives: list[Alternatives] = field(default_factory=list)
    finish_reason: FinishReason | Literal["interrupted"] | None = None
    score: float | None = None

    def take(self, event: Token | Finish) -> None:
        """Grow by an event of this sample."""
        if isinstance(event, Token):
            self.tokens.append(event.id)
            self.logprobs.append(event.logprob)
            self.alternatives.append(event.alternatives)
        else:
            self.finish_reason = event.reason
        self.text += event.text


class TextUntil:
    """The text of one sample as its tokens come, up to the first of some strings.

    The string that is complete first ends the text, of two that end together the longer one; so the text is the same
    however it is cut into tokens.

    Attributes:
        stopped: whether a stop string was found; nothing comes after it.
    """

    def __init__(self, stream: TextStream, stops: Sequence[str] = ()) -> None:
        """`stops` are not empty strings."""
        self.stopped = False
        self._stream, self._stops = stream, tuple(stops)
        self._held = ""  # the end of the text, where it may be the beginning of a stop string

    def feed(self, token: int) -> str:
        """The text that is certain now that this token is known; often empty."""
        return self._advance(self._stream.feed(token))

    def finish(self) -> str:
        """The rest of the text, when no more tokens come."""
        certain = self._advance(self._stream.finish())
        rest, self._held = self._held, ""
        return certain + rest

    def _advance(self, text: str) -> str:
        if self.stopped:
            return ""
        text = self._held + text
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)[1]]
        certain = len(text) - max((_begun(text, stop) for stop in self._stops), default=0)
        self._held = text[certain:]
        return text[:certain]


def _begun(text: str, stop: str) -> int:
    """How many characters at the end of a text are the longest beginning of a string, short of all of it."""
    return next(size for size in range(min(len(text), len(stop) - 1), -1, -1) if text.endswith(stop[:size]))


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


_REFILLED = 8
"""One of how many places is free when others come: reading several prompts together is quicker than one by one."""


@dataclass(frozen=True, slots=True)
class Request:
    """A sample, and the prompt that it continues.

    Attributes:
        prompt: ids, at least one.
        row: the sample.
    """

    prompt: Sequence[int]
    row: Row


@torch.inference_mode()
def refilled(
    session: DecodeSession,
    requests: Iterable[Request],
    sampler: Sampler,
    *,
    rows: int,
    stop_ids: Collection[int] = (),
    alternatives: int = 0,
) -> Iterator[Token | Finish]:
    """Continue prompts in samples side by side; those that end leave their places to others.

    Args:
        session: with no rows yet.
        requests: what is asked for; more of them are taken only when there is room.
        sampler: chooses the tokens; a sample draws the same numbers whatever samples are beside it.
        rows: how many samples there are side by side at most.
        stop_ids: tokens that end a sample.
        alternatives: how many of the most likely tokens come with each token.

    Yields:
        Tokens and one Finish for each sample; those of different samples mix.

    Raises:
        InputError: the model's output is not a number.
        UsageError: the sampler rules out every token.

    Source: Yu et al. 2022 (Orca), section 3.2.
    """
    batch = _RefilledBatch(session, sampler, stop_ids=stop_ids, alternatives=alternatives)
    waiting = iter(requests)
    while True:
        free = rows - len(batch)
        if free == rows or free * _REFILLED >= rows:
            batch.join(list(islice(waiting, free)))
        if not len(batch):
            return
        yield from batch.advance()


class _RefilledBatch(Batch):
    """A batch into which samples come."""

    def __init__(
        self, session: DecodeSession, sampler: Sampler, *, stop_ids: Collection[int], alternatives: int
    ) -> None:
        """No samples yet; see `refilled`."""
        super().__init__(session, sampler, [], _nothing(), torch.empty(0), stop_ids=stop_ids, alternatives=alternatives)

    def join(self, requests: Sequence[Request]) -> None:
        """Read the prompts of further samples, if there are any."""
        if not requests:
            return
        if not self._samples:
            self._session.release(range(len(self._session)))
            self._history = _nothing()
        prompts = [request.prompt for request in requests]
        logits = self._session.add(prompts).last
        self._logits = torch.cat((self._logits, logits)) if self._samples else logits
        self._history = self._history.above(prompts)
        self._samples += self._begun([request.row for request in requests])

    def _leave(self, kept: Sequence[int]) -> None:
        """Leave the places of the others to samples to come."""
        self._session.release({*range(len(self._session))} - {*kept})


def _nothing() -> History:
    return History(torch.empty(0, 0, dtype=torch.long), 0)

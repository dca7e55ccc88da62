"""Sampling: samples that grow side by side, a token each in a round, and how a token is chosen from the logits.

`generate` has a session read the prompts and yields tokens as they are chosen; `Sampler` chooses them, by filters and a
draw from what they leave. Filters are pure functions that favour tokens, disfavour them, or rule them out with -inf.
Those over earlier tokens take (rows, length) ids: the prompt and the continuation, as in Hugging Face, or the
continuation alone where the method is defined so. NO_TOKEN among them counts for nothing. `penalties` and `truncations`
list those that the settings ask for, in their order.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

import torch
from torch import Tensor

from lm.decoding.filters import History
from lm.decoding.sampler import NO_TOKEN_LEFT, Alternatives, Sampler, log_normaliser, no_token_left, top_alternatives
from lm.decoding.session import DecodeSession, SourceBatch
from lm.errors import check_number
from lm.tokenizer.tokenizer import DecodeStream

FinishReason = Literal["length", "end_of_text", "stop"]


@dataclass(frozen=True, slots=True)
class Token:
    """A token was chosen.

    Attributes:
        row: number of the sample.
        id: the token; the one that ends a text is among them, and so are those of a stop string.
        logprob: nats, under the model itself (temperature 1, no filter).
        text: what is certain of the sample's text now and was not before.
        alternatives: the most likely tokens in this place and their log-probabilities, best first.
        overlap: bytes with which the first token begins that are the end of the prompt (token healing); they are not in
            the text.
    """

    row: int
    id: int
    logprob: float
    text: str = ""
    alternatives: Alternatives = ()
    overlap: int = 0


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
        overlap: of the first token, see `Token`.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    alternatives: list[Alternatives] = field(default_factory=list)
    finish_reason: FinishReason | Literal["interrupted"] | None = None
    score: float | None = None
    overlap: int = 0

    def append(self, event: Token | Finish) -> None:
        """Grow by an event of this sample."""
        if isinstance(event, Token):
            self.overlap = self.overlap or event.overlap
            self.tokens.append(event.id)
            self.logprobs.append(event.logprob)
            self.alternatives.append(event.alternatives)
        else:
            self.finish_reason = event.reason
        self.text += event.text


class StopStringStream:
    """The text of one sample as its tokens come, up to the first of some strings.

    The string that is complete first ends the text, of two that end together the longer one; so the text is the same
    however it is cut into tokens.

    Attributes:
        stopped: whether a stop string was found; nothing comes after it.
    """

    def __init__(self, stream: DecodeStream, stops: Sequence[str] = (), *, first: str | None = None) -> None:
        """Text up to the first of some strings.

        Args:
            stream: decodes the tokens.
            stops: not empty.
            first: what the text begins with, where the first token begins with something else.
        """
        self.stopped = False
        self._stream, self._stops, self._first = stream, tuple(stops), first
        self._held = ""  # the end of the text, where it may be the beginning of a stop string

    def feed(self, token: int) -> str:
        """The text that is certain now that this token is known; often empty."""
        text = self._stream.feed(token)
        if self._first is not None:
            text, self._first = self._first, None
        return self._advance(text)

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
        certain = len(text) - max((_partial_match_length(text, stop) for stop in self._stops), default=0)
        self._held = text[certain:]
        return text[:certain]


def _partial_match_length(text: str, stop: str) -> int:
    """How many characters at the end of a text are the longest beginning of a string, short of all of it."""
    return next(size for size in range(min(len(text), len(stop) - 1), -1, -1) if text.endswith(stop[:size]))


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """A sample that is asked for.

    Attributes:
        number: of the sample; it and the sampler's seed decide what is drawn.
        max_tokens: how many tokens the sample may have, at least 1.
        text: makes text of the tokens, and may end the sample at a stop string; None if no text is wanted.
        stream: random numbers for its draws; None for those of the sampler for its number.
        first: its first token, if that was chosen already.
        overlap: bytes of that token that are the end of the prompt.
    """

    number: int
    max_tokens: int
    text: StopStringStream | None = None
    rng: random.Random | None = None
    first: int | None = None
    overlap: int = 0


def generate(
    session: DecodeSession,
    prompts: Tensor,
    rows: Sequence[SampleSpec],
    sampler: Sampler,
    *,
    sources: Sequence[SourceBatch] | None = None,
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
    logits = session.add(tokens.tolist(), sources).last_logits
    if copies > 1:  # each prompt is read once, and has its rows then
        numbers = torch.arange(len(tokens)).repeat_interleave(copies)
        session.select(numbers.tolist())
        tokens, logits = tokens[numbers], logits[numbers.to(logits.device)]
    history = History(tokens, prompts.shape[1])
    batch = SampleBatch(session, sampler, rows, history, logits, stop_ids=stop_ids, alternatives=alternatives)
    while len(batch):
        yield from batch.sample()
        batch.extend()


class SampleBatch:
    """Samples that grow side by side, a token each in a round; those that end leave."""

    def __init__(
        self,
        session: DecodeSession,
        sampler: Sampler,
        rows: Sequence[SampleSpec],
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
        self._samples = self._start(rows)

    def __len__(self) -> int:
        """Samples that have not ended."""
        return len(self._samples)

    @torch.inference_mode()
    def sample(self) -> list[Token | Finish]:
        """Choose the next token of each sample."""
        streams = [sample.rng for sample in self._samples]
        chosen, logprobs = self._sampler.sample(self._logits, streams, self._history)
        if any(sample.first is not None for sample in self._samples):
            chosen, logprobs = self._forced_tokens(chosen)
        choices = zip(*_to_lists(chosen, logprobs), top_alternatives(self._logits, self._alternatives), strict=True)
        self._history = self._history.to(chosen.device).append(chosen)
        events: list[Token | Finish] = []
        for sample, (token, logprob, others) in zip(self._samples, choices, strict=True):
            events += sample.append(token, logprob, others, self._stop_ids)
        return events

    def _forced_tokens(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens that were chosen, or those that samples begin with; and their log-probabilities."""
        ids = zip(self._samples, chosen.tolist(), strict=True)
        chosen = torch.tensor([other if sample.first is None else sample.first for sample, other in ids])
        logprobs = self._logits.cpu().gather(-1, chosen.clamp(min=0)[:, None]).squeeze(-1)
        return chosen, logprobs - log_normaliser(self._logits.cpu())

    def extend(self) -> None:
        """Have the session read the tokens that were chosen, of the samples that have not ended; the others leave."""
        kept = [place for place, sample in enumerate(self._samples) if not sample.is_finished]
        if 0 < len(kept) < len(self._samples):
            self._remove_others(kept)
            self._history = self._history.of(torch.tensor(kept))
        self._samples = [self._samples[place] for place in kept]
        if kept:
            self._logits = self._session.extend(self._history.tokens[:, -1:]).last_logits

    def _remove_others(self, kept: Sequence[int]) -> None:
        """Keep only some samples in the session."""
        self._session.select(kept)

    def _start(self, rows: Sequence[SampleSpec]) -> list[SampleState]:
        return [SampleState.of(row, self._sampler) for row in rows]


@dataclass(slots=True)
class SampleState:
    """A sample as it grows.

    Attributes:
        row: what was asked for.
        stream: random numbers for its draws.
        left: tokens that it may still have.
        first: the token that it begins with, until it has begun.
        is_finished: whether it has ended.
    """

    row: SampleSpec
    rng: random.Random
    left: int
    first: int | None
    is_finished: bool = False

    @classmethod
    def of(cls, row: SampleSpec, sampler: Sampler) -> SampleState:
        """A sample with no tokens yet."""
        return cls(row, row.rng or sampler.rng(row.number), row.max_tokens, row.first)

    def append(
        self, token: int, logprob: float, alternatives: Alternatives, stop_ids: Collection[int]
    ) -> list[Token | Finish]:
        """Grow by a token, and end if it is the last one; what happened.

        Raises:
            InputError: the log-probability is not a number.
            UsageError: there is no token.
        """
        check_number(logprob)
        if token == NO_TOKEN_LEFT:
            raise no_token_left()
        number, text = self.row.number, self.row.text
        overlap, self.first = 0 if self.first is None else self.row.overlap, None
        self.left -= 1
        event = Token(number, token, logprob, text.feed(token) if text else "", alternatives, overlap)
        if token not in stop_ids and self.left > 0 and not (text and text.stopped):
            return [event]
        self.is_finished = True
        rest = text.finish() if text else ""  # a stop string may be complete only now
        reason: FinishReason = "end_of_text" if token in stop_ids else "length"
        return [event, Finish(number, "stop" if text and text.stopped else reason, rest)]


def _to_lists(chosen: Tensor, logprobs: Tensor) -> tuple[list[int], list[float]]:
    """Ids and nats as Python's numbers, in one transfer from the device."""
    ids, nats = torch.stack((chosen.double(), logprobs.double())).tolist()
    return list(map(int, ids)), nats


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
    row: SampleSpec


def generate_continuously(
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
    batch = _ContinuousBatch(session, sampler, stop_ids=stop_ids, alternatives=alternatives)
    waiting = iter(requests)
    while True:
        free = rows - len(batch)
        if free == rows or free * _REFILLED >= rows:
            batch.join(list(islice(waiting, free)))
        if not len(batch):
            return
        yield from batch.sample()
        batch.extend()


class _ContinuousBatch(SampleBatch):
    """A batch into which samples come."""

    def __init__(
        self, session: DecodeSession, sampler: Sampler, *, stop_ids: Collection[int], alternatives: int
    ) -> None:
        """No samples yet; see `generate_continuously`."""
        super().__init__(
            session, sampler, [], _empty_history(), torch.empty(0), stop_ids=stop_ids, alternatives=alternatives
        )

    def join(self, requests: Sequence[Request]) -> None:
        """Read the prompts of further samples, if there are any."""
        if not requests:
            return
        if not self._samples:
            self._session.release(range(len(self._session)))
            self._history = _empty_history()
        prompts = [request.prompt for request in requests]
        logits = self._session.add(prompts).last_logits
        self._logits = torch.cat((self._logits, logits)) if self._samples else logits
        self._history = self._history.stack(prompts)
        self._samples += self._start([request.row for request in requests])

    def _remove_others(self, kept: Sequence[int]) -> None:
        """Leave the places of the others to samples to come."""
        self._session.release({*range(len(self._session))} - {*kept})


def _empty_history() -> History:
    return History(torch.empty(0, 0, dtype=torch.long), 0)

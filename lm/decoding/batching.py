"""Batched sampling: concurrent samples, one token each per step, with static or continuous batching.

`generate` has a session prefill the prompts and yields tokens as they are sampled. `lm.decoding.sampling` chooses them.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Literal

import torch
from torch import Tensor

from lm.decoding.sampling import (
    NO_TOKEN_LEFT,
    Alternatives,
    History,
    Sampler,
    log_normaliser,
    no_token_left,
    top_alternatives,
)
from lm.decoding.session import DecodeSession, SourceBatch
from lm.errors import check_not_nan
from lm.tokenizer.tokenizer import DecodeStream

FinishReason = Literal["length", "end_of_text", "stop"]


@dataclass(frozen=True, slots=True)
class Token:
    """A token was sampled.

    Attributes:
        row: number of the sample.
        id: of the token; end-of-text tokens and those of stop strings are included.
        logprob: nats, of the model itself (temperature 1, no filter).
        text: text that became certain with this token.
        alternatives: the most probable tokens at this position with their log-probabilities, best first.
        prompt_bytes: leading bytes of the first token that are the end of the prompt (token healing); they are not in
            the text.
    """

    row: int
    id: int
    logprob: float
    text: str = ""
    alternatives: Alternatives = ()
    prompt_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Finish:
    """A sample ended.

    Attributes:
        row: number of the sample.
        reason: it has max_tokens ("length"), ended with the end-of-text token ("end_of_text"), or a stop string came
            ("stop").
        text: the rest of the sample's text.
    """

    row: int
    reason: FinishReason
    text: str = ""


@dataclass
class Continuation:
    """The continuation of a prompt: a sample, complete or in progress, or a hypothesis of beam search.

    Attributes:
        text: without special tokens, up to the first stop string.
        tokens: IDs; end-of-text tokens and those of stop strings are included.
        logprobs: of each token, in nats, of the model itself.
        alternatives: to each token of a sample, if requested.
        finish_reason: see `Finish`; None while a sample is in progress, "interrupted" if it was stopped early.
        score: of a hypothesis, see `Hypothesis`.
        prompt_bytes: of the first token, see `Token`.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    alternatives: list[Alternatives] = field(default_factory=list)
    finish_reason: FinishReason | Literal["interrupted"] | None = None
    score: float | None = None
    prompt_bytes: int = 0

    def append(self, event: Token | Finish) -> None:
        if isinstance(event, Token):
            self.prompt_bytes = self.prompt_bytes or event.prompt_bytes
            self.tokens.append(event.id)
            self.logprobs.append(event.logprob)
            self.alternatives.append(event.alternatives)
        else:
            self.finish_reason = event.reason
        self.text += event.text


class StopStringStream:
    """Decodes the tokens of a sample to text, incrementally, up to the first stop string.

    The stop string that is complete first ends the text, of two that end together the longer one; so the text doesn't
    depend on the tokenisation.
    """

    def __init__(self, stream: DecodeStream, stops: Sequence[str] = (), *, first_text: str | None = None) -> None:
        """Create a stream.

        Args:
            first_text: replaces the text of the first token.
        """
        self.stopped = False
        self._stream, self._stops, self._first = stream, tuple(stops), first_text
        self._held = ""  # the end of the text, if it may be the start of a stop string

    def feed(self, token: int) -> str:
        """Return the text that becomes certain with this token; often empty."""
        text = self._stream.feed(token)
        if self._first is not None:
            text, self._first = self._first, None
        return self._advance(text)

    def finish(self) -> str:
        """Return the rest of the text, after the last token."""
        certain = self._advance(self._stream.finish())
        rest, self._held = self._held, ""
        return certain + rest

    def _advance(self, text: str) -> str:
        if self.stopped:
            return ""
        text = self._held + text
        matches = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if matches:
            self.stopped, self._held = True, ""
            return text[: min(matches)[1]]
        certain = len(text) - max((_partial_match_length(text, stop) for stop in self._stops), default=0)
        self._held = text[certain:]
        return text[:certain]


def _partial_match_length(text: str, stop: str) -> int:
    """The length of the longest proper prefix of `stop` that `text` ends with."""
    return next(size for size in range(min(len(text), len(stop) - 1), -1, -1) if text.endswith(stop[:size]))


@dataclass(frozen=True, slots=True)
class SampleSettings:
    """How the tokens of a sample are chosen, and what ends it.

    Attributes:
        sampler: chooses the tokens; samples with the same sampler are sampled together.
        alternatives: how many of the most probable tokens to return with each token.
    """

    sampler: Sampler
    stop_ids: Collection[int] = ()
    alternatives: int = 0


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """A requested sample.

    Attributes:
        number: of the sample; with the sampler's seed it decides what is drawn.
        max_tokens: at least 1.
        text_stream: decodes the tokens, and ends the sample at a stop string; None for no text.
        rng: random generator; None for the sampler's for this number.
        first_token: the first token, if it is given.
        prompt_bytes: leading bytes of that token that are the end of the prompt.
        settings: its own sampler, stop tokens and alternatives; None for those of the batch.
    """

    number: int
    max_tokens: int
    text_stream: StopStringStream | None = None
    rng: random.Random | None = None
    first_token: int | None = None
    prompt_bytes: int = 0
    settings: SampleSettings | None = None


def generate(
    session: DecodeSession,
    prompts: Tensor,
    samples: Sequence[SampleSpec],
    sampler: Sampler,
    *,
    sources: Sequence[SourceBatch] | None = None,
    stop_ids: Collection[int] = (),
    alternatives: int = 0,
) -> Iterator[Token | Finish]:
    """Sample continuations concurrently (static batching); finished samples leave the batch.

    Args:
        session: without rows.
        prompts: (prompts, length) IDs; at least one each.
        samples: the samples: equally many of each prompt, one prompt after another.
        sampler: chooses the tokens; what a sample draws doesn't depend on the batch.
        sources: of models that translate: see `DecodeSession.add`.
        alternatives: how many of the most probable tokens to return with each token.

    Yields:
        Tokens as they come, step by step, and one Finish for each sample.

    Raises:
        InputError: the model's output is not a number.
        UsageError: the sampler bans every token.
    """
    tokens, copies = prompts.cpu(), len(samples) // len(prompts)
    logits = session.add(tokens.tolist(), sources).last_logits
    if copies > 1:  # prefill each prompt once, then repeat its row
        numbers = torch.arange(len(tokens)).repeat_interleave(copies)
        session.select(numbers.tolist())
        tokens, logits = tokens[numbers], logits[numbers.to(logits.device)]
    history = History(tokens, prompts.shape[1])
    batch = SampleBatch(session, sampler, samples, history, logits, stop_ids=stop_ids, alternatives=alternatives)
    while len(batch):
        yield from batch.sample()
        batch.extend()


class SampleBatch:
    """Concurrent samples, one token each per step; finished ones leave."""

    def __init__(
        self,
        session: DecodeSession,
        sampler: Sampler,
        samples: Sequence[SampleSpec],
        history: History,
        logits: Tensor,
        *,
        stop_ids: Collection[int] = (),
        alternatives: int = 0,
    ) -> None:
        """Create a batch whose prompts are prefilled; the other arguments are those of `generate`.

        Args:
            logits: (rows, vocabulary) of the next tokens.
        """
        self._session, self._history, self._logits = session, history, logits
        self._settings = SampleSettings(sampler, stop_ids, alternatives)
        self._samples = self._start(samples)

    def __len__(self) -> int:
        return len(self._samples)

    @torch.inference_mode()
    def sample(self) -> list[Token | Finish]:
        chosen, logprobs = self._choose()
        if any(sample.first_token is not None for sample in self._samples):
            chosen, logprobs = self._forced_tokens(chosen)
        choices = zip(*_to_lists(chosen, logprobs), self._top_alternatives(), strict=True)
        self._history = self._history.to(chosen.device).append(chosen)
        events: list[Token | Finish] = []
        for sample, (token, logprob, others) in zip(self._samples, choices, strict=True):
            events += self._append(sample, token, logprob, others)
        return events

    def _append(
        self, sample: SampleState, token: int, logprob: float, alternatives: Alternatives
    ) -> list[Token | Finish]:
        return sample.append(token, logprob, alternatives)

    def _choose(self) -> tuple[Tensor, Tensor]:
        """Sample the tokens of all rows, those with the same sampler together; see `Sampler.sample`."""
        rows_of_sampler: dict[int, list[int]] = {}
        for row, sample in enumerate(self._samples):
            rows_of_sampler.setdefault(id(sample.settings.sampler), []).append(row)
        if len(rows_of_sampler) == 1:
            rngs = [sample.rng for sample in self._samples]
            return self._samples[0].settings.sampler.sample(self._logits, rngs, self._history)
        chosen, logprobs = [], []
        for rows in rows_of_sampler.values():
            samples, index = [self._samples[row] for row in rows], torch.tensor(rows)
            sampled = samples[0].settings.sampler.sample(
                self._logits[index.to(self._logits.device)],
                [sample.rng for sample in samples],
                self._history.select(index),
            )
            chosen.append(sampled[0])
            logprobs.append(sampled[1])
        order = torch.tensor(list(chain.from_iterable(rows_of_sampler.values()))).argsort().to(chosen[0].device)
        return torch.cat(chosen)[order], torch.cat(logprobs)[order]

    def _top_alternatives(self) -> list[Alternatives]:
        """The alternatives of each row, as many as its sample has."""
        counts = [sample.settings.alternatives for sample in self._samples]
        alternatives: list[Alternatives] = [()] * len(counts)
        rows = [row for row, count in enumerate(counts) if count]
        if rows:
            logits = self._logits if len(rows) == len(counts) else self._logits[rows]
            for row, best in zip(rows, top_alternatives(logits, max(counts)), strict=True):
                alternatives[row] = best[: counts[row]]
        return alternatives

    def _forced_tokens(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """The sampled tokens, or the given first tokens of samples; and their log-probabilities."""
        ids = zip(self._samples, chosen.tolist(), strict=True)
        chosen = torch.tensor([other if sample.first_token is None else sample.first_token for sample, other in ids])
        logprobs = self._logits.cpu().gather(-1, chosen.clamp(min=0)[:, None]).squeeze(-1)
        return chosen, logprobs - log_normaliser(self._logits.cpu())

    def extend(self) -> None:
        """Append the sampled tokens to the session; finished samples leave."""
        unfinished = [index for index, sample in enumerate(self._samples) if not sample.is_finished]
        if 0 < len(unfinished) < len(self._samples):
            self._remove_others(unfinished)
            self._history = self._history.select(torch.tensor(unfinished))
        self._samples = [self._samples[index] for index in unfinished]
        if unfinished:
            self._logits = self._session.extend(self._history.tokens[:, -1:]).last_logits

    def _remove_others(self, rows: Sequence[int]) -> None:
        self._session.select(rows)

    def _start(self, specs: Sequence[SampleSpec]) -> list[SampleState]:
        return [SampleState.start(spec, spec.settings or self._settings) for spec in specs]


@dataclass(slots=True)
class SampleState:
    """A sample in progress.

    Attributes:
        n_left: tokens that it may still have.
        first_token: the given first token, until it is used.
    """

    spec: SampleSpec
    settings: SampleSettings
    rng: random.Random
    n_left: int
    first_token: int | None
    is_finished: bool = False

    @classmethod
    def start(cls, spec: SampleSpec, settings: SampleSettings) -> SampleState:
        rng = spec.rng or settings.sampler.rng(spec.number)
        return cls(spec, settings, rng, spec.max_tokens, spec.first_token)

    def append(self, token: int, logprob: float, alternatives: Alternatives) -> list[Token | Finish]:
        """Append a token, end if it is the last one, and return the events.

        Raises:
            InputError: the log-probability is not a number.
            UsageError: there is no token.
        """
        check_not_nan(logprob)
        if token == NO_TOKEN_LEFT:
            raise no_token_left()
        number, text, stop_ids = self.spec.number, self.spec.text_stream, self.settings.stop_ids
        prompt_bytes, self.first_token = 0 if self.first_token is None else self.spec.prompt_bytes, None
        self.n_left -= 1
        event = Token(number, token, logprob, text.feed(token) if text else "", alternatives, prompt_bytes)
        if token not in stop_ids and self.n_left > 0 and not (text and text.stopped):
            return [event]
        self.is_finished = True
        rest = text.finish() if text else ""  # may complete a stop string
        reason: FinishReason = "end_of_text" if token in stop_ids else "length"
        return [event, Finish(number, "stop" if text and text.stopped else reason, rest)]


def _to_lists(chosen: Tensor, logprobs: Tensor) -> tuple[list[int], list[float]]:
    """IDs and nats as Python numbers, in one transfer from the device."""
    ids, nats = torch.stack((chosen.double(), logprobs.double())).tolist()
    return list(map(int, ids)), nats


_REFILL_DIVISOR = 8
"""New samples are admitted when one of this many rows is free: prefilling several prompts together is faster."""


@dataclass(frozen=True, slots=True)
class Request:
    """A sample, and the prompt that it continues.

    Attributes:
        prompt: IDs, at least one.
    """

    prompt: Sequence[int]
    spec: SampleSpec


def generate_with_continuous_batching(
    session: DecodeSession,
    requests: Iterable[Request],
    sampler: Sampler,
    *,
    batch_size: int,
    stop_ids: Collection[int] = (),
    alternatives: int = 0,
) -> Iterator[Token | Finish]:
    """Sample continuations with continuous batching: new samples replace finished ones.

    Args:
        session: without rows.
        requests: the samples; consumed when there is room.
        batch_size: the most concurrent samples.

    Yields:
        Tokens and one Finish for each sample; those of different samples are interleaved.

    Raises:
        InputError: the model's output is not a number.
        UsageError: the sampler bans every token.

    Source: Yu et al. 2022 (Orca), section 3.2.
    """
    batch = ContinuousBatch(session, sampler, stop_ids=stop_ids, alternatives=alternatives)
    waiting = iter(requests)
    while True:
        free = batch_size - len(batch)
        if free == batch_size or free * _REFILL_DIVISOR >= batch_size:
            batch.admit(list(islice(waiting, free)))
        if not len(batch):
            return
        yield from batch.sample()
        batch.extend()


class ContinuousBatch(SampleBatch):
    """A batch that admits new samples."""

    def __init__(
        self, session: DecodeSession, sampler: Sampler, *, stop_ids: Collection[int], alternatives: int
    ) -> None:
        """Create an empty batch; see `generate_with_continuous_batching`."""
        super().__init__(
            session, sampler, [], _empty_history(), torch.empty(0), stop_ids=stop_ids, alternatives=alternatives
        )

    def admit(self, requests: Sequence[Request]) -> None:
        """Prefill the prompts of new samples, which take part in the next step."""
        if not requests:
            return
        if not self._samples:
            self._session.release(range(len(self._session)))
            self._history = _empty_history()
        prompts = [request.prompt for request in requests]
        logits = self._session.add(prompts).last_logits
        self._logits = torch.cat((self._logits, logits)) if self._samples else logits
        self._history = self._history.stack(prompts)
        self._samples += self._start([request.spec for request in requests])

    def cancel(self, numbers: Collection[int]) -> None:
        """End samples before the next step, without a Finish."""
        rows = [row for row, sample in enumerate(self._samples) if sample.spec.number not in numbers]
        if len(rows) == len(self._samples):
            return
        self._remove_others(rows)
        index = torch.tensor(rows, dtype=torch.long)
        self._history, self._logits = self._history.select(index), self._logits[index.to(self._logits.device)]
        self._samples = [self._samples[row] for row in rows]

    def _remove_others(self, rows: Sequence[int]) -> None:
        self._session.release({*range(len(self._session))} - {*rows})


def _empty_history() -> History:
    return History(torch.empty(0, 0, dtype=torch.long), 0)

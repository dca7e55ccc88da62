"""The sampling loop: concurrent samples, one token each per step; new samples replace finished ones.

`decode` yields tokens as they are sampled; a server drives the steps of a `Batch` itself.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

import torch

from lm.decoding.sampling import ALL_BANNED, NO_TOKEN, Alternatives, History, Sampler, token_logprobs, top_alternatives
from lm.decoding.session import DecodeSession, SourceBatch
from lm.errors import LMError, UsageError, check_not_nan
from lm.tokenizer.tokenizer import DecodeStream

FinishReason = Literal["length", "end_of_text", "stop"]

_REFILL_DIVISOR = 8
"""New samples are admitted when one of this many rows is free: prefilling several prompts together is faster."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token was sampled.

    Attributes:
        row: number of the sample.
        id: of the token; end-of-text tokens and those of stop strings are included.
        logprob: nats, of the model itself (temperature 1, no filter).
        text: text that became certain with this token.
        alternatives: the most probable tokens at this position with their log-probabilities, best first.
        prompt_bytes: leading bytes of the first token that are the end of the prompt; they are not in the text.
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


class TextStream:
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
        text, self._first = text if self._first is None else self._first, None
        return self._advance(text)

    def finish(self) -> str:
        """Return the rest of the text, after the last token."""
        certain = self._advance(self._stream.finish())
        rest, self._held = self._held, ""
        return certain + rest

    def _advance(self, text: str) -> str:
        if self.stopped:
            return ""
        text, self._held = self._held + text, ""
        matches = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if matches:
            self.stopped = True
            return text[: min(matches)[1]]
        for size in range(max(map(len, self._stops), default=0) - 1, 0, -1):
            if any(text.endswith(stop[:size]) for stop in self._stops if size < len(stop)):
                self._held = text[-size:]
                return text[:-size]
        return text


@dataclass(slots=True)
class Sample:
    """A continuation to be sampled: its prompt, how its tokens are chosen, and what ends it.

    Attributes:
        prompt: IDs, at least one.
        sampler: chooses the tokens; samples with the same one are sampled together.
        rng: random generator.
        max_tokens: at least 1.
        number: of the sample, in its events.
        stop_ids: tokens that end it.
        text: decodes the tokens, and ends the sample at a stop string; None for no text.
        alternatives: how many of the most probable tokens to return with each token.
        first_token: the first token, if it is given.
        prompt_bytes: leading bytes of that token that are the end of the prompt.
        n_tokens: so far.
    """

    prompt: Sequence[int]
    sampler: Sampler
    rng: random.Random
    max_tokens: int
    number: int = 0
    stop_ids: Collection[int] = ()
    text: TextStream | None = None
    alternatives: int = 0
    first_token: int | None = None
    prompt_bytes: int = 0
    n_tokens: int = 0
    is_finished: bool = False

    def append(self, token: int, logprob: float, alternatives: Alternatives) -> list[Token | Finish]:
        """Append a token, end if it is the last one, and return the events.

        Raises:
            InputError: the log-probability is not a number.
            UsageError: there is no token.
        """
        check_not_nan(logprob)
        if token == NO_TOKEN:
            raise UsageError(ALL_BANNED)
        text, prompt_bytes = self.text, 0 if self.n_tokens else self.prompt_bytes
        self.n_tokens += 1
        event = Token(self.number, token, logprob, text.feed(token) if text else "", alternatives, prompt_bytes)
        if token not in self.stop_ids and self.n_tokens < self.max_tokens and not (text and text.stopped):
            return [event]
        self.is_finished = True
        rest = text.finish() if text else ""  # may complete a stop string
        reason: FinishReason = "end_of_text" if token in self.stop_ids else "length"
        return [event, Finish(self.number, "stop" if text and text.stopped else reason, rest)]


def decode(
    session: DecodeSession,
    samples: Iterable[Sample],
    *,
    batch_size: int,
    sources: Sequence[SourceBatch] | None = None,
) -> Iterator[Token | Finish]:
    """Sample continuations with continuous batching: new samples replace finished ones.

    Args:
        session: without rows.
        samples: consumed when there is room; what one draws doesn't depend on the others.
        batch_size: the most concurrent samples.
        sources: of models that translate, see `Batch.admit`.

    Yields:
        Tokens as they come, and one Finish for each sample; those of different samples are interleaved.

    Raises:
        InputError: the model's output is not a number.
        UsageError: a sampler bans every token.

    Source: Yu et al. 2022 (Orca), section 3.2.
    """
    batch, waiting = Batch(session), iter(samples)
    while True:
        free = batch_size - len(batch)
        if free == batch_size or free * _REFILL_DIVISOR >= batch_size:
            batch.admit(list(islice(waiting, free)), sources)
        if not len(batch):
            return
        events = batch.sample()
        for error in batch.errors.values():
            raise error
        yield from events
        batch.extend()


class Batch:
    """Concurrent samples, one token each per step; they join and leave between two steps.

    Attributes:
        errors: of the last step, by number of the sample, which has ended.
    """

    def __init__(self, session: DecodeSession) -> None:
        """Create an empty batch for a session without rows."""
        self.errors: dict[int, LMError] = {}
        self._session, self._samples, self._logits = session, list[Sample](), torch.empty(0)

    def __len__(self) -> int:
        return len(self._samples)

    def admit(self, samples: Sequence[Sample], sources: Sequence[SourceBatch] | None = None) -> None:
        """Prefill the prompts of new samples, which take part in the next step.

        Args:
            sources: for each model the sources, equally many samples of each, one after the other; only once.
        """
        if not samples:
            return
        if not self._samples and len(self._session):
            self._session.release(range(len(self._session)))
        copies = 1 if sources is None else len(samples) // len(sources[0][0])
        logits = self._session.add([sample.prompt for sample in samples[::copies]], sources).last_logits
        if copies > 1:
            rows = torch.arange(len(logits)).repeat_interleave(copies)
            self._session.select(rows.tolist())
            logits = logits[rows.to(logits.device)]
        self._logits = torch.cat((self._logits, logits)) if self._samples else logits
        self._samples += samples

    @torch.inference_mode()
    def sample(self) -> list[Token | Finish]:
        """Sample a token of each sample."""
        events, self.errors = list[Token | Finish](), {}
        chosen, logprobs = self._choose()
        alternatives = self._top_alternatives()
        for sample, token, logprob, others in zip(self._samples, chosen, logprobs, alternatives, strict=True):
            try:
                events += sample.append(token, logprob, others)
            except LMError as error:
                sample.is_finished, self.errors[sample.number] = True, error
        self._chosen = chosen
        return events

    def _choose(self) -> tuple[list[int], list[float]]:
        """Sample the tokens of all rows, those with the same sampler together; with their log-probabilities."""
        logits = self._logits.cpu() if self._logits.device.type == "mps" else self._logits  # which has no float64
        rows_of_sampler: dict[int, list[int]] = {}
        for row, sample in enumerate(self._samples):
            rows_of_sampler.setdefault(id(sample.sampler), []).append(row)
        parts = []
        for rows in rows_of_sampler.values():
            samples, tokens = [self._samples[row] for row in rows], [self._session.tokens[row] for row in rows]
            history = History(tokens, [len(sample.prompt) for sample in samples], logits.device)
            of_rows = logits if len(rows) == len(logits) else logits[rows]
            parts.append(samples[0].sampler.sample(of_rows, [sample.rng for sample in samples], history))
        chosen = parts[0]
        if len(parts) > 1:
            chosen = torch.cat(parts)
            chosen[[row for rows in rows_of_sampler.values() for row in rows]] = torch.cat(parts)
        given = [(row, sample.first_token) for row, sample in enumerate(self._samples) if not sample.n_tokens]
        for row, token in given:
            if token is not None:
                chosen[row] = token
        logprobs = token_logprobs(logits, chosen)
        ids, nats = torch.stack((chosen.double(), logprobs.double())).tolist()  # in one transfer from the device
        return list(map(int, ids)), nats

    def _top_alternatives(self) -> list[Alternatives]:
        """The alternatives of each row, as many as its sample has."""
        counts = [sample.alternatives for sample in self._samples]
        best = top_alternatives(self._logits, max(counts))
        return [others[:count] for others, count in zip(best, counts, strict=True)]

    def extend(self) -> None:
        """Append the sampled tokens to the session; finished samples leave."""
        chosen = [token for token, sample in zip(self._chosen, self._samples, strict=True) if not sample.is_finished]
        self._keep([row for row, sample in enumerate(self._samples) if not sample.is_finished])
        if chosen:
            self._logits = self._session.extend(torch.tensor(chosen)[:, None]).last_logits

    def cancel(self, numbers: Collection[int]) -> None:
        """End samples before the next step, without a Finish."""
        rows = [row for row, sample in enumerate(self._samples) if sample.number not in numbers]
        self._logits = self._logits[rows]
        self._keep(rows)

    def _keep(self, rows: Sequence[int]) -> None:
        if 0 < len(rows) < len(self._samples):
            self._session.release({*range(len(self._samples))} - {*rows})
        self._samples = [self._samples[row] for row in rows]

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

from lm.decoding import DecodeSession, check_not_nan
from lm.decoding.sampling import ALL_BANNED, NO_TOKEN, Alternatives, History, Sampler, token_logprobs, top_alternatives
from lm.decoding.token_healing import Healing
from lm.errors import LMError, UsageError
from lm.tokenizer import DecodeStream

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
    """The continuation of a prompt: a sample, complete or in progress, or a hypothesis of beam search; a translation.

    Attributes:
        text: without special tokens, up to the first stop string.
        tokens: IDs; end-of-text tokens and those of stop strings are included.
        logprobs: of each token, in nats, of the model itself.
        alternatives: to each token of a sample, if requested.
        finish_reason: see `Finish`; None while a sample is in progress, "interrupted" if it was stopped early, "blank"
            of a blank line's translation.
        score: of a hypothesis, see `beam_search`.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    alternatives: list[Alternatives] = field(default_factory=list)
    finish_reason: FinishReason | Literal["interrupted", "blank"] | None = None
    score: float = 0.0

    def append(self, event: Token | Finish) -> None:
        if isinstance(event, Token):
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

    def __init__(self, stream: DecodeStream, stops: Sequence[str] = ()) -> None:
        self.stopped = False
        self._stream, self._stops = stream, tuple(stops)
        self._held = ""  # the end of the text, if it may be the start of a stop string

    def feed(self, token: int, text: str | None = None) -> str:
        """Return the text that becomes certain with this token, often empty; a given one replaces the token's own."""
        decoded = self._stream.feed(token)
        return self._advance(decoded if text is None else text)

    def finish(self) -> str:
        """Return the rest of the text, after the last token, without a character that is incomplete."""
        certain = self._advance(self._stream.finish().rstrip("\ufffd"))
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
        n_certain = max(0, len(text) + 1 - max(map(len, self._stops), default=1))
        self._held = text[n_certain:]
        return text[:n_certain]


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
        healing: of the token that follows the prompt, if that is the end of a longer one; None after it.
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
    healing: Healing | None = None
    n_tokens: int = 0
    is_finished: bool = False

    @property
    def next_sampler(self) -> Sampler:
        """Chooses the next token."""
        return self.sampler if self.healing is None else self.healing.sampler

    def append(self, token: int, logprob: float, alternatives: Alternatives) -> list[Token | Finish]:
        """Append a token, end if it is the last one, and return the events.

        Raises:
            InputError: the log-probability is not a number.
            UsageError: there is no token.
        """
        check_not_nan(logprob)
        if token == NO_TOKEN:
            raise UsageError(ALL_BANNED)
        text, healing, self.healing = self.text, self.healing, None
        new_text = text.feed(token, healing.text_beyond(token) if healing else None) if text else ""
        if healing and token == healing.token:  # the prompt is continued as it is
            self.prompt = [*self.prompt, token]
            return []
        self.n_tokens += 1
        prompt_bytes = len(healing.beginning) if healing else 0
        event = Token(self.number, token, logprob, new_text, alternatives, prompt_bytes)
        if token not in self.stop_ids and self.n_tokens < self.max_tokens and not (text and text.stopped):
            return [event]
        self.is_finished = True
        rest = text.finish() if text else ""  # may complete a stop string
        reason: FinishReason = "end_of_text" if token in self.stop_ids else "length"
        return [event, Finish(self.number, "stop" if text and text.stopped else reason, rest)]


def decode(session: DecodeSession, samples: Iterable[Sample], *, batch_size: int) -> Iterator[Token | Finish]:
    """Sample continuations with continuous batching: new samples replace finished ones.

    Args:
        session: without rows.
        samples: consumed when there is room; what one draws doesn't depend on the others.
        batch_size: the most concurrent samples.

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
            batch.admit(list(islice(waiting, free)))
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

    def admit(self, samples: Sequence[Sample]) -> None:
        """Prefill the prompts of new samples, which take part in the next step."""
        if not samples:
            return
        logits = self._session.add([sample.prompt for sample in samples]).last_logits
        self._logits = torch.cat((self._logits, logits)) if self._samples else logits
        self._samples += samples

    @torch.inference_mode()
    def sample(self) -> list[Token | Finish]:
        """Sample a token of each sample."""
        events, self.errors = list[Token | Finish](), {}
        chosen, logprobs = self._choose()
        alternatives = top_alternatives(self._logits, max(sample.alternatives for sample in self._samples))
        for sample, token, logprob, others in zip(self._samples, chosen, logprobs, alternatives, strict=True):
            try:
                events += sample.append(token, logprob, others[: sample.alternatives])
            except LMError as error:
                sample.is_finished, self.errors[sample.number] = True, error
        self._chosen = chosen
        return events

    def _choose(self) -> tuple[list[int], list[float]]:
        """Sample the tokens of all rows, those with the same sampler together; with their log-probabilities."""
        logits = self._logits.cpu() if self._logits.device.type == "mps" else self._logits  # which has no float64
        chosen = torch.empty(len(logits), dtype=torch.long, device=logits.device)
        rows_of_sampler: dict[Sampler, list[int]] = {}
        for row, sample in enumerate(self._samples):
            rows_of_sampler.setdefault(sample.next_sampler, []).append(row)
        for sampler, rows in rows_of_sampler.items():
            samples, tokens = [self._samples[row] for row in rows], [self._session.tokens[row] for row in rows]
            history = History(tokens, [len(sample.prompt) for sample in samples], logits.device)
            of_rows = logits if len(rows) == len(logits) else logits[rows]
            chosen[rows] = sampler.sample(of_rows, [sample.rng for sample in samples], history)
        logprobs = token_logprobs(logits, chosen)
        ids, nats = torch.stack((chosen.double(), logprobs.double())).tolist()  # in one transfer from the device
        return list(map(int, ids)), nats

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
        if len(rows) < len(self._samples):
            self._session.select(rows)
        self._samples = [self._samples[row] for row in rows]

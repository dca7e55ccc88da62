"""Sampling: samples that grow side by side, a token each in a round, and how a token is chosen from the logits.

`generate` has a session read the prompts and yields tokens as they are chosen; `Sampler` chooses them, by filters and a
draw from what they leave. Filters are pure functions that favour tokens, disfavour them, or rule them out with -inf.
Those over earlier tokens take (rows, length) ids: the prompt and the continuation, as in Hugging Face, or the
continuation alone where the method is defined so. NO_TOKEN among them counts for nothing. `penalties` and `truncations`
list those that the settings ask for, in their order.
"""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from lm.config.decoding import SamplingConfig
from lm.decoding.candidates import top_k_mask
from lm.decoding.session import DecodeSession, SourceBatch
from lm.errors import UsageError, check_number
from lm.tokenizer.tokenizer import DecodeStream, Tokenizer

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


def top_alternatives(logits: Tensor, k: int) -> list[Alternatives]:
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


Biases = Mapping[tuple[int, ...], float]
"""Sequences of tokens, and what is added to the logit of each one's last token after the others; -inf bans it."""


NO_TOKEN = -1
"""What stands before the tokens of a row that has fewer than others."""


@dataclass(frozen=True, slots=True)
class History:
    """What came before the next token.

    Attributes:
        tokens: (rows, length) ids of the prompt and of what was generated; NO_TOKEN before those of shorter rows.
        prompt_length: how many of them are the prompt, NO_TOKEN included; (rows,) where that differs.
    """

    tokens: Tensor
    prompt_length: int | Tensor

    @property
    def generated(self) -> Tensor:
        """(rows, length - prompt_length) ids; of rows with different prompts NO_TOKEN comes before those of some."""
        if isinstance(self.prompt_length, int):
            return self.tokens[:, self.prompt_length :]
        first = int(self.prompt_length.min())
        columns = torch.arange(first, self.tokens.shape[1], device=self.tokens.device)
        return self.tokens[:, first:].where(columns >= self.prompt_length[:, None], NO_TOKEN)

    def to(self, device: torch.device) -> History:
        """The same on a device."""
        length = self.prompt_length
        return History(self.tokens.to(device), length if isinstance(length, int) else length.to(device))

    def append(self, tokens: Tensor) -> History:
        """The same with the next token of each row, (rows,)."""
        return History(torch.cat((self.tokens, tokens[:, None]), dim=1), self.prompt_length)

    def of(self, rows: Tensor) -> History:
        """Some of the rows."""
        rows, length = rows.to(self.tokens.device), self.prompt_length
        return History(self.tokens[rows], length if isinstance(length, int) else length[rows])

    def stack(self, prompts: Sequence[Sequence[int]]) -> History:
        """The rows with others below them, that have prompts and nothing after them."""
        real = (self.tokens != NO_TOKEN).any(0).nonzero()
        past = self.tokens[:, int(real[0]) if len(real) else self.tokens.shape[1] :]
        generated = self.tokens.shape[1] - torch.as_tensor(self.prompt_length, device=past.device).expand(len(past))
        width = max(past.shape[1], *map(len, prompts))
        below = [[NO_TOKEN] * (width - len(prompt)) + list(prompt) for prompt in prompts]
        rows = (F.pad(past, (width - past.shape[1], 0), value=NO_TOKEN), torch.tensor(below, device=past.device))
        return History(torch.cat(rows), width - F.pad(generated, (0, len(prompts))))


Filter = Callable[[Tensor, History], Tensor]
"""(rows, vocabulary) logits and what came before -> logits of the same shape."""


_AS_GOOD_AS_GREEDY = 1e-6  # a temperature below it would overflow float32

NO_TOKEN_LEFT = -1
"""In the place of a token, where every one is ruled out."""


def no_token_left() -> UsageError:
    """What to raise where every token is ruled out."""
    return UsageError(
        "no token is left to choose: biases or repeated n-grams rule out every one",
        settings=["logit_bias", "no_repeat_ngram"],
    )


@dataclass(frozen=True)
class Sampler:
    """Chooses next tokens.

    Attributes:
        penalties: filters that change the model's own logits; also when greedy.
        truncations: filters that leave the tokens to draw from, after those.
        greedy: take the most likely token that is left instead of drawing.
        seed: of the draws; each sample has a random stream of its own: see `stream`.
        max_added_bias: to a logit by the filters; only a search asks for it.
    """

    penalties: tuple[Filter, ...] = ()
    truncations: tuple[Filter, ...] = ()
    greedy: bool = False
    seed: int = 0
    max_added_bias: float = math.inf

    @classmethod
    def from_config(cls, config: SamplingConfig, biases: Biases | None = None) -> Sampler:
        """The sampler that a config describes; with a fresh seed if it has none.

        Biases and penalties count also when greedy. What they leave is divided by the temperature, and then cut to the
        top k, top p, min p and typical tokens.

        Args:
            config: its `logit_bias` is not read here, for that needs a tokenizer.
            biases: what `parse_logit_biases` reads from it.
        """
        greedy = config.greedy or config.temperature < _AS_GOOD_AS_GREEDY
        kept = () if greedy else tuple(truncations(config))
        seed = secrets.randbits(32) if config.seed is None else config.seed
        return cls(tuple(penalties(config, biases or {})), kept, greedy, seed, max_added_bias(config, biases or {}))

    @property
    def filters(self) -> tuple[Filter, ...]:
        """All filters, in the order in which they apply."""
        return (*self.penalties, *self.truncations)

    def rng(
        self, number: int, *, prompt: Sequence[int] | str = "", repeat: int = 0, seed: int | None = None
    ) -> random.Random:
        """The random numbers of a sample: the same for the same arguments, whatever samples are beside it.

        Args:
            number: of the sample, among those of its prompt.
            prompt: what the sample continues, or translates; samples of other prompts have other numbers.
            repeat: how many equal prompts came before this one; their samples have other numbers too.
            seed: in the place of the sampler's own.
        """
        text = prompt if isinstance(prompt, str) else " ".join(map(str, prompt))
        of_prompt = [repeat, text] if text else []
        return random.Random(" ".join(map(str, [self.seed if seed is None else seed, number, *of_prompt])))

    def probabilities(self, logits: Tensor, history: History) -> Tensor:
        """(rows, vocabulary) probabilities that tokens are drawn with, from as many logits; unless greedy."""
        return apply_filters(logits, self.filters, history.to(logits.device)).softmax(-1)

    def sample(self, logits: Tensor, rngs: Sequence[random.Random], history: History) -> tuple[Tensor, Tensor]:
        """Choose the next token of each row.

        Args:
            logits: (rows, vocabulary) float32.
            rngs: one a row; each is drawn from once, unless greedy.
            history: what came before.

        Returns:
            (rows,) token ids, or NOTHING_LEFT where every token is ruled out; and (rows,) their log-probabilities in
            nats under the model itself: of all tokens, at temperature 1, before any filter. They are NaN where the
            logits are not numbers.
        """
        if logits.device.type == "mps":  # has no float64
            logits = logits.cpu()
        tokens = self.tokens(logits, rngs, history)
        chosen = logits.gather(-1, tokens.clamp(min=0)[:, None]).squeeze(-1)
        return tokens, chosen - log_normaliser(logits)

    def tokens(self, logits: Tensor, rngs: Sequence[random.Random], history: History) -> Tensor:
        """What `choose` chooses, from logits that are on a device with float64."""
        left = apply_filters(logits, self.filters, history.to(logits.device))
        return _argmax(left) if self.greedy else draw(left.softmax(-1), rngs)


def _argmax(logits: Tensor) -> Tensor:
    """The best token of each row, or NOTHING_LEFT."""
    best = logits.argmax(-1)
    return best.masked_fill(logits.gather(-1, best[:, None]).squeeze(-1) == -torch.inf, NO_TOKEN_LEFT)


def draw(probabilities: Tensor, rngs: Sequence[random.Random]) -> Tensor:
    """Where a uniform number falls among the cumulative probabilities; one a row, whatever the vocabulary.

    Args:
        probabilities: (rows, vocabulary), to any sum; not numbers where every token is ruled out.
        rngs: one a row.

    Returns:
        (rows,) token ids, or NOTHING_LEFT.
    """
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    uniform = torch.tensor([[stream.random()] for stream in rngs], dtype=torch.float64)
    # Below the total even when the product rounds up to it: a token without probability is never drawn.
    place = (uniform.to(cumulative.device) * total).minimum(total * (1 - 2**-52))
    return torch.searchsorted(cumulative, place, right=True).masked_fill(total.isnan(), NO_TOKEN_LEFT).squeeze(-1)


def log_normaliser(logits: Tensor) -> Tensor:
    """The logarithm of the summed exponentials of each row: (rows, vocabulary) -> (rows,), NaN where it isn't finite.

    A log-probability made with it is NaN exactly if a logit of the row is NaN or +inf, or all of them are -inf.
    """
    total = logits.logsumexp(-1)
    return total.where(total.isfinite(), torch.nan)


def add_biases(logits: Tensor, tokens: Tensor, biases: Biases) -> Tensor:
    """Add to the logits of tokens that complete one of some sequences; a single token always does.

    Args:
        logits: (rows, vocabulary).
        tokens: (rows, length) ids so far.
        biases: sequences of ids, none empty, to what is added.
    """
    biased = logits.clone()
    for (*before, last), bias in biases.items():
        if len(before) <= tokens.shape[1]:
            end = tokens[:, tokens.shape[1] - len(before) :]
            completes = (end == torch.tensor(before, dtype=tokens.dtype, device=tokens.device)).all(-1)
            biased[:, last] += torch.where(completes, bias, 0.0)
    return biased


def penalise_repetition(logits: Tensor, tokens: Tensor, penalty: float) -> Tensor:
    """Divide positive logits of tokens that occurred by a penalty, and multiply negative ones by it.

    Args:
        logits: (rows, vocabulary).
        tokens: (rows, length) ids so far, the prompt's among them.
        penalty: above 1 disfavours repetition, below 1 favours it.

    Source: Keskar et al. 2019 (CTRL), section 4.1.
    """
    tokens = tokens.where(tokens != NO_TOKEN, tokens[:, -1:])  # which every row has, and twice is as once
    scores = logits.gather(-1, tokens)
    return logits.scatter(-1, tokens, torch.where(scores < 0, scores * penalty, scores / penalty))


def penalise_counts(logits: Tensor, generated: Tensor, *, presence: float, frequency: float) -> Tensor:
    """Subtract from the logits of tokens that were generated: once for each, and again each time.

    Args:
        logits: (rows, vocabulary).
        generated: (rows, length) ids, without the prompt.
        presence: subtracted from the logit of each token that occurred.
        frequency: subtracted as often as it occurred.

    Source: OpenAI's API reference, presence_penalty and frequency_penalty.
    """
    occurred = (generated != NO_TOKEN).to(logits.dtype)
    counts = torch.zeros_like(logits).scatter_add(-1, generated.clamp(min=0), occurred)
    return logits - frequency * counts - presence * (counts > 0)


def ban_repeated_ngrams(logits: Tensor, tokens: Tensor, size: int) -> Tensor:
    """Rule out tokens that would complete `size` tokens in a row that occurred before.

    Args:
        logits: (rows, vocabulary).
        tokens: (rows, length) ids so far, the prompt's among them.
        size: at least 1; with 1 no token occurs twice.

    Source: Paulus et al. 2018, section 2.5.
    """
    length = tokens.shape[1]
    if length < size:
        return logits
    ngrams = tokens.unfold(1, size, 1)  # (rows, ngrams, size)
    begun = (ngrams[..., :-1] == tokens[:, None, length - size + 1 :]).all(-1) & (ngrams != NO_TOKEN).all(-1)
    hits = torch.zeros_like(logits).scatter_add(-1, ngrams[..., -1].clamp(min=0), begun.to(logits.dtype))
    return logits.masked_fill(hits > 0, -torch.inf)


def apply_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Logits divided by a temperature above 0."""
    return logits / temperature


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the `k` best tokens of each row; of equal ones those with the lower ids.

    Source: Fan et al. 2018.
    """
    return logits if k >= logits.shape[-1] else logits.masked_fill(~top_k_mask(logits, k), -torch.inf)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the smallest set of best tokens whose probability reaches `p`, at least one; of equal ones the lower ids.

    Source: Holtzman et al. 2020.
    """
    if p >= 1:
        return logits
    ordered, order = logits.sort(stable=True, descending=True)
    probabilities = ordered.softmax(-1)
    dropped = probabilities.cumsum(-1) - probabilities >= p
    dropped[:, 0] = False
    return logits.masked_fill(dropped.scatter(-1, order, dropped), -torch.inf)


def keep_min_p(logits: Tensor, p: float) -> Tensor:
    """Keep tokens at least `p` times as likely as the likeliest.

    Source: Nguyen et al. 2024.
    """
    probabilities = logits.softmax(-1)
    return logits.masked_fill(probabilities < p * probabilities.amax(-1, keepdim=True), -torch.inf)


def keep_typical(logits: Tensor, mass: float) -> Tensor:
    """Keep tokens whose surprisal is nearest the expected one, until their probability reaches `mass`; equals stay.

    Source: Meister et al. 2023.
    """
    if mass >= 1:
        return logits
    surprisal = -logits.log_softmax(-1)
    probabilities = (-surprisal).exp()
    expected = (probabilities * surprisal).nansum(-1, keepdim=True)  # a token that was ruled out: 0 * inf
    distance = (surprisal - expected).abs()
    ordered, order = distance.sort(-1)
    needed = (probabilities.gather(-1, order).cumsum(-1) < mass).sum(-1, keepdim=True)
    farthest = ordered.gather(-1, needed.clamp(max=logits.shape[-1] - 1))
    return logits.masked_fill(distance > farthest, -torch.inf)


def penalties(config: SamplingConfig, biases: Biases) -> Iterator[Filter]:
    """The filters that change the model's own logits, in the order in which they apply; also when greedy.

    Args:
        config: its `logit_bias` is not read, for that needs a tokenizer.
        biases: what `lm.decoding.sampling` reads from it.
    """
    if biases:
        yield lambda logits, history: add_biases(logits, history.tokens, biases)
    if config.repetition_penalty != 1:
        yield lambda logits, history: penalise_repetition(logits, history.tokens, config.repetition_penalty)
    if config.presence_penalty or config.frequency_penalty:
        yield lambda logits, history: penalise_counts(
            logits, history.generated, presence=config.presence_penalty, frequency=config.frequency_penalty
        )
    if (size := config.no_repeat_ngram) is not None:
        yield lambda logits, history: ban_repeated_ngrams(logits, history.tokens, size)


def max_added_bias(config: SamplingConfig, biases: Biases) -> float:
    """How much `penalties` add to a logit at most; infinity where that depends on the logit or the length of the text.

    Args:
        config: see `penalties`.
        biases: see `penalties`.
    """
    if config.repetition_penalty < 1 or config.frequency_penalty < 0:
        return math.inf
    of_tokens: dict[int, float] = {}
    for (*_, last), bias in biases.items():  # several sequences that end alike may be complete at once
        of_tokens[last] = of_tokens.get(last, 0.0) + max(bias, 0.0)
    return max(of_tokens.values(), default=0.0) + max(-config.presence_penalty, 0.0)


def truncations(config: SamplingConfig) -> Iterator[Filter]:
    """The filters that leave the tokens to draw from, in the order in which they apply, which is Hugging Face's too."""
    if config.temperature != 1:
        yield lambda logits, _: apply_temperature(logits, config.temperature)
    if (k := config.top_k) is not None:
        yield lambda logits, _: keep_top_k(logits, k)
    if (top := config.top_p) is not None:
        yield lambda logits, _: keep_top_p(logits, top)
    if (least := config.min_p) is not None:
        yield lambda logits, _: keep_min_p(logits, least)
    if (mass := config.typical) is not None:
        yield lambda logits, _: keep_typical(logits, mass)


def apply_filters(logits: Tensor, filters: Iterable[Filter], history: History) -> Tensor:
    """(rows, vocabulary) logits after some filters, one applied to what the one before has left."""
    for apply in filters:
        logits = apply(logits, history)
    return logits


def parse_logit_biases(written: Iterable[str], tokenizer: Tokenizer) -> dict[tuple[int, ...], float]:
    """The sequences of tokens to favour or disfavour, and by how much.

    Args:
        written: each `TEXT=VALUE` or `ID=VALUE`, split at the last `=`; what has only digits is an id. A text of
            several tokens is a sequence, of which the last token is biased where the others stand before it.
        tokenizer: splits texts.

    Raises:
        UsageError: one is not of this form, names no token, or its value is neither -inf nor between -1e20 and 1e20.
    """
    return dict(_parse_logit_bias(text, tokenizer) for text in written)


_GREATEST = 1e20
"""Nothing is gained by more, and float32 has room to add such biases and to divide them by a low temperature."""


_DIGITS = 18
"""More than any id has; Python refuses to read thousands of them."""


def _parse_logit_bias(written: str, tokenizer: Tokenizer) -> tuple[tuple[int, ...], float]:
    text, _, value = written.rpartition("=")
    try:
        bias = float(value)
    except ValueError:
        bias = math.nan
    if not text or math.isnan(bias) or bias == math.inf:
        raise UsageError(f"{written!r} is not TEXT=VALUE or ID=VALUE with a number or -inf", settings=["logit_bias"])
    if abs(bias) > _GREATEST and bias != -math.inf:
        raise UsageError(
            f"{written!r}: a bias is between -1e20 and 1e20, or -inf to ban a token", settings=["logit_bias"]
        )
    if not text.isdecimal():
        tokens = tuple(tokenizer.encode(text))
        if not tokens:
            raise UsageError(
                f"{written!r}: the tokenizer makes no token of this text; give an ID", settings=["logit_bias"]
            )
        return tokens, bias
    if len(text.lstrip("0")) > _DIGITS or int(text) >= tokenizer.vocab_size:
        raise UsageError(
            f"there is no token {text}; ids go from 0 to {tokenizer.vocab_size - 1}", settings=["logit_bias"]
        )
    return (int(text),), bias

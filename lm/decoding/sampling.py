"""Sampling: filters (logits processors) change logits, and the sampler draws the next tokens from them.

Filters are pure functions of logits that favour, penalise or ban (-inf) tokens. Those over earlier tokens take (rows,
length) IDs: prompt and continuation, as in Hugging Face, or the continuation alone where the method is defined so;
NO_TOKEN is ignored. `penalties` and `truncations` list the configured filters in order.
"""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lm.config.decoding import SamplingConfig
from lm.decoding.candidates import top_k_mask
from lm.errors import UsageError
from lm.tokenizer.tokenizer import Tokenizer

Biases = Mapping[tuple[int, ...], float]
"""Token sequences, and what is added to the logit of each one's last token after the others; -inf bans it."""

NO_TOKEN = -1
"""Left padding of shorter rows; and what is returned instead of a token if every one is banned."""

_MIN_TEMPERATURE = 1e-6  # a lower temperature would overflow float32
ALL_BANNED = "every token is banned by biases or repeated n-grams"
_MAX_BIAS = 1e20
"""Larger biases have no more effect, and float32 has room to add these and divide them by a low temperature."""


@dataclass(frozen=True)
class History:
    """The tokens before the next one, of each row; they become tensors if a filter reads them.

    Attributes:
        rows: IDs of prompt and continuation.
        prompt_lengths: tokens of each prompt.
        device: of the tensors.
    """

    rows: Sequence[Sequence[int]]
    prompt_lengths: Sequence[int]
    device: torch.device | None = None

    @cached_property
    def tokens(self) -> Tensor:
        """(rows, length) IDs, left-padded with NO_TOKEN."""
        length = max(map(len, self.rows))
        return torch.tensor([[NO_TOKEN] * (length - len(row)) + [*row] for row in self.rows], device=self.device)

    @property
    def generated(self) -> Tensor:
        """(rows, length) IDs of the continuations, left-padded with NO_TOKEN."""
        last = torch.arange(self.tokens.shape[1], 0, -1, device=self.device)
        return self.tokens.where(last <= self.n_generated[:, None], NO_TOKEN)

    @property
    def n_generated(self) -> Tensor:
        """(rows,) tokens of the continuations."""
        lengths = [len(row) - prompt for row, prompt in zip(self.rows, self.prompt_lengths, strict=True)]
        return torch.tensor(lengths, device=self.device)


Filter = Callable[[Tensor, History], Tensor]
"""(rows, vocabulary) logits and the history -> logits of the same shape."""


def add_biases(biases: Biases) -> Filter:
    """Return the filter that adds biases to the logits of tokens that complete a sequence.

    Args:
        biases: non-empty sequences of IDs, and what is added; a sequence of one token is always complete.
    """
    of_tokens = {last: bias for (*before, last), bias in biases.items() if not before}
    of_sequences = [(before, last, bias) for (*before, last), bias in biases.items() if before]

    def apply(logits: Tensor, history: History) -> Tensor:
        biased, tokens = logits.clone(), history.tokens
        if of_tokens:  # in one operation: there may be hundreds
            biased[:, list(of_tokens)] += biased.new_tensor(list(of_tokens.values()))
        for before, last, bias in of_sequences:
            if len(before) <= tokens.shape[1]:
                end = tokens[:, tokens.shape[1] - len(before) :]
                completes = (end == torch.tensor(before, dtype=tokens.dtype, device=tokens.device)).all(-1)
                biased[:, last] += torch.where(completes, bias, 0.0)
        return biased

    return apply


def penalise_repetition(logits: Tensor, tokens: Tensor, penalty: float) -> Tensor:
    """Divide positive logits of tokens that occurred by a penalty, and multiply negative ones by it.

    Args:
        logits: (rows, vocabulary).
        tokens: (rows, length) IDs so far, prompt included.
        penalty: above 1 penalises repetition, below 1 favours it.

    Source: Keskar et al. 2019 (CTRL), section 4.1.
    """
    tokens = tokens.where(tokens != NO_TOKEN, tokens[:, -1:])  # a token of the row; twice is the same as once
    scores = logits.gather(-1, tokens)
    return logits.scatter(-1, tokens, torch.where(scores < 0, scores * penalty, scores / penalty))


def penalise_counts(logits: Tensor, generated: Tensor, *, presence: float, frequency: float) -> Tensor:
    """Presence and frequency penalty on generated tokens.

    Args:
        logits: (rows, vocabulary).
        generated: (rows, length) IDs, without the prompt.
        presence: subtracted from the logit of each token that occurred.
        frequency: subtracted once per occurrence.

    Source: OpenAI's API reference, presence_penalty and frequency_penalty.
    """
    occurred = (generated != NO_TOKEN).to(logits.dtype)
    counts = torch.zeros_like(logits).scatter_add(-1, generated.clamp(min=0), occurred)
    return logits - frequency * counts - presence * (counts > 0)


def ban_repeated_ngrams(logits: Tensor, tokens: Tensor, size: int) -> Tensor:
    """Ban tokens that would complete an n-gram that occurred before.

    Args:
        logits: (rows, vocabulary).
        tokens: (rows, length) IDs so far, prompt included.
        size: n, at least 1; with 1 no token occurs twice.

    Source: Paulus et al. 2018, section 2.5.
    """
    length = tokens.shape[1]
    if length < size:
        return logits
    ngrams = tokens.unfold(1, size, 1)  # (rows, ngrams, size)
    is_match = (ngrams[..., :-1] == tokens[:, None, length - size + 1 :]).all(-1) & (ngrams != NO_TOKEN).all(-1)
    hits = torch.zeros_like(logits).scatter_add(-1, ngrams[..., -1].clamp(min=0), is_match.to(logits.dtype))
    return logits.masked_fill(hits > 0, -torch.inf)


def ban_early_end(logits: Tensor, n_generated: Tensor, end_ids: Collection[int], min_tokens: int) -> Tensor:
    """Ban tokens that end a text in rows with fewer than `min_tokens` generated tokens, of (rows,)."""
    banned = logits.clone()
    banned[:, [*end_ids]] = banned[:, [*end_ids]].masked_fill((n_generated < min_tokens)[:, None], -torch.inf)
    return banned


def apply_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Divide logits by a temperature above 0."""
    return logits / temperature


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the k best tokens of each row; of equal ones the lowest IDs.

    Source: Fan et al. 2018.
    """
    return logits if k >= logits.shape[-1] else logits.masked_fill(~top_k_mask(logits, k), -torch.inf)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the smallest set of best tokens whose probability reaches `p`, at least one (nucleus sampling).

    Of equal tokens those with the lowest IDs are kept.

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
    """Keep tokens with at least `p` times the highest probability.

    Source: Nguyen et al. 2024.
    """
    probabilities = logits.softmax(-1)
    return logits.masked_fill(probabilities < p * probabilities.amax(-1, keepdim=True), -torch.inf)


def keep_typical(logits: Tensor, mass: float) -> Tensor:
    """Keep tokens whose surprisal is closest to the entropy, until their probability reaches `mass`; ties are kept.

    Source: Meister et al. 2023.
    """
    if mass >= 1:
        return logits
    surprisal = -logits.log_softmax(-1)
    probabilities = (-surprisal).exp()
    expected = (probabilities * surprisal).nansum(-1, keepdim=True)  # of a banned token: 0 * inf
    distance = (surprisal - expected).abs()
    ordered, order = distance.sort(-1)
    needed = (probabilities.gather(-1, order).cumsum(-1) < mass).sum(-1, keepdim=True)
    farthest = ordered.gather(-1, needed.clamp(max=logits.shape[-1] - 1))
    return logits.masked_fill(distance > farthest, -torch.inf)


def penalties(config: SamplingConfig, biases: Biases, end_ids: Collection[int] = ()) -> Iterator[Filter]:
    """Yield the filters that change the model's logits, in order; they also apply to greedy decoding.

    Args:
        config: its `logit_bias` is not read, as that needs a tokenizer.
    """
    if biases:
        yield add_biases(biases)
    if config.repetition_penalty != 1:
        yield lambda logits, history: penalise_repetition(logits, history.tokens, config.repetition_penalty)
    if config.presence_penalty or config.frequency_penalty:
        yield lambda logits, history: penalise_counts(
            logits, history.generated, presence=config.presence_penalty, frequency=config.frequency_penalty
        )
    if (size := config.no_repeat_ngram_size) is not None:
        yield lambda logits, history: ban_repeated_ngrams(logits, history.tokens, size)
    yield from length_filters(config, end_ids)


def length_filters(config: SamplingConfig, end_ids: Collection[int]) -> Iterator[Filter]:
    """Yield the filter of `min_tokens`, if it has an effect."""
    if config.min_tokens and end_ids:
        yield lambda logits, history: ban_early_end(logits, history.n_generated, end_ids, config.min_tokens)


def truncations(config: SamplingConfig) -> Iterator[Filter]:
    """Yield the filters that select the tokens to sample from, in the order of Hugging Face."""
    chosen: tuple[tuple[Callable[[Tensor, Any], Tensor], float | None, float | None], ...] = (
        (apply_temperature, config.temperature, 1), (keep_top_k, config.top_k, None), (keep_top_p, config.top_p, None),
        (keep_min_p, config.min_p, None), (keep_typical, config.typical_p, None),
    )  # fmt: skip
    for function, value, off in chosen:
        if value != off:
            yield _bind(function, value)


def _bind(function: Callable[[Tensor, Any], Tensor], value: float | None) -> Filter:
    return lambda logits, _: function(logits, value)


def apply_filters(logits: Tensor, filters: Iterable[Filter], history: History) -> Tensor:
    """Apply filters one after the other to (rows, vocabulary) logits."""
    for apply in filters:
        logits = apply(logits, history)
    return logits


def parse_logit_biases(specs: Iterable[str], tokenizer: Tokenizer) -> dict[tuple[int, ...], float]:
    """Parse biases of token sequences.

    Args:
        specs: each `TEXT=VALUE` or `ID=VALUE`, split at the last `=`; only digits are an ID. A text of several tokens
            is a sequence, whose last token is biased after the others.

    Raises:
        UsageError: one is malformed, has no token, or its value is neither -inf nor between -1e20 and 1e20.
    """
    biases: dict[tuple[int, ...], float] = {}
    for spec in specs:
        text, _, value = spec.rpartition("=")
        try:
            bias, ids = float(value), (int(text),) if text.isdecimal() else tuple(tokenizer.encode(text))
        except ValueError:
            bias, ids = math.nan, ()
        if not ids or max(ids) >= tokenizer.vocab_size or not (bias == -math.inf or abs(bias) <= _MAX_BIAS):
            raise UsageError(f"{spec!r} is not TOKEN=X with a text or an ID of the vocabulary, and a number or -inf")
        biases[ids] = bias
    return biases


Alternatives = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Sampler:
    """Chooses the next tokens.

    Attributes:
        penalties: filters that change the model's logits; also in greedy decoding.
        truncations: filters that select the tokens to sample from, after those.
        greedy: choose the most probable token instead of sampling.
        seed: each sample has a random generator of its own: see `rng`.
        raises_logits: whether a penalty may raise a logit.
    """

    penalties: tuple[Filter, ...] = ()
    truncations: tuple[Filter, ...] = ()
    greedy: bool = False
    seed: int = 0
    raises_logits: bool = False

    @classmethod
    def from_config(
        cls, config: SamplingConfig, biases: Biases | None = None, end_ids: Collection[int] = ()
    ) -> Sampler:
        """Create the sampler of a config; with a random seed if it has none.

        Args:
            config: its `logit_bias` is not read here, as that needs a tokenizer.
            biases: from `parse_logit_biases`.
            end_ids: the end-of-text tokens, for `min_tokens`.
        """
        greedy, biases = config.temperature < _MIN_TEMPERATURE, biases or {}
        seed = secrets.randbits(32) if config.seed is None else config.seed
        raises = config.repetition_penalty < 1 or min(config.presence_penalty, config.frequency_penalty) < 0
        raises |= max(biases.values(), default=0.0) > 0
        cut = () if greedy else tuple(truncations(config))
        return cls(tuple(penalties(config, biases, end_ids)), cut, greedy, seed, raises)

    @property
    def filters(self) -> tuple[Filter, ...]:
        return (*self.penalties, *self.truncations)

    def rng(
        self, number: int, *, prompt: Sequence[int] | str = "", repeat: int = 0, seed: int | None = None
    ) -> random.Random:
        """Return the random generator of a sample: the same for the same arguments, whatever the batch.

        Args:
            number: of the sample, among those of its prompt.
            prompt: what the sample continues or translates; samples of other prompts differ.
            repeat: how many equal prompts came before; their samples differ.
            seed: instead of the sampler's own.
        """
        text = prompt if isinstance(prompt, str) else " ".join(map(str, prompt))
        prompt_key = [repeat, text] if text else []
        return random.Random(" ".join(map(str, [self.seed if seed is None else seed, number, *prompt_key])))

    def probabilities(self, logits: Tensor, history: History) -> Tensor:
        """Return (rows, vocabulary) sampling probabilities from logits; unless greedy."""
        return apply_filters(logits, self.filters, history).softmax(-1)

    def sample(self, logits: Tensor, rngs: Sequence[random.Random], history: History) -> Tensor:
        """Choose the next token of each row.

        Args:
            logits: (rows, vocabulary) float32, on a device with float64.
            rngs: one per row; each is drawn from once, unless greedy.

        Returns:
            (rows,) token IDs, or NO_TOKEN.
        """
        if not self.greedy:
            return draw(self.probabilities(logits, history), rngs)
        highest, best = apply_filters(logits, self.filters, history).max(-1)
        return best.masked_fill_(highest == -torch.inf, NO_TOKEN)


def draw(probabilities: Tensor, rngs: Sequence[random.Random]) -> Tensor:
    """Draw by inverse transform sampling: one uniform number per row, whatever the vocabulary.

    Args:
        probabilities: (rows, vocabulary), of any sum; NaN if every token is banned.

    Returns:
        (rows,) token IDs, or NO_TOKEN.
    """
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    uniform = torch.tensor([[stream.random()] for stream in rngs], dtype=torch.float64)
    # Less than the total even if the product rounds up: a token of probability zero is never drawn.
    threshold = (uniform.to(cumulative.device) * total).minimum(total * (1 - 2**-52))
    return torch.searchsorted(cumulative, threshold, right=True).masked_fill(total.isnan(), NO_TOKEN).squeeze(-1)


def token_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return (rows,) log-probabilities in nats of one token per row: at temperature 1, before any filter.

    They are NaN exactly where a logit of the row is NaN or +inf, or all are -inf.
    """
    return logits.gather(-1, tokens.clamp(min=0)[:, None]).squeeze(-1) - log_normaliser(logits)


def log_normaliser(logits: Tensor) -> Tensor:
    """Return the log-sum-exp of each row: (rows, vocabulary) -> (rows,), NaN if not finite.

    A log-probability computed with it is NaN exactly if a logit of the row is NaN or +inf, or all are -inf.
    `Tensor.logsumexp` computes the same bits, in twice the time for some thousand logits, as it allows for infinities.
    """
    highest = logits.amax(-1, keepdim=True)
    return (logits - highest).exp_().sum(-1).log_() + highest.squeeze(-1)


def top_alternatives(logits: Tensor, k: int) -> list[Alternatives]:
    """Return the `k` best tokens of each row of (rows, vocabulary) logits, with their log-probabilities."""
    if not k:
        return [()] * len(logits)
    best = logits.log_softmax(-1).topk(min(k, logits.shape[-1]))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [tuple(zip(ids, nats, strict=True)) for ids, nats in pairs]

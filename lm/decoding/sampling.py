"""Sampling: filters (logits processors) change logits, and the sampler draws the next tokens from them.

Filters are pure functions of logits that favour, penalise or ban (-inf) tokens. Those over earlier tokens take (rows,
length) IDs: prompt and continuation, as in Hugging Face, or the continuation alone where the method is defined so;
NO_TOKEN is ignored. `Sampler.from_config` lists the configured filters in order.
"""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lm.config.inference import SamplingConfig
from lm.errors import UsageError
from lm.kernels.torch_ops import TopK, top_k
from lm.tokenizer import Tokenizer

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
        return self._pad(self.rows)

    @property
    def generated(self) -> Tensor:
        """(rows, length) IDs of the continuations, left-padded with NO_TOKEN."""
        return self._pad([row[prompt:] for row, prompt in zip(self.rows, self.prompt_lengths, strict=True)])

    def _pad(self, rows: Sequence[Sequence[int]]) -> Tensor:
        length = max(map(len, rows))
        padded = [[NO_TOKEN] * (length - len(row)) + [*row] for row in rows]
        return torch.tensor(padded, dtype=torch.long, device=self.device)


Filter = Callable[[Tensor, History], Tensor]
"""(rows, vocabulary) logits and the history -> logits of the same shape."""


def add_biases(biases: Mapping[int, float]) -> Filter:
    """Return the filter that adds biases to the logits of tokens; -inf bans one."""

    def apply(logits: Tensor, _: History) -> Tensor:
        biased = logits.clone()
        biased[:, list(biases)] += biased.new_tensor(list(biases.values()))  # in one operation: there may be hundreds
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


def ban_early_end(logits: Tensor, generated: Tensor, end_ids: Collection[int], min_tokens: int) -> Tensor:
    """Ban tokens that end a text in rows with fewer than `min_tokens` generated tokens, of (rows, length) IDs."""
    is_early, banned = (generated != NO_TOKEN).sum(-1, keepdim=True) < min_tokens, logits.clone()
    banned[:, [*end_ids]] = banned[:, [*end_ids]].masked_fill(is_early, -torch.inf)
    return banned


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the k best tokens of each row; of equal ones the lowest IDs.

    Source: Fan et al. 2018.
    """
    if k >= logits.shape[-1]:
        return logits
    worst = logits.topk(k).values[:, -1:]
    better, equal = logits > worst, logits == worst
    is_kept = better | (equal & (equal.cumsum(-1) <= k - better.sum(-1, keepdim=True)))
    return logits.masked_fill(~is_kept, -torch.inf)


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


def _without_history(keep: Callable[[Tensor, Any], Tensor], value: float) -> Filter:
    return lambda logits, _: keep(logits, value)


def apply_filters(logits: Tensor, filters: Iterable[Filter], history: History) -> Tensor:
    """Apply filters one after the other to (rows, vocabulary) logits."""
    for apply in filters:
        logits = apply(logits, history)
    return logits


def parse_logit_biases(specs: Iterable[str], tokenizer: Tokenizer) -> dict[int, float]:
    """Parse biases of tokens.

    Args:
        specs: each `TEXT=VALUE` or `ID=VALUE`, split at the last `=`; only digits are an ID, and the name of a
            special token is that token.

    Raises:
        UsageError: one is malformed, is not one token, or its value is not at most 1e20.
    """
    biases: dict[int, float] = {}
    for spec in specs:
        text, _, value = spec.rpartition("=")
        try:
            is_id = text.isascii() and text.isdecimal()
            bias, ids = float(value), [int(text)] if is_id else tokenizer.encode(text, parse_special=True)
        except ValueError:
            bias, ids = math.nan, []
        if len(ids) != 1 or ids[0] >= tokenizer.vocab_size or not bias <= _MAX_BIAS:
            raise UsageError(f"logit_bias {spec!r}: not TOKEN=X with one token, a text or an ID, and a number or -inf")
        biases[ids[0]] = bias
    return biases


Alternatives = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Sampler:
    """Chooses the next tokens.

    Attributes:
        filters: those that change the model's logits, also in greedy decoding; then those that select tokens.
        greedy: choose the most probable token instead of sampling.
        seed: each sample has a random generator of its own: see `rng`.
        raises_logits: whether a penalty may raise a logit.
    """

    filters: tuple[Filter, ...] = ()
    greedy: bool = False
    seed: int = 0
    raises_logits: bool = False

    @classmethod
    def from_config(
        cls, config: SamplingConfig, biases: Mapping[int, float] | None = None, end_ids: Collection[int] = ()
    ) -> Sampler:
        """Create the sampler of a config; with a random seed if it has none.

        Args:
            config: its `logit_bias` is not read here, as that needs a tokenizer.
            biases: from `parse_logit_biases`.
            end_ids: the end-of-text tokens, for `min_tokens`.
        """
        greedy, biases = config.temperature < _MIN_TEMPERATURE, biases or {}
        presence, frequency, ngram = config.presence_penalty, config.frequency_penalty, config.no_repeat_ngram_size
        filters = list[Filter]()
        if biases:
            filters.append(add_biases(biases))
        if config.repetition_penalty != 1:
            filters.append(lambda logits, past: penalise_repetition(logits, past.tokens, config.repetition_penalty))
        if presence or frequency:
            filters.append(
                lambda logits, past: penalise_counts(logits, past.generated, presence=presence, frequency=frequency)
            )
        if ngram is not None:
            filters.append(lambda logits, past: ban_repeated_ngrams(logits, past.tokens, ngram))
        if config.min_tokens and end_ids:
            filters.append(lambda logits, past: ban_early_end(logits, past.generated, end_ids, config.min_tokens))
        if not greedy and config.temperature != 1:
            filters.append(lambda logits, _: logits / config.temperature)
        cuts: tuple[tuple[Callable[[Tensor, Any], Tensor], float | None], ...] = (  # in the order of Hugging Face
            (keep_top_k, config.top_k or None), (keep_top_p, config.top_p), (keep_min_p, config.min_p),
            (keep_typical, config.typical_p),
        )  # fmt: skip
        filters += [_without_history(keep, value) for keep, value in cuts if value is not None and not greedy]
        seed = secrets.randbits(32) if config.seed is None else config.seed
        raises = config.repetition_penalty < 1 or min(presence, frequency) < 0 or max(biases.values(), default=0.0) > 0
        return cls(tuple(filters), greedy, seed, raises)

    def rng(
        self, number: int, *, prompt: Sequence[int] = (), repeat: int = 0, seed: int | None = None
    ) -> random.Random:
        """Return the random generator of a sample: the same for the same arguments, whatever the batch.

        Args:
            number: of the sample, among those of its prompt.
            prompt: what the sample continues; samples of other prompts differ.
            repeat: how many equal prompts came before; their samples differ.
            seed: instead of the sampler's own.
        """
        key = [self.seed if seed is None else seed, number, *([repeat, *prompt] if prompt else [])]
        return random.Random(" ".join(map(str, key)))

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

    They are NaN exactly where a logit of the row is NaN or +inf, or all are -inf. `Tensor.logsumexp` computes the same
    bits, in twice the time for some thousand logits, as it allows for infinities.
    """
    highest = logits.amax(-1, keepdim=True)
    normaliser = (logits - highest).exp_().sum(-1).log_() + highest.squeeze(-1)
    return logits.gather(-1, tokens.clamp(min=0)[:, None]).squeeze(-1) - normaliser


def top_alternatives(logits: Tensor, k: int) -> list[Alternatives]:
    """Return the `k` best tokens of each row of (rows, vocabulary) logits, with their log-probabilities."""
    if not k:
        return [()] * len(logits)
    best = logits.log_softmax(-1).topk(min(k, logits.shape[-1]))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [tuple(zip(ids, nats, strict=True)) for ids, nats in pairs]


def top_k_tokens(logits: Tensor, filtered: Tensor, k: int, *, by_compiled_code: bool = False) -> TopK:
    """Find the k best tokens of each row, of equal ones the first.

    Args:
        logits: (rows, vocabulary), unfiltered.
        filtered: filtered logits; changes by the filters count as log-probability.
        k: fewer are found if the vocabulary is smaller.
        by_compiled_code: whether it is loaded; used where it applies.
    """
    k = min(k, logits.shape[1])
    result = top_k(logits, filtered, k) if by_compiled_code else None
    if result is None:
        values, tokens = filtered.topk(min(k + 1, logits.shape[1]))
        if bool((values[:, 1:] == values[:, :-1]).any()):  # topk breaks ties arbitrarily
            values, tokens = filtered.sort(stable=True, descending=True)
        values, tokens = values[:, :k], tokens[:, :k]
        result = TopK(values, tokens, logits.log_softmax(-1).gather(1, tokens))
    if filtered is logits:
        return result
    is_banned = result.values == -torch.inf  # -inf - -inf would be NaN
    added = (result.values - logits.gather(1, result.indices)).masked_fill(is_banned, -torch.inf)
    return result._replace(logprobs=result.logprobs + added)

"""The sampler: chooses the next tokens from logits, by filters and a seeded draw."""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lm.config.decoding import SamplingConfig
from lm.decoding.filters import Biases, Filter, History, apply_filters, max_added_bias, penalties, truncations
from lm.errors import UsageError

_MIN_TEMPERATURE = 1e-6  # a lower temperature would overflow float32


NO_TOKEN_LEFT = -1
"""Returned instead of a token if every one is banned."""


Alternatives = tuple[tuple[int, float], ...]


def no_token_left() -> UsageError:
    """Return the error for a row whose tokens are all banned."""
    return UsageError(
        "every token is banned by biases or repeated n-grams",
        settings=["logit_bias", "no_repeat_ngram"],
    )


@dataclass(frozen=True)
class Sampler:
    """Chooses the next tokens.

    Attributes:
        penalties: filters that change the model's logits; also in greedy decoding.
        truncations: filters that select the tokens to sample from, after those.
        greedy: choose the most probable token instead of sampling.
        seed: each sample has a random generator of its own: see `rng`.
        max_added_bias: the most that the filters add to a logit; only beam search needs it.
    """

    penalties: tuple[Filter, ...] = ()
    truncations: tuple[Filter, ...] = ()
    greedy: bool = False
    seed: int = 0
    max_added_bias: float = math.inf

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
        greedy = config.greedy or config.temperature < _MIN_TEMPERATURE
        filters = () if greedy else tuple(truncations(config))
        seed = secrets.randbits(32) if config.seed is None else config.seed
        changes = tuple(penalties(config, biases or {}, end_ids))
        return cls(changes, filters, greedy, seed, max_added_bias(config, biases or {}))

    @property
    def filters(self) -> tuple[Filter, ...]:
        """All filters, in order."""
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
        return apply_filters(logits, self.filters, history.to(logits.device)).softmax(-1)

    def sample(self, logits: Tensor, rngs: Sequence[random.Random], history: History) -> tuple[Tensor, Tensor]:
        """Choose the next token of each row.

        Args:
            logits: (rows, vocabulary) float32.
            rngs: one per row; each is drawn from once, unless greedy.
            history: the tokens so far.

        Returns:
            (rows,) token IDs, or NO_TOKEN_LEFT; and (rows,) log-probabilities in nats of the model itself: at
            temperature 1, before any filter. They are NaN where the logits are not finite.
        """
        if logits.device.type == "mps":  # has no float64
            logits = logits.cpu()
        tokens = self.sample_tokens(logits, rngs, history)
        chosen = logits.gather(-1, tokens.clamp(min=0)[:, None]).squeeze(-1)
        return tokens, chosen - log_normaliser(logits)

    def sample_tokens(self, logits: Tensor, rngs: Sequence[random.Random], history: History) -> Tensor:
        """Choose as `sample` does, from logits on a device with float64."""
        filtered = apply_filters(logits, self.filters, history.to(logits.device))
        return _argmax(filtered) if self.greedy else draw(filtered.softmax(-1), rngs)


def _argmax(logits: Tensor) -> Tensor:
    """The best token of each row, or NO_TOKEN_LEFT."""
    best = logits.argmax(-1)
    return best.masked_fill(logits.gather(-1, best[:, None]).squeeze(-1) == -torch.inf, NO_TOKEN_LEFT)


def draw(probabilities: Tensor, rngs: Sequence[random.Random]) -> Tensor:
    """Draw by inverse transform sampling: one uniform number per row, whatever the vocabulary.

    Args:
        probabilities: (rows, vocabulary), of any sum; NaN if every token is banned.
        rngs: one per row.

    Returns:
        (rows,) token IDs, or NO_TOKEN_LEFT.
    """
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    uniform = torch.tensor([[stream.random()] for stream in rngs], dtype=torch.float64)
    # Less than the total even if the product rounds up: a token of probability zero is never drawn.
    threshold = (uniform.to(cumulative.device) * total).minimum(total * (1 - 2**-52))
    return torch.searchsorted(cumulative, threshold, right=True).masked_fill(total.isnan(), NO_TOKEN_LEFT).squeeze(-1)


def log_normaliser(logits: Tensor) -> Tensor:
    """Return the log-sum-exp of each row: (rows, vocabulary) -> (rows,), NaN if not finite.

    A log-probability computed with it is NaN exactly if a logit of the row is NaN or +inf, or all are -inf.
    """
    total = logits.logsumexp(-1)
    return total.where(total.isfinite(), torch.nan)


def top_alternatives(logits: Tensor, k: int) -> list[Alternatives]:
    """Return the `k` best tokens of each row of (rows, vocabulary) logits, with their log-probabilities."""
    if not k:
        return [()] * len(logits)
    best = logits.log_softmax(-1).topk(min(k, logits.shape[-1]))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [tuple(zip(ids, nats, strict=True)) for ids, nats in pairs]

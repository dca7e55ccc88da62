"""From logits to the next token: filters that rule tokens out, and a draw from what is left."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from lm.config import SamplingConfig

_AS_GOOD_AS_GREEDY = 1e-6  # a temperature below it would overflow float32

Filter = Callable[[Tensor], Tensor]
"""(rows, vocabulary) logits -> the same shape, with -inf for tokens that are ruled out."""


def temper(logits: Tensor, temperature: float) -> Tensor:
    """Logits divided by a temperature above 0."""
    return logits / temperature


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the `k` best tokens of each row; of equal ones those with the lower ids.

    Source: Fan et al. 2018.
    """
    if k >= logits.shape[-1]:
        return logits
    worst = logits.topk(k).values[:, -1:]
    better, equal = logits > worst, logits == worst
    kept = better | (equal & (equal.cumsum(-1) <= k - better.sum(-1, keepdim=True)))
    return logits.masked_fill(~kept, -torch.inf)


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


@dataclass(frozen=True)
class Sampler:
    """Chooses next tokens.

    Attributes:
        filters: applied in this order before a token is drawn.
        greedy: take the most likely token instead of drawing.
        seed: of the draws; each row has a generator of its own, made from the seed and the row's number.
    """

    filters: tuple[Filter, ...] = ()
    greedy: bool = False
    seed: int = 0

    @classmethod
    def of(cls, config: SamplingConfig) -> Sampler:
        """The sampler that a config describes; with a fresh seed if it has none."""
        greedy = config.greedy or config.temperature < _AS_GOOD_AS_GREEDY
        filters: list[Filter] = []
        if not greedy and config.temperature != 1:
            filters.append(partial(temper, temperature=config.temperature))
        if config.top_k is not None:
            filters.append(partial(keep_top_k, k=config.top_k))
        if config.top_p is not None:
            filters.append(partial(keep_top_p, p=config.top_p))
        seed = secrets.randbits(32) if config.seed is None else config.seed
        return cls(tuple(filters), greedy, seed)

    def generator(self, row: int) -> random.Random:
        """The source of a row's draws: the same for the same seed and row, whatever other rows there are."""
        return random.Random(f"{self.seed} {row}")

    def choose(self, logits: Tensor, generators: Sequence[random.Random]) -> tuple[Tensor, Tensor]:
        """Choose the next token of each row.

        Args:
            logits: (rows, vocabulary) float32.
            generators: one a row; each is drawn from once, unless greedy.

        Returns:
            (rows,) token ids, and (rows,) their log-probabilities in nats under the model itself: of all tokens, at
            temperature 1, before any filter.
        """
        if logits.device.type == "mps":  # has no float64
            logits = logits.cpu()
        tokens = logits.argmax(-1) if self.greedy else self._draw(logits, generators)
        chosen = logits.gather(-1, tokens[:, None]).squeeze(-1)
        return tokens, chosen - logits.logsumexp(-1)

    def _draw(self, logits: Tensor, generators: Sequence[random.Random]) -> Tensor:
        """Where a uniform number falls among the cumulative probabilities; one a row, whatever the vocabulary."""
        for keep in self.filters:
            logits = keep(logits)
        cumulative = logits.softmax(-1).cumsum(-1, dtype=torch.float64)
        total = cumulative[:, -1:]
        uniform = torch.tensor([[generator.random()] for generator in generators], dtype=torch.float64)
        # Below the total even when the product rounds up to it: a token without probability is never drawn.
        place = (uniform.to(logits.device) * total).minimum(total * (1 - 2**-52))
        return torch.searchsorted(cumulative, place, right=True).squeeze(-1)

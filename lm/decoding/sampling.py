"""From logits to the next token: filters, and a draw from what they leave."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lm.config.decoding import SamplingConfig
from lm.decoding import filters
from lm.decoding.filters import Biases, Filter, History
from lm.errors import UsageError

_AS_GOOD_AS_GREEDY = 1e-6  # a temperature below it would overflow float32

NOTHING_LEFT = -1
"""In the place of a token, where every one is ruled out."""


def nothing_left() -> UsageError:
    """What to raise where every token is ruled out."""
    return UsageError("no token is left to choose: --logit-bias or --no-repeat-ngram rules out every one")


@dataclass(frozen=True)
class Sampler:
    """Chooses next tokens.

    Attributes:
        filters: applied in this order before a token is chosen.
        greedy: take the most likely token that is left instead of drawing.
        seed: of the draws; each row has a generator of its own, made from the seed and the row's number.
    """

    filters: tuple[Filter, ...] = ()
    greedy: bool = False
    seed: int = 0

    @classmethod
    def of(cls, config: SamplingConfig, biases: Biases | None = None) -> Sampler:
        """The sampler that a config describes; with a fresh seed if it has none.

        Biases and penalties change the model's own logits, also when greedy. What they leave is divided by the
        temperature, and then cut to the top k, top p, min p and typical tokens, in this order, which is Hugging
        Face's too.

        Args:
            config: its `logit_bias` is not read here, for that needs a tokenizer.
            biases: what `lm.decoding.logit_bias` reads from it.
        """
        greedy = config.greedy or config.temperature < _AS_GOOD_AS_GREEDY
        chosen = [*_penalties(config, biases or {}), *(() if greedy else _truncations(config))]
        seed = secrets.randbits(32) if config.seed is None else config.seed
        return cls(tuple(chosen), greedy, seed)

    def generator(self, row: int) -> random.Random:
        """The source of a row's draws: the same for the same seed and row, whatever other rows there are."""
        return random.Random(f"{self.seed} {row}")

    def filtered(self, logits: Tensor, history: History) -> Tensor:
        """(rows, vocabulary) logits after all filters."""
        for apply in self.filters:
            logits = apply(logits, history)
        return logits

    def choose(self, logits: Tensor, generators: Sequence[random.Random], history: History) -> tuple[Tensor, Tensor]:
        """Choose the next token of each row.

        Args:
            logits: (rows, vocabulary) float32.
            generators: one a row; each is drawn from once, unless greedy.
            history: what came before.

        Returns:
            (rows,) token ids, or NOTHING_LEFT where every token is ruled out; and (rows,) their log-probabilities in
            nats under the model itself: of all tokens, at temperature 1, before any filter.
        """
        if logits.device.type == "mps":  # has no float64
            logits = logits.cpu()
        history = History(history.tokens.to(logits.device), history.prompt_length)
        left = self.filtered(logits, history)
        tokens = _most_likely(left) if self.greedy else _draw(left, generators)
        chosen = logits.gather(-1, tokens.clamp(min=0)[:, None]).squeeze(-1)
        return tokens, chosen - logits.logsumexp(-1)


def _penalties(config: SamplingConfig, biases: Mapping[tuple[int, ...], float]) -> Iterator[Filter]:
    if biases:
        yield lambda logits, history: filters.add_biases(logits, history.tokens, biases)
    if config.repetition_penalty != 1:
        yield lambda logits, history: filters.penalise_repetition(logits, history.tokens, config.repetition_penalty)
    if config.presence_penalty or config.frequency_penalty:
        yield lambda logits, history: filters.penalise_counts(
            logits, history.generated, presence=config.presence_penalty, frequency=config.frequency_penalty
        )
    if (size := config.no_repeat_ngram) is not None:
        yield lambda logits, history: filters.ban_repeated_ngrams(logits, history.tokens, size)


def _truncations(config: SamplingConfig) -> Iterator[Filter]:
    if config.temperature != 1:
        yield lambda logits, _: filters.temper(logits, config.temperature)
    if (k := config.top_k) is not None:
        yield lambda logits, _: filters.keep_top_k(logits, k)
    if (top := config.top_p) is not None:
        yield lambda logits, _: filters.keep_top_p(logits, top)
    if (least := config.min_p) is not None:
        yield lambda logits, _: filters.keep_min_p(logits, least)
    if (mass := config.typical) is not None:
        yield lambda logits, _: filters.keep_typical(logits, mass)


def _most_likely(logits: Tensor) -> Tensor:
    best = logits.argmax(-1)
    return best.masked_fill(logits.gather(-1, best[:, None]).squeeze(-1) == -torch.inf, NOTHING_LEFT)


def _draw(logits: Tensor, generators: Sequence[random.Random]) -> Tensor:
    """Where a uniform number falls among the cumulative probabilities; one a row, whatever the vocabulary."""
    cumulative = logits.softmax(-1).cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]  # not a number where all logits are -inf
    uniform = torch.tensor([[generator.random()] for generator in generators], dtype=torch.float64)
    # Below the total even when the product rounds up to it: a token without probability is never drawn.
    place = (uniform.to(logits.device) * total).minimum(total * (1 - 2**-52))
    return torch.searchsorted(cumulative, place, right=True).masked_fill(total.isnan(), NOTHING_LEFT).squeeze(-1)

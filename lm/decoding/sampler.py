"""The sampler."""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lm.config.decoding import SamplingConfig
from lm.decoding.filters import Biases, Filter, History, apply_filters, max_added_bias, penalties, truncations
from lm.errors import UsageError

_AS_GOOD_AS_GREEDY = 1e-6  # a temperature below it would overflow float32


NO_TOKEN_LEFT = -1
"""In the place of a token, where every one is ruled out."""


Alternatives = tuple[tuple[int, float], ...]


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


def top_alternatives(logits: Tensor, k: int) -> list[Alternatives]:
    """The `k` best tokens of each row of (rows, vocabulary) logits, and their log-probabilities."""
    if not k:
        return [()] * len(logits)
    best = logits.log_softmax(-1).topk(min(k, logits.shape[-1]))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [tuple(zip(ids, nats, strict=True)) for ids, nats in pairs]

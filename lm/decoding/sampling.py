"""From logits to the next token: filters, and a draw from what they leave."""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lm.config.decoding import SamplingConfig
from lm.decoding.filters import Biases, Filter, History, filtered, most_added, penalties, truncations
from lm.decoding.finite import log_normaliser
from lm.errors import UsageError
from lm.tokenizer.tokenizer import Tokenizer

_AS_GOOD_AS_GREEDY = 1e-6  # a temperature below it would overflow float32

NOTHING_LEFT = -1
"""In the place of a token, where every one is ruled out."""


def nothing_left() -> UsageError:
    """What to raise where every token is ruled out."""
    return UsageError(
        "no token is left to choose: biases or repeated n-grams rule out every one",
        settings=["logit_bias", "no_repeat_ngram"],
    )


@dataclass(frozen=True)
class Sampler:
    """Chooses next tokens.

    Attributes:
        filters: applied in this order before a token is chosen.
        greedy: take the most likely token that is left instead of drawing.
        seed: of the draws; each sample has a random stream of its own: see `stream`.
        most_added: to a logit by the filters; only a search asks for it.
    """

    filters: tuple[Filter, ...] = ()
    greedy: bool = False
    seed: int = 0
    most_added: float = math.inf

    @classmethod
    def of(cls, config: SamplingConfig, biases: Biases | None = None) -> Sampler:
        """The sampler that a config describes; with a fresh seed if it has none.

        Biases and penalties count also when greedy. What they leave is divided by the temperature, and then cut to the
        top k, top p, min p and typical tokens.

        Args:
            config: its `logit_bias` is not read here, for that needs a tokenizer.
            biases: what `read_biases` reads from it.
        """
        greedy = config.greedy or config.temperature < _AS_GOOD_AS_GREEDY
        chosen = [*penalties(config, biases or {}), *(() if greedy else truncations(config))]
        seed = secrets.randbits(32) if config.seed is None else config.seed
        return cls(tuple(chosen), greedy, seed, most_added(config, biases or {}))

    def stream(
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
        return filtered(logits, self.filters, history.to(logits.device)).softmax(-1)

    def choose(self, logits: Tensor, streams: Sequence[random.Random], history: History) -> tuple[Tensor, Tensor]:
        """Choose the next token of each row.

        Args:
            logits: (rows, vocabulary) float32.
            streams: one a row; each is drawn from once, unless greedy.
            history: what came before.

        Returns:
            (rows,) token ids, or NOTHING_LEFT where every token is ruled out; and (rows,) their log-probabilities in
            nats under the model itself: of all tokens, at temperature 1, before any filter. They are NaN where the
            logits are not numbers.
        """
        if logits.device.type == "mps":  # has no float64
            logits = logits.cpu()
        tokens = self.tokens(logits, streams, history)
        chosen = logits.gather(-1, tokens.clamp(min=0)[:, None]).squeeze(-1)
        return tokens, chosen - log_normaliser(logits)

    def tokens(self, logits: Tensor, streams: Sequence[random.Random], history: History) -> Tensor:
        """What `choose` chooses, from logits that are on a device with float64."""
        left = filtered(logits, self.filters, history.to(logits.device))
        return _most_likely(left) if self.greedy else drawn(left.softmax(-1), streams)


def _most_likely(logits: Tensor) -> Tensor:
    """The best token of each row, or NOTHING_LEFT."""
    best = logits.argmax(-1)
    return best.masked_fill(logits.gather(-1, best[:, None]).squeeze(-1) == -torch.inf, NOTHING_LEFT)


def drawn(probabilities: Tensor, streams: Sequence[random.Random]) -> Tensor:
    """Where a uniform number falls among the cumulative probabilities; one a row, whatever the vocabulary.

    Args:
        probabilities: (rows, vocabulary), to any sum; not numbers where every token is ruled out.
        streams: one a row.

    Returns:
        (rows,) token ids, or NOTHING_LEFT.
    """
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    uniform = torch.tensor([[stream.random()] for stream in streams], dtype=torch.float64)
    # Below the total even when the product rounds up to it: a token without probability is never drawn.
    place = (uniform.to(cumulative.device) * total).minimum(total * (1 - 2**-52))
    return torch.searchsorted(cumulative, place, right=True).masked_fill(total.isnan(), NOTHING_LEFT).squeeze(-1)


def read_biases(written: Iterable[str], tokenizer: Tokenizer) -> dict[tuple[int, ...], float]:
    """The sequences of tokens to favour or disfavour, and by how much.

    Args:
        written: each `TEXT=VALUE` or `ID=VALUE`, split at the last `=`; what has only digits is an id. A text of
            several tokens is a sequence, of which the last token is biased where the others stand before it.
        tokenizer: splits texts.

    Raises:
        UsageError: one is not of this form, names no token, or its value is neither -inf nor between -1e20 and 1e20.
    """
    return dict(_read(text, tokenizer) for text in written)


_GREATEST = 1e20
"""Nothing is gained by more, and float32 has room to add such biases and to divide them by a low temperature."""


_DIGITS = 18
"""More than any id has; Python refuses to read thousands of them."""


def _read(written: str, tokenizer: Tokenizer) -> tuple[tuple[int, ...], float]:
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

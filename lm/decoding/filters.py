"""Sampling filters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lm.config.decoding import SamplingConfig
from lm.decoding.candidates import top_k_mask
from lm.errors import UsageError
from lm.tokenizer.tokenizer import Tokenizer

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


_GREATEST = 1e20
"""Nothing is gained by more, and float32 has room to add such biases and to divide them by a low temperature."""


_DIGITS = 18
"""More than any id has; Python refuses to read thousands of them."""


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

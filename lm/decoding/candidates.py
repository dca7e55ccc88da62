"""Candidates of a beam search: the best continuations of hypotheses, found quickly and with ties broken by one rule."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lm.errors import not_a_number
from lm.kernels.torch_ops import TopK, top_k

_ROWS_PER_CHUNK = 64
"""Rows of logits that a CPU looks at together: what is made of them stays in its second-level cache."""

_BLOCK = 64
"""Numbers next to each other of which a CPU first looks for the maximum alone."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Continuations of the hypotheses of each source, best first: (sources, n) each, on the CPU.

    Attributes:
        total_logprobs: float64, summed log-probabilities; -inf for what is ruled out.
        parents: places of the hypotheses that they continue.
        tokens: what they continue them with.
    """

    total_logprobs: Tensor
    parents: Tensor
    tokens: Tensor

    @classmethod
    def of(cls, totals: Tensor, following: TopK) -> Candidates:
        """The continuations of each hypothesis by some tokens.

        Args:
            totals: (sources, width) float64, summed log-probabilities of the hypotheses; in float32 a long text's
                total would make tokens equal that are not.
            following: the best tokens that may follow each: (sources · width, k).

        Raises:
            InputError: the model's output is not a number.
        """
        logprobs = following.logprobs.cpu().double()
        if bool(logprobs.isnan().any()):
            raise not_a_number()
        continued = totals[:, :, None] + logprobs.reshape(*totals.shape, -1)
        ordered, order = continued.flatten(1).sort(stable=True, descending=True)
        tokens = following.indices.cpu().reshape(len(totals), -1)
        return cls(ordered, order // continued.shape[2], tokens.gather(1, order))

    def keep(self, chosen: Tensor) -> Candidates:
        """Those that are chosen, (sources, n) booleans; where a source has fewer than others, totals of -inf follow."""
        width = int(chosen.sum(1).max())
        order = (~chosen).sort(stable=True).indices[:, :width]  # the chosen ones first
        totals = self.total_logprobs.gather(1, order).masked_fill(~chosen.gather(1, order), -torch.inf)
        return Candidates(totals, self.parents.gather(1, order), self.tokens.gather(1, order))


def top_k_mask(scores: Tensor, k: int) -> Tensor:
    """Which are the `k` best of each row, of equal ones those that come first; (rows, n) -> the same, booleans."""
    worst = scores.topk(k).values[:, -1:]
    better, equal = scores > worst, scores == worst
    return better | (equal & (equal.cumsum(-1) <= k - better.sum(-1, keepdim=True)))


def top_k_tokens(logits: Tensor, filtered: Tensor, k: int, *, by_compiled_code: bool = False) -> TopK:
    """The `k` best tokens of each row.

    Args:
        logits: (rows, vocabulary) of the tokens that may follow, before any filter.
        filtered: the same after all filters; what they change counts as log-probability.
        k: fewer are found where the vocabulary is smaller.
        by_compiled_code: whether that has been loaded, and finds them where it can.
    """
    compiled = top_k(logits, filtered, min(k, logits.shape[1])) if by_compiled_code else None
    found = compiled or _top_k_in_chunks(logits, filtered, k)
    if filtered is logits:
        return found
    ruled_out = found.values == -torch.inf  # -inf less a logit of -inf would be NaN
    added = (found.values - logits.gather(1, found.indices)).masked_fill(ruled_out, -torch.inf)
    return found._replace(logprobs=found.logprobs + added)


def _top_k_in_chunks(logits: Tensor, filtered: Tensor, k: int) -> TopK:
    """The `k` best filtered logits of each row, their tokens, and the log-probabilities before the filters."""
    rows = _ROWS_PER_CHUNK if logits.device.type == "cpu" else len(logits)
    parts = [_top_k_of_rows(*part, k) for part in zip(logits.split(rows), filtered.split(rows), strict=True)]
    return TopK(*map(torch.cat, zip(*parts, strict=True)))


def _top_k_of_rows(logits: Tensor, filtered: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The same of as many rows as are looked at together."""
    values, tokens = _stable_top_k(filtered, k)
    return values, tokens, logits.log_softmax(-1).gather(1, tokens)


def _stable_top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The `k` best of each row of (rows, n) and their places, best first, of equal ones the first ones first."""
    k = min(k, scores.shape[1])
    values, places = _unordered_top_k(scores, min(k + 1, scores.shape[1]))
    if not bool((values[:, 1:] == values[:, :-1]).any()):
        return values[:, :k], places[:, :k]
    places = top_k_mask(scores, k).nonzero()[:, 1].view(len(scores), k)  # topk takes any of those that are equal
    values, order = scores.gather(1, places).sort(stable=True, descending=True)
    return values, places.gather(1, order)


def _unordered_top_k(scores: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """What topk gives; of many numbers a CPU looks only into the blocks with the largest maxima.

    The maxima are quick to find, and the `n` largest numbers are in the `n` blocks whose maxima are largest.
    """
    blocks = scores.shape[1] // _BLOCK
    if scores.device.type != "cpu" or blocks < 4 * n:
        return scores.topk(n)
    whole = blocks * _BLOCK
    maxima = scores[:, :whole].unflatten(1, (blocks, _BLOCK)).amax(2)
    starts = maxima.topk(n, sorted=False).indices * _BLOCK
    places = (starts[:, :, None] + torch.arange(_BLOCK)).flatten(1)
    rest = torch.arange(whole, scores.shape[1]).expand(len(scores), -1)
    places = torch.cat((places, rest), dim=1)
    values, order = scores.gather(1, places).topk(n)
    return values, places.gather(1, order)

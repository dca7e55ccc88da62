"""The best next tokens of each row, by a fast and stable top k."""

from __future__ import annotations

import torch
from torch import Tensor

from lm.kernels.torch_ops import TopK, top_k

_ROWS_PER_CHUNK = 64
"""Rows of logits per chunk on a CPU, so that results stay in its second-level cache."""

_BLOCK = 64
"""Adjacent numbers whose maximum is computed first on a CPU."""


def top_k_mask(scores: Tensor, k: int) -> Tensor:
    """Return (rows, n) booleans of the k best of each row, of equal ones the first."""
    worst = scores.topk(k).values[:, -1:]
    better, equal = scores > worst, scores == worst
    return better | (equal & (equal.cumsum(-1) <= k - better.sum(-1, keepdim=True)))


def top_k_tokens(logits: Tensor, filtered: Tensor, k: int, *, by_compiled_code: bool = False) -> TopK:
    """Find the k best tokens of each row, of equal ones the first.

    Args:
        logits: (rows, vocabulary), unfiltered.
        filtered: filtered logits; changes by the filters count as log-probability.
        k: fewer are found if the vocabulary is smaller.
        by_compiled_code: whether it is loaded; used where it applies.
    """
    result = top_k(logits, filtered, min(k, logits.shape[1])) if by_compiled_code else None
    if result is None:
        rows = _ROWS_PER_CHUNK if logits.device.type == "cpu" else len(logits)
        parts = []
        for part, filtered_part in zip(logits.split(rows), filtered.split(rows), strict=True):
            values, tokens = _stable_top_k(filtered_part, k)
            parts.append((values, tokens, part.log_softmax(-1).gather(1, tokens)))
        result = TopK(*map(torch.cat, zip(*parts, strict=True)))
    if filtered is logits:
        return result
    is_banned = result.values == -torch.inf  # -inf - -inf would be NaN
    added = (result.values - logits.gather(1, result.indices)).masked_fill(is_banned, -torch.inf)
    return result._replace(logprobs=result.logprobs + added)


def _stable_top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best of each row of (rows, n) and their indices, best first, of equal ones the first one first."""
    k = min(k, scores.shape[1])
    values, indices = _unordered_top_k(scores, min(k + 1, scores.shape[1]))
    if not bool((values[:, 1:] == values[:, :-1]).any()):
        return values[:, :k], indices[:, :k]
    indices = top_k_mask(scores, k).nonzero()[:, 1].view(len(scores), k)  # topk breaks ties arbitrarily
    values, order = scores.gather(1, indices).sort(stable=True, descending=True)
    return values, indices.gather(1, order)


def _unordered_top_k(scores: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """As `topk`; with many numbers, a CPU searches only the blocks with the largest maxima.

    Maxima are fast to compute, and the n largest numbers are in the n blocks with the largest maxima.
    """
    blocks = scores.shape[1] // _BLOCK
    if scores.device.type != "cpu" or blocks < 4 * n:
        return scores.topk(n)
    n_in_blocks = blocks * _BLOCK
    maxima = scores[:, :n_in_blocks].unflatten(1, (blocks, _BLOCK)).amax(2)
    starts = maxima.topk(n, sorted=False).indices * _BLOCK
    indices = (starts[:, :, None] + torch.arange(_BLOCK)).flatten(1)
    remainder = torch.arange(n_in_blocks, scores.shape[1]).expand(len(scores), -1)
    indices = torch.cat((indices, remainder), dim=1)
    values, order = scores.gather(1, indices).topk(n)
    return values, indices.gather(1, order)

"""N-gram baselines with interpolated Kneser–Ney smoothing, which a neural model has to beat.

Source: Kneser & Ney 1995; the discount n1 / (n1 + 2 n2), Ney, Essen & Kneser 1994.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lm.corpus.store import Split

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_USUAL_DISCOUNT = 0.5  # where no n-gram occurs once, or none twice
_ORDER = 5
_MAX_TOKENS = 1 << 20  # seconds of counting
_MAX_HELD_OUT = 1 << 17


@dataclass(frozen=True)
class _NgramCounts:
    """The distinct n-grams of a training text, numbered.

    Attributes:
        contexts: number of the (n - 1)-gram that each continues.
        first: training position where each first ends.
        train: number of the n-gram that ends at each training token, -1 near the start.
        held_out: the same for held-out tokens, -1 also if not in the training text.
        held_out_contexts: number of the context of each held-out token, likewise.
    """

    contexts: Ids
    times: Floats
    first: Ids
    train: Ids
    held_out: Ids
    held_out_contexts: Ids


def compute_ngram_losses(train: Split, held_out: Split, *, vocab_size: int) -> list[float]:
    """Return the nats per token of models of order 1, 2, … 5 on the beginning of a held-out split."""
    ids = train.read(0, min(len(train), _MAX_TOKENS))
    scored = held_out.read(0, min(len(held_out), _MAX_HELD_OUT))
    surprisals = compute_ngram_surprisals(ids, scored, vocab_size=vocab_size, order=_ORDER)
    return [float(nats.mean()) for nats in surprisals]


def compute_ngram_surprisals(train: Ids, held_out: Ids, *, vocab_size: int, order: int) -> list[Floats]:
    """Compute the surprisal of held-out tokens under n-gram models of a training text.

    Args:
        train: (n,) IDs, n >= 1.
        held_out: (m,) IDs.
        order: of the largest model; each order takes some ten times the memory of the IDs.

    Returns:
        (m,) nats for each order from 1, as far as the training text is long enough.
    """
    lower = np.full(len(held_out), 1 / vocab_size)
    surprisals, counted = [], list(_count_ngrams(train, held_out, vocab_size, order))
    for grams, longer in zip(counted, [*counted[1:], None], strict=True):
        surprisals.append(-np.log(_interpolate(grams, grams.times, lower)))
        if longer is not None:  # a shorter model is asked where the longer fails: it counts what a sequence follows
            followed = np.bincount(grams.train[longer.first], minlength=len(grams.times))
            lower = _interpolate(grams, followed.astype(np.float64), lower)
    return surprisals


def _count_ngrams(train: Ids, held_out: Ids, vocab_size: int, order: int) -> Iterator[_NgramCounts]:
    contexts, held_out_contexts = np.zeros_like(train), np.zeros_like(held_out)
    for _ in range(min(order, len(train))):
        has = np.flatnonzero(contexts >= 0)
        keys, first, numbers, times = np.unique(
            contexts[has] * vocab_size + train[has], return_index=True, return_inverse=True, return_counts=True
        )
        numbered = np.full_like(train, -1)
        numbered[has] = numbers
        held_out_keys = np.where(held_out_contexts >= 0, held_out_contexts * vocab_size + held_out, -1)
        indices = np.searchsorted(keys, held_out_keys).clip(max=len(keys) - 1)
        seen = np.where(keys[indices] == held_out_keys, indices, -1)
        yield _NgramCounts(keys // vocab_size, times.astype(np.float64), has[first], numbered, seen, held_out_contexts)
        contexts, held_out_contexts = _shift(numbered), _shift(seen)


def _shift(ids: Ids) -> Ids:
    """Return the n-gram that ends before each token."""
    return np.concatenate([np.full(min(1, len(ids)), -1), ids[:-1]])


def _interpolate(grams: _NgramCounts, counts: Floats, lower: Floats) -> Floats:
    """Return the probability of each held-out token: discounted counts, and the rest by the lower order."""
    once, twice = np.count_nonzero(counts == 1), np.count_nonzero(counts == 2)
    discount = once / (once + 2 * twice) if once and twice else _USUAL_DISCOUNT
    n_contexts = int(grams.contexts.max()) + 1
    totals = np.bincount(grams.contexts, weights=counts)
    kinds = np.bincount(grams.contexts, weights=counts > 0)
    contexts = grams.held_out_contexts
    known = (contexts >= 0) & (contexts < n_contexts)
    known[known] = totals[contexts[known]] > 0
    total = totals[contexts[known]]
    count = np.where(grams.held_out[known] >= 0, counts[grams.held_out[known]], 0)
    probabilities = lower.copy()
    shared = discount * kinds[contexts[known]] * lower[known]
    probabilities[known] = (np.maximum(count - discount, 0) + shared) / total
    return probabilities

"""Where the past of each hypothesis lies in a cache that all hypotheses of a sentence share."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lm.model.attention_inputs import Mask, padding
from lm.model.cache import DecoderCache

_FIRST_SLOTS = 32
"""Slots before it is first looked for those that are no longer needed."""


class Slots:
    """Gives the tokens of hypotheses their places in a cache, and says which of them each hypothesis sees.

    To the model a sentence is one row, and the hypotheses of a step are positions in it, beside each other. Each
    position has a slot in the cache that it never leaves: a hypothesis knows the slots of its own past, and a mask
    hides the others from it. So nothing is copied when hypotheses change places; slots that none remembers any more are
    given up now and then. What the cache holds to begin with is a prefix that all hypotheses of a sentence see.

    Rows of one sentence must stand together. Where they are not equally many for each (after `reorder`), sentences are
    repeated as often as needed.

    Attributes:
        width: rows that each sentence has.
        sentences: how many there are.
        rows: (sentences,) which row of the cache each has.

    Source: the mask is that of tree attention, Miao et al. 2023 (SpecInfer), section 4.
    """

    def __init__(self, cache: DecoderCache, sentences: int, like: Tensor, *, prefix: Tensor | None = None) -> None:
        """A row for each sentence, with nothing after its prefix.

        Args:
            cache: of the model.
            sentences: how many there are.
            like: a tensor of the model's type, on its device.
            prefix: (sentences,) how many positions of the prefix are real, if not all are in each.
        """
        self.width, self.sentences, self._cache_rows = 1, sentences, sentences
        self.rows = torch.arange(sentences, device=like.device)
        self._cache, self._dtype, self._device = cache, like.dtype, like.device
        self._prefix, self._real = cache.length, prefix
        self._past = torch.empty(sentences, 0, dtype=torch.long, device=like.device)  # (rows, length) slots
        self._forget_at = self._prefix + _FIRST_SLOTS

    @property
    def length(self) -> int:
        """Tokens in each row, after the prefix."""
        return self._past.shape[1]

    @property
    def position(self) -> int:
        """Where the next token of each row stands, unless the prefixes are of different lengths."""
        return self._prefix + self.length

    def take(self, n: int) -> Tensor:
        """Give the next `n` positions of each row their slots: (rows, length), those of each row's past before them."""
        used = self._cache.length
        fresh = torch.arange(used, used + self.width * n, device=self._device).view(self.width, n)
        self._past = torch.cat((self._past, fresh.repeat(self.sentences, 1)), dim=1)
        return self._past

    def add(self, n: int) -> Mask:
        """Give the next `n` positions of each row their slots, and say which slots each of them sees."""
        start, slots = self.length, self._cache.length + self.width * n
        past = self.take(n)
        if slots == self.position and self._real is None:
            return Mask.causal()
        seen = past[:, None, :].expand(-1, n, -1)  # (rows, n, length)
        if n > 1:  # its own slot stands in for those of a position's future
            future = torch.ones(n, self.length, dtype=torch.bool, device=self._device).triu(start + 1)
            seen = torch.where(future, past[:, start:, None], seen)
        hidden = torch.full((self.sentences, self.width * n, slots), -torch.inf, device=self._device)
        hidden[:, :, : self._prefix] = 0.0 if self._real is None else padding(self._real, self._prefix)[:, None]
        seen = seen.reshape(self.sentences, self.width * n, self.length)
        return Mask(bias=hidden.scatter_(2, seen, 0.0).to(self._dtype)[:, None])

    def query_positions(self, n: int) -> Tensor | None:
        """(sentences, rows of each · n) where the last `n` positions of each row stand; None if all rows are alike."""
        if self._real is None:
            return None
        places = torch.arange(self.length - n, self.length, device=self._device).repeat(self.width)
        return self._real[:, None] + places

    def key_positions(self, n: int) -> Tensor:
        """(sentences, slots) where what is in each slot stands, the last `n` positions of each row among them.

        Hypotheses that share a slot have it at the same position; a slot that none remembers counts as the first.
        """
        past = self._past.view(self.sentences, -1)  # (sentences, rows of each · length)
        first = self._prefix if self._real is None else self._real[:, None]
        places = first + torch.arange(self.length, device=self._device).repeat(self.width)
        found = past.new_zeros(self.sentences, self._cache.length + self.width * n)
        found[:, : self._prefix] = torch.arange(self._prefix, device=self._device)
        return found.scatter_(1, past, places.expand_as(past))

    def reorder(self, rows: Tensor, *, may_wait: bool = False) -> Tensor | None:
        """Row i becomes what row `rows[i]` was.

        Args:
            rows: (new rows,).
            may_wait: sentences may stay where they are in the cache, see `rows`, as long as each is there once.

        Returns:
            What `settle` does.
        """
        self._past = self._past.index_select(0, rows)
        sentences = rows // self.width
        runs = sentences.unique_consecutive(return_counts=True)[1]
        self.width = math.gcd(*runs.tolist())
        kept = sentences[:: self.width]
        self.sentences, self.rows = len(kept), self.rows.index_select(0, kept)
        self._real = None if self._real is None else self._real.index_select(0, kept)
        is_full = self._cache.length + self.width > self._forget_at
        if may_wait and not is_full and len(self.rows.unique()) == self.sentences:
            return None
        moved = self.settle()
        if is_full:
            self._forget()
        return moved

    def settle(self) -> Tensor | None:
        """Move the sentences to rows of the cache in their order: (sentences,) where each one was, or None if there."""
        rows, there = self.rows, torch.arange(self.sentences, device=self._device)
        if self.sentences == self._cache_rows and torch.equal(rows, there):
            return None
        self._cache.reorder(rows)
        self.rows, self._cache_rows = there, self.sentences
        return rows

    def _forget(self) -> None:
        """Give up the slots that no row remembers.

        A useless slot costs its share of every later step, and giving up costs as much as there are slots; both are
        least when the steps between grow with the root of the slots.
        """
        past = self._past.view(self.sentences, -1)  # (sentences, rows of each · length)
        used = past.new_zeros(len(past), self._cache.length).scatter_(1, past, 1)
        used[:, : self._prefix] = 1
        places = used.cumsum(1) - 1
        most = int(places[:, -1].max()) + 1
        self._cache.select(used.argsort(dim=1, descending=True, stable=True)[:, :most])
        self._past = places.gather(1, past).view(self._past.shape)
        self._forget_at = most + self.width * (1 + math.isqrt(most))

    def truncate(self, length: int) -> None:
        """Take back all tokens after the prefix but the first `length`."""
        self._past = self._past[:, :length]

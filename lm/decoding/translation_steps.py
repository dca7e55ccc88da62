"""Steps of an encoder-decoder: the hypotheses of a sentence stand side by side, and read one copy of its source."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lm.config.model import DISTANCES
from lm.decoding.coverage import Coverage
from lm.model.cache import DecoderCache
from lm.model.capture import captured
from lm.model.masks import Mask
from lm.model.scope import Scope
from lm.model.transformer import EncoderDecoder

_FIRST_SLOTS = 32
"""Slots before it is first looked for those that are no longer needed."""


class EncoderDecoderSteps:
    """Steps of an encoder-decoder of blocks; each source is encoded once, and read by all the rows that translate it.

    To the model a sentence is one row, and the hypotheses of a step are positions in it, beside each other. So all of
    them are queries to one copy of the memory's keys and values. Each position has a slot in the cache that it never
    leaves: a hypothesis knows the slots of its own past, and a mask hides the others from it. So nothing is copied
    when hypotheses change places; slots that none remembers any more are given up now and then.

    Rows of one source must stand together. Where they are not equally many for each source (after `reorder`), sources
    are repeated as often as needed.

    Source: the mask is that of tree attention, Miao et al. 2023 (SpecInfer), section 4.
    """

    def __init__(
        self, model: EncoderDecoder, source: Tensor, lengths: Tensor | None = None, *, coverage: bool = False
    ) -> None:
        """Encode the sources.

        Args:
            model: of blocks, in eval mode.
            source: (sources, length) ids, on any device; the first rows to be fed are as many.
            lengths: (sources,) how many ids of each are real.
            coverage: add up the attention to the source, for `coverage`.
        """
        self._model, self._device = model, next(model.parameters()).device
        source = source.to(self._device)
        if lengths is not None and int(lengths.min()) == source.shape[1]:
            lengths = None
        lengths = None if lengths is None else lengths.to(self._device)
        with torch.inference_mode():
            self._memory = model.encode(source, lengths=lengths)  # (sentences, source length, d_model)
        self._padding = _padding(lengths, self._memory)
        cache = model.new_cache()
        assert isinstance(cache, DecoderCache)
        self._cache = cache
        self._width = 1  # rows a sentence has
        self._past = torch.empty(len(source), 0, dtype=torch.long, device=self._device)  # (rows, length) slots
        self._forget_at = _FIRST_SLOTS
        self._coverage = Coverage(model, source, lengths) if coverage else None

    @property
    def length(self) -> int:
        """Tokens in each row."""
        return self._past.shape[1]

    @torch.inference_mode()
    def feed(self, tokens: Tensor, *, last_only: bool = False) -> Tensor:
        """Append (rows, n) tokens; see `Steps.feed`."""
        rows, n = tokens.shape
        start = self.length
        mask = self._add_slots(n)
        own = Scope(
            mask, caches=self._cache.own, start=start, branches=self._width, key_positions=self._positions_of_slots(n)
        )
        source = Scope(mask=Mask(bias=self._padding), memory=self._memory, caches=self._cache.memory)
        beside = tokens.to(self._device).reshape(len(self._memory), -1)
        with captured(() if self._coverage is None else self._coverage.attentions) as weights:
            hidden = self._model.decode(beside, own, source).view(rows, n, -1)
        if self._coverage is not None:  # (sentences, heads, rows of each · n, source length)
            self._coverage.add(weights[0].mean(1).view(rows, n, -1).sum(1))
        return self._model.logits(hidden[:, -1:] if last_only else hidden).float()

    def _add_slots(self, n: int) -> Mask:
        """Give the next `n` positions of each row their slots, and say which slots each of them sees."""
        start, used, sentences = self.length, self._cache.length, len(self._memory)
        fresh = torch.arange(used, used + self._width * n, device=self._device).view(self._width, n)
        self._past = torch.cat((self._past, fresh.repeat(sentences, 1)), dim=1)
        slots = used + self._width * n
        if slots == self.length:
            return Mask.causal()
        seen = self._past[:, None, :].expand(-1, n, -1)  # (rows, n, length)
        if n > 1:  # its own slot stands in for those of a position's future
            future = torch.ones(n, self.length, dtype=torch.bool, device=self._device).triu(start + 1)
            seen = torch.where(future, self._past[:, start:, None], seen)
        hidden = torch.full((sentences, self._width * n, slots), -torch.inf, device=self._device)
        seen = seen.reshape(sentences, self._width * n, self.length)
        return Mask(bias=hidden.scatter_(2, seen, 0.0).to(self._memory.dtype)[:, None])

    def _positions_of_slots(self, n: int) -> Tensor | None:
        """(sentences, slots) where what is in each slot stands, `n` positions of each row added, if that matters.

        Hypotheses that share a slot have it at the same position; a slot that none remembers counts as the first.
        """
        config = self._model.config
        if config.positions not in DISTANCES and config.attention == "full":
            return None
        past = self._past.view(len(self._memory), -1)  # (sentences, rows of each · length)
        places = torch.arange(self.length, device=self._device).repeat(self._width).expand_as(past)
        return past.new_zeros(len(past), self._cache.length + self._width * n).scatter_(1, past, places)

    @torch.inference_mode()
    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was."""
        rows = rows.to(self._device)
        self._past = self._past.index_select(0, rows)
        if self._coverage is not None:
            self._coverage.reorder(rows)
        sentences = rows // self._width
        runs = sentences.unique_consecutive(return_counts=True)[1]
        self._width = math.gcd(*runs.tolist())
        kept = sentences[:: self._width]
        if not torch.equal(kept, torch.arange(len(self._memory), device=self._device)):
            self._memory = self._memory.index_select(0, kept)
            self._padding = None if self._padding is None else self._padding.index_select(0, kept)
            self._cache.reorder(kept)
        if self._cache.length + self._width > self._forget_at:
            self._forget()

    def _forget(self) -> None:
        """Give up the slots that no row remembers.

        A useless slot costs its share of every later step, and giving up costs as much as there are slots; both are
        least when the steps between grow with the root of the slots.
        """
        past = self._past.view(len(self._memory), -1)  # (sentences, rows of each · length)
        used = past.new_zeros(len(past), self._cache.length).scatter_(1, past, 1)
        places = used.cumsum(1) - 1
        most = int(places[:, -1].max()) + 1
        self._cache.select(used.argsort(dim=1, descending=True, stable=True)[:, :most])
        self._past = places.gather(1, past).view(self._past.shape)
        self._forget_at = most + self._width * (1 + math.isqrt(most))

    def truncate(self, length: int) -> None:
        """Take back all tokens but the first `length`; not together with coverage."""
        assert self._coverage is None, "the attention to tokens that were taken back is not taken back"
        self._past = self._past[:, :length]

    def coverage(self) -> Tensor:
        """How little of its source each row has attended to so far: see `Coverage.scores`."""
        assert self._coverage is not None, "made without coverage"
        return self._coverage.scores()


def _padding(lengths: Tensor | None, memory: Tensor) -> Tensor | None:
    """(sentences, 1, 1, source length): -inf where a memory is padding, else zero; None if nothing is."""
    if lengths is None:
        return None
    real = torch.arange(memory.shape[1], device=memory.device) < lengths[:, None]
    return memory.new_zeros(real.shape).masked_fill_(~real, -torch.inf)[:, None, None]

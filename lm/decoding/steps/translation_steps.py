"""Steps of an encoder-decoder: the hypotheses of a sentence stand side by side, and read one copy of its source."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lm.decoding.steps.coverage import Coverage
from lm.decoding.steps.slots import Slots
from lm.engine.compiled.reading import Reading
from lm.engine.selection import native_decoder
from lm.kernels.tensors import Best
from lm.model.attention import captured
from lm.model.attention_inputs import Mask, Scope, padding
from lm.model.cache import DecoderCache
from lm.model.transformer import EncoderDecoder

if TYPE_CHECKING:
    from lm.engine.compiled.decoder import CompiledDecoder


class EncoderDecoderSteps:
    """Steps of an encoder-decoder of blocks; each source is encoded once, and read by all the rows that translate it.

    The hypotheses of a sentence are queries to one copy of the memory's keys and values: see `Slots`.

    Attributes:
        leaves_freely: see `Steps`.
    """

    leaves_freely = False

    def __init__(
        self, model: EncoderDecoder, source: Tensor, lengths: Tensor | None = None, *, coverage: bool = False
    ) -> None:
        """Encode the sources.

        Args:
            model: of blocks, in eval mode.
            source: (sources, length) ids, as `EncoderDecoder.encode` reads them, on any device; the first rows to be
                fed are as many.
            lengths: (sources,) how many ids of each are real.
            coverage: add up the attention to the source, for `coverage`.
        """
        self._model, self._device = model, next(model.parameters()).device
        source = source.to(self._device)
        if lengths is not None and int(lengths.min()) == source.shape[1]:
            lengths = None
        self._lengths = None if lengths is None else lengths.to(self._device)
        with torch.inference_mode():
            self._memory = model.encode(source, lengths=self._lengths)  # (sentences, source length, d_model)
        cache = model.new_cache()
        assert isinstance(cache, DecoderCache)
        self._cache, self._slots = cache, Slots(cache, len(source), self._memory)
        self._coverage = Coverage(model, source, self._lengths) if coverage else None

    @property
    def length(self) -> int:
        """Tokens in each row."""
        return self._slots.length

    @torch.inference_mode()
    def feed(self, tokens: Tensor, *, last_only: bool = False) -> Tensor:
        """Append (rows, n) tokens; see `Steps.feed`."""
        native = self._native(tokens)
        self.leaves_freely = native is not None
        if native is None:
            return self._read(tokens, last_only=last_only)
        logits = native.logits(self._reading(tokens)).view(*tokens.shape, -1)
        return logits[:, -1:] if last_only else logits

    @torch.inference_mode()
    def feed_for_best(self, tokens: Tensor, k: int) -> Best | None:
        """Append (rows, 1) tokens, and find the `k` best to follow; see `FindsBest`."""
        native = self._native(tokens)
        if native is None or tokens.shape[1] > 1:
            return None
        self.leaves_freely = True
        return native.best(self._reading(tokens), k)

    def _native(self, tokens: Tensor) -> CompiledDecoder | None:
        """The compiled step, if it is to read (rows, n) tokens: after the first ones, for which torch reads the memory.

        It doesn't say what it attends to, and knows positions up to the context's end.
        """
        is_known = self._cache.length > 0 and self.length + tokens.shape[1] <= self._model.config.context_length
        return native_decoder(self._model, tokens=tokens.numel()) if is_known and self._coverage is None else None

    def _reading(self, tokens: Tensor) -> Reading:
        """What the compiled step is to read of (rows, n) tokens, which are in the cache then."""
        rows, n = tokens.shape
        start, slots = self.length, self._slots
        past = slots.take(n)
        for layer in self._cache.own:
            layer.grow(slots.width * n)
        sentences = slots.rows.repeat_interleave(slots.width * n)
        positions, seen = torch.arange(start, start + n).repeat(rows), past.repeat_interleave(n, 0)
        return Reading(
            tokens.flatten(), sentences, positions, self._cache.own, slots=seen, memory=self._cache.memory,
            lengths=self._real_lengths(),
        )  # fmt: skip

    def _real_lengths(self) -> Tensor:
        """(rows of the cache,) how many positions of each source are real."""
        sentences, longest, _ = self._memory.shape
        return torch.full((sentences,), longest) if self._lengths is None else self._lengths

    def _read(self, tokens: Tensor, *, last_only: bool) -> Tensor:
        """The logits that follow, by torch."""
        rows, n = tokens.shape
        start, slots = self.length, self._slots
        self._move(slots.settle())
        mask = slots.add(n)
        own = Scope(
            mask, caches=self._cache.own, start=start, branches=slots.width,
            key_positions=slots.key_positions(n) if self._model.config.places_keys else None,
        )  # fmt: skip
        source = Scope(mask=self._source_mask(), memory=self._memory, caches=self._cache.memory)
        beside = tokens.to(self._device).reshape(len(self._memory), -1)
        with captured(() if self._coverage is None else self._coverage.attentions) as weights:
            hidden = self._model.decode(beside, own, source).view(rows, n, -1)
        if self._coverage is not None:  # (sentences, heads, rows of each · n, source length)
            self._coverage.add(weights[0].mean(1).view(rows, n, -1).sum(1))
        return self._model.logits(hidden[:, -1:] if last_only else hidden).float()

    def _source_mask(self) -> Mask:
        """What is seen of the sources."""
        if self._lengths is None:
            return Mask()
        return Mask(bias=padding(self._lengths, self._memory.shape[1])[:, None, None].to(self._memory.dtype))

    @torch.inference_mode()
    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was."""
        rows = rows.to(self._device)
        if self._coverage is not None:
            self._coverage.reorder(rows)
        self._move(self._slots.reorder(rows, may_wait=self.leaves_freely))

    def _move(self, sentences: Tensor | None) -> None:
        """Have what is kept of each sentence follow to where `Slots.settle` has put it."""
        if sentences is not None:
            self._memory = self._memory.index_select(0, sentences)
            self._lengths = None if self._lengths is None else self._lengths.index_select(0, sentences)

    def truncate(self, length: int) -> None:
        """Take back all tokens but the first `length`; not together with coverage."""
        assert self._coverage is None, "the attention to tokens that were taken back is not taken back"
        self._slots.truncate(length)

    def coverage(self) -> Tensor:
        """How little of its source each row has attended to so far: see `Coverage.scores`."""
        assert self._coverage is not None, "made without coverage"
        return self._coverage.scores()

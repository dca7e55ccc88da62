"""Steps of a decoder-only model that translates: the hypotheses of a sentence share one copy of its source."""

from __future__ import annotations

import torch
from torch import Tensor

from lm.decoding.steps.slots import Slots
from lm.model.attention_inputs import Scope
from lm.model.cache import DecoderCache
from lm.model.transformer import DecoderOnly


class PrefixSteps:
    """Steps of a decoder-only model after a source, which is read once; its keys and values serve all its rows.

    Sources may be of different lengths: each row goes on from where its own source ends. See `Slots` for the rest.
    """

    leaves_freely = False

    def __init__(self, model: DecoderOnly, source: Tensor, lengths: Tensor | None = None) -> None:
        """Read the sources.

        Args:
            model: of blocks, in eval mode.
            source: (sources, length) ids, on any device; the first rows to be fed are as many.
            lengths: (sources,) how many ids of each are real.
        """
        self._model, self._device = model, next(model.parameters()).device
        if lengths is not None and int(lengths.min()) == source.shape[1]:
            lengths = None
        lengths = None if lengths is None else lengths.to(self._device)
        cache = model.new_cache()
        assert isinstance(cache, DecoderCache)
        with torch.inference_mode():  # padding comes last, so that nothing that is real sees it
            model.hidden(source.to(self._device), cache=cache, target_lengths=lengths)
        self._cache, self._slots = cache, Slots(cache, len(source), next(model.parameters()), prefix=lengths)

    @property
    def length(self) -> int:
        """Tokens in each row, after the source."""
        return self._slots.length

    @torch.inference_mode()
    def feed(self, tokens: Tensor, *, last_only: bool = False) -> Tensor:
        """Append (rows, n) tokens; see `Steps.feed`."""
        rows, n = tokens.shape
        start, slots = self._slots.position, self._slots
        mask = slots.add(n)
        own = Scope(
            mask, caches=self._cache.own, start=start, branches=slots.width, query_positions=slots.query_positions(n),
            key_positions=slots.key_positions(n) if self._model.config.places_keys else None,
        )  # fmt: skip
        beside = tokens.to(self._device).reshape(slots.sentences, -1)
        hidden = self._model.decode(beside, own).view(rows, n, -1)
        return self._model.logits(hidden[:, -1:] if last_only else hidden).float()

    @torch.inference_mode()
    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was."""
        self._slots.reorder(rows.to(self._device))

    def truncate(self, length: int) -> None:
        """Take back all tokens after the source but the first `length`."""
        self._slots.truncate(length)

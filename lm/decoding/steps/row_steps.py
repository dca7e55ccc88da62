"""Steps of an encoder-decoder whose hypotheses each have a row and a cache of their own."""

from __future__ import annotations

import torch
from torch import Tensor

from lm.decoding.steps.coverage import Coverage
from lm.model.attention import captured
from lm.model.transformer import EncoderDecoder


class RowSteps:
    """Steps of an encoder-decoder; each source is encoded once, and its states copied only to other rows.

    It serves what cannot share the past of hypotheses: recurrent states, and keys that cover several positions. What
    was taken back and is no longer in the cache, as earlier recurrent states are not, is read again with what comes
    next.
    """

    leaves_freely = False

    def __init__(
        self, model: EncoderDecoder, source: Tensor, lengths: Tensor | None = None, *, coverage: bool = False
    ) -> None:
        """Encode the sources.

        Args:
            model: in eval mode.
            source: (sources, length) ids, on any device; the first rows to be fed are as many.
            lengths: (sources,) how many ids of each are real.
            coverage: add up the attention to the source, for `coverage`.
        """
        self._model, self._device = model, next(model.parameters()).device
        source = source.to(self._device)
        self._lengths = None if lengths is None else lengths.to(self._device)
        with torch.inference_mode():
            self._memory = model.encode(source, lengths=self._lengths)  # (rows, source length, d_model)
        self._source_of = torch.arange(len(source), device=self._device)  # (rows,)
        self._tokens = torch.empty(len(source), 0, dtype=torch.long, device=self._device)  # (rows, length)
        self._cache = model.new_cache()
        self._coverage = Coverage(model, source, self._lengths) if coverage else None

    @property
    def length(self) -> int:
        """Tokens in each row."""
        return self._tokens.shape[1]

    @torch.inference_mode()
    def feed(self, tokens: Tensor, *, last_only: bool = False) -> Tensor:
        """Append (rows, n) tokens; see `Steps.feed`."""
        self._tokens = torch.cat((self._tokens, tokens.to(self._device)), dim=1)
        unread = self._tokens[:, self._cache.length :]
        with captured(() if self._coverage is None else self._coverage.attentions) as weights:
            hidden = self._model.hidden(unread, memory=self._memory, lengths=self._lengths, cache=self._cache)
        if self._coverage is not None:
            self._coverage.add(weights[0].mean(1).sum(1))
        return self._model.logits(hidden[:, -1:] if last_only else hidden[:, -tokens.shape[1] :]).float()

    @torch.inference_mode()
    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was."""
        rows = rows.to(self._device)
        self._tokens = self._tokens.index_select(0, rows)
        source_of = self._source_of.index_select(0, rows)
        is_same = torch.equal(source_of, self._source_of)
        self._cache.reorder(rows, same_sources=is_same)
        if not is_same:
            self._source_of, self._memory = source_of, self._memory.index_select(0, rows)
            self._lengths = None if self._lengths is None else self._lengths.index_select(0, rows)
        if self._coverage is not None:
            self._coverage.reorder(rows)

    def truncate(self, length: int) -> None:
        """Take back all tokens but the first `length`; not together with coverage."""
        assert self._coverage is None, "the attention to tokens that were taken back is not taken back"
        self._tokens = self._tokens[:, :length]
        self._cache.truncate(length)

    def coverage(self) -> Tensor:
        """How little of its source each row has attended to so far: see `Coverage.scores`."""
        assert self._coverage is not None, "made without coverage"
        return self._coverage.scores()

"""Steps of a decoder-only model that translates and can share no past of hypotheses: all is read again each time."""

from __future__ import annotations

import torch
from torch import Tensor

from lm.model.transformer import DecoderOnly


class RereadingSteps:
    """Steps of a decoder-only model after a source, without a cache.

    It serves keys that cover several positions: where sources are of different lengths, they cover other ones in each
    row.
    """

    leaves_freely = False

    def __init__(self, model: DecoderOnly, source: Tensor, lengths: Tensor | None = None) -> None:
        """Keep the sources.

        Args:
            model: in eval mode.
            source: (sources, length) ids, on any device; the first rows to be fed are as many.
            lengths: (sources,) how many ids of each are real.
        """
        self._model, device = model, next(model.parameters()).device
        self._source = source.to(device)  # (rows, source length)
        whole = torch.full((len(source),), source.shape[1], device=device)
        self._lengths = whole if lengths is None else lengths.to(device)
        self._tokens = self._source[:, :0]  # (rows, length)

    @property
    def length(self) -> int:
        """Tokens in each row, after the source."""
        return self._tokens.shape[1]

    @torch.inference_mode()
    def feed(self, tokens: Tensor, *, last_only: bool = False) -> Tensor:
        """Append (rows, n) tokens; see `Steps.feed`."""
        self._tokens = torch.cat((self._tokens, tokens.to(self._source.device)), dim=1)
        places = self._lengths[:, None] + torch.arange(self.length, device=self._source.device)
        ids = torch.cat((self._source, torch.zeros_like(self._tokens)), dim=1).scatter(1, places, self._tokens)
        hidden = self._model.hidden(ids, target_lengths=self._lengths + self.length)
        wanted = places[:, -1:] if last_only else places[:, -tokens.shape[1] :]
        found = hidden.gather(1, wanted[..., None].expand(-1, -1, hidden.shape[-1]))
        return self._model.logits(found).float()

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was."""
        rows = rows.to(self._source.device)
        self._source, self._lengths = self._source.index_select(0, rows), self._lengths.index_select(0, rows)
        self._tokens = self._tokens.index_select(0, rows)

    def truncate(self, length: int) -> None:
        """Take back all tokens after the source but the first `length`."""
        self._tokens = self._tokens[:, :length]

"""How much of its source each translation has attended to so far."""

from __future__ import annotations

import torch
from torch import Tensor

from lm.model.transformer import EncoderDecoder


class Coverage:
    """The attention of the last layer to each source token, the mean over heads, summed over the tokens fed.

    Source: Wu et al. 2016, section 7.
    """

    def __init__(self, model: EncoderDecoder, source: Tensor, lengths: Tensor | None) -> None:
        """Nothing is attended to yet.

        Args:
            model: whose last cross-attention counts.
            source: (rows, length) ids, with trees or without, on the model's device.
            lengths: (rows,) how many of each are real; all of them if there are no lengths.
        """
        self.attentions = model.decoder.attentions(cross=True)[-1:]
        self._attended = torch.zeros(source.shape[:2], device=source.device)
        places = torch.arange(source.shape[1], device=source.device)
        self._is_padding = None if lengths is None else places >= lengths[:, None]

    def add(self, weights: Tensor) -> None:
        """The weights of the next positions of each row, summed: (rows, source length)."""
        self._attended = self._attended + weights

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was."""
        self._attended = self._attended.index_select(0, rows)
        self._is_padding = None if self._is_padding is None else self._is_padding.index_select(0, rows)

    def scores(self) -> Tensor:
        """(rows,), at most 0, which is all of it: the sum over source tokens of log(min(attention received, 1))."""
        received = self._attended.clamp(torch.finfo(torch.float32).tiny, 1.0).log()
        return (received if self._is_padding is None else received.masked_fill(self._is_padding, 0.0)).sum(-1)

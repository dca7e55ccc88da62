"""What computes logits for given tokens, rows, positions and cache, and keeps nothing of a session itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from lm.engine.cache import DecoderModel, KVCache, RowCache, SharedCache, Source
from lm.kernels.tensors import Best
from lm.model.attention import captured

Layout = Literal["rows", "shared", "none"]
"""How a cache is laid out, see `lm.engine.cache`; with "none" all is read again each time."""


@dataclass(frozen=True, slots=True)
class Want:
    """What is wanted of a forward pass.

    Attributes:
        last: logits after so many of the last tokens of each row.
        top_k: of engines that can find them, so many of the best tokens to follow each row, instead of the logits.
        attention: the weights by which the last layer attends to the source, of so many of the last tokens.
    """

    last: int = 1
    top_k: int = 0
    attention: int = 0


NOTHING, LAST = Want(last=0), Want()


@dataclass(frozen=True, slots=True)
class Output:
    """What a forward pass gave.

    Attributes:
        logits: (rows, last, vocabulary) float32; None if none were wanted, or the best were found.
        best: the best tokens to follow each row, if they were wanted and the engine finds them.
        attention: (rows, source length) mean over heads, summed over the tokens that were asked for.
    """

    logits: Tensor | None = None
    best: Best | None = None
    attention: Tensor | None = None


class Engine(Protocol):
    """Computes a model's forward pass; safe to use by several threads, each with a cache of its own."""

    name: str

    def forward(
        self,
        tokens: Tensor,
        rows: Sequence[int],
        positions: Sequence[int],
        cache: KVCache,
        want: Want,
        *,
        lengths: Sequence[int] | None = None,
    ) -> Output:
        """Read tokens, and have their keys and values in the cache.

        Args:
            tokens: (rows, n) ids; of rows that are new to the cache all of their window.
            rows: of the cache; all of them in a `SharedCache`.
            positions: where the first token of each row stands.
            cache: extended in place.
            want: what to compute.
            lengths: how many tokens of each row are real, where padding follows them; only of new rows.
        """


class TorchEngine:
    """PyTorch, which computes every model and every operation."""

    name = "PyTorch"

    def __init__(self, model: DecoderModel) -> None:
        """Of a model in eval mode."""
        self.model = model

    def new_cache(self, layout: Layout, source: Tensor | None = None, lengths: Tensor | None = None) -> KVCache:
        """An empty cache; with a row for each source, which an encoder reads now.

        Args:
            layout: of the cache.
            source: (sources, length) ids, or (sources, length, 4) with trees; of an encoder-decoder.
            lengths: (sources,) how many ids of each are real.
        """
        model, encoded = self.model, None
        if source is not None:
            device = next(model.parameters()).device
            if layout == "shared" and lengths is not None and int(lengths.min()) == source.shape[1]:
                lengths = None
            encoded = Source(model, source.to(device), None if lengths is None else lengths.to(device))  # type: ignore[arg-type]
        if layout == "shared":
            return SharedCache(model, source=encoded)
        return RowCache(model, remembers=layout == "rows", source=encoded)

    def forward(
        self,
        tokens: Tensor,
        rows: Sequence[int],
        positions: Sequence[int],
        cache: KVCache,
        want: Want,
        *,
        lengths: Sequence[int] | None = None,
    ) -> Output:
        """See `Engine`."""
        n = tokens.shape[1]
        with captured(self.model.decoder.attentions(cross=True)[-1:] if want.attention else ()) as weights:
            hidden = cache.hidden(self.model, tokens, rows, positions, lengths or [n] * len(rows))
        attention = None
        if want.attention:  # (places, heads, rows of each · n, source length)
            attention = weights[0].mean(1).view(len(rows), n, -1)[:, -want.attention :].sum(1)
        if not want.last:
            return Output(attention=attention)
        if lengths is None or min(lengths) == n:
            hidden = hidden[:, -want.last :]
        else:
            ends = torch.tensor(lengths, device=hidden.device)[:, None]
            last = ends - want.last + torch.arange(want.last, device=hidden.device)
            hidden = hidden[torch.arange(len(hidden), device=hidden.device)[:, None], last]
        return Output(logits=self.model.logits(hidden).float(), attention=attention)

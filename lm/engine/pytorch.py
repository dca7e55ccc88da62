"""The PyTorch engine, which runs every model and operation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lm.engine.engine import DecoderModel, EncodedSource, EngineOutput, KVCache, Layout, OutputSpec
from lm.engine.row_cache import RowCache
from lm.engine.shared_cache import SharedCache
from lm.model.attention import capture_attention_weights


class TorchEngine:
    """Runs a model in PyTorch."""

    name = "PyTorch"

    def __init__(self, model: DecoderModel) -> None:
        """Wrap a model in eval mode."""
        self.model = model

    def new_cache(self, layout: Layout, source: Tensor | None = None, lengths: Tensor | None = None) -> KVCache:
        """Create an empty cache, or, given sources, encode them and create a row for each.

        Args:
            layout: of the cache.
            source: (sources, length) IDs, or (sources, length, 4) with dependency trees; of an encoder-decoder.
            lengths: (sources,) real IDs.
        """
        model, encoded = self.model, None
        if source is not None:
            device = next(model.parameters()).device
            if layout == "shared" and lengths is not None and int(lengths.min()) == source.shape[1]:
                lengths = None
            encoded = EncodedSource(model, source.to(device), None if lengths is None else lengths.to(device))  # type: ignore[arg-type]
        if layout == "shared":
            return SharedCache(model, source=encoded)
        return RowCache(model, is_enabled=layout == "rows", source=encoded)

    def forward(
        self,
        tokens: Tensor,
        rows: Sequence[int],
        positions: Sequence[int],
        cache: KVCache,
        output_spec: OutputSpec,
        *,
        lengths: Sequence[int] | None = None,
    ) -> EngineOutput:
        """See `Engine`."""
        n = tokens.shape[1]
        with capture_attention_weights(
            self.model.decoder.attention_layers(cross=True)[-1:] if output_spec.attention else ()
        ) as weights:
            hidden = cache.compute_hidden(self.model, tokens, rows, positions, lengths or [n] * len(rows))
        attention = None
        if output_spec.attention:  # (groups, heads, rows of each · n, source length)
            attention = weights[0].mean(1).view(len(rows), n, -1)[:, -output_spec.attention :].sum(1)
        if not output_spec.logits_to_keep:
            return EngineOutput(attention=attention)
        if lengths is None or min(lengths) == n:
            hidden = hidden[:, -output_spec.logits_to_keep :]
        else:
            ends = torch.tensor(lengths, device=hidden.device)[:, None]
            last = ends - output_spec.logits_to_keep + torch.arange(output_spec.logits_to_keep, device=hidden.device)
            hidden = hidden[torch.arange(len(hidden), device=hidden.device)[:, None], last]
        return EngineOutput(logits=self.model.logits(hidden).float(), attention=attention)

"""The PyTorch engine, which runs every model and every forward pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lm.engine.engine import DecoderModel, EncodedSource, Layout, Output, OutputSpec
from lm.engine.sequence_cache import ModelCache, SequenceKVCache
from lm.engine.tree_cache import TreeKVCache
from lm.model.attention import capture_attention_weights

KVCache = SequenceKVCache | TreeKVCache


class TorchEngine:
    """Runs a model in PyTorch."""

    def __init__(self, model: DecoderModel) -> None:
        self.model = model

    def new_cache(self, layout: Layout, source: Tensor | None = None, lengths: Tensor | None = None) -> KVCache:
        """Create an empty cache, or, given sources, encode them and create a row for each.

        Args:
            source: (sources, length) IDs, or (sources, length, 4) with dependency trees; of an encoder-decoder.
            lengths: (sources,) real IDs.
        """
        model, encoded = self.model, None
        if source is not None:
            device = next(model.parameters()).device
            if layout == "tree" and lengths is not None and int(lengths.min()) == source.shape[1]:
                lengths = None
            encoded = EncodedSource(model, source.to(device), None if lengths is None else lengths.to(device))  # type: ignore[arg-type]
        if layout == "tree":
            return TreeKVCache(model, source=encoded)
        return SequenceKVCache(model, is_enabled=layout == "sequence", source=encoded)

    def forward(
        self,
        tokens: Tensor,
        rows: Sequence[int],
        positions: Sequence[int],
        cache: KVCache,
        output_spec: OutputSpec,
        *,
        lengths: Sequence[int] | None = None,
        past: ModelCache | None = None,
    ) -> Output:
        """Compute a step, see `Engine`; or, given `lengths`, a prefill.

        Args:
            lengths: real tokens of each row, where padding follows them; the rows are empty then.
            past: keys and values of a prefix that the rows start with.
        """
        layers = self.model.decoder.attention_layers(cross=True)[-1:] if output_spec.attention else ()
        with capture_attention_weights(layers) as weights:
            if lengths is None:
                hidden = cache.step(tokens, rows, positions)
            else:
                hidden = cache.prefill(tokens, rows, lengths, past)
        n, kept = tokens.shape[1], output_spec.logits_to_keep
        # (groups, heads, rows of each · n, source length)
        attention = tuple(
            weight.mean(1).view(len(rows), n, -1)[:, -output_spec.attention :].sum(1) for weight in weights
        )
        if not kept:
            return Output(attention=attention)
        if lengths is None or min(lengths) == n:
            hidden = hidden[:, -kept:]
        else:
            last = torch.tensor(lengths, device=hidden.device)[:, None] + torch.arange(-kept, 0, device=hidden.device)
            hidden = hidden[torch.arange(len(hidden), device=hidden.device)[:, None], last]
        return Output(self.model.logits(hidden).float(), attention=attention)

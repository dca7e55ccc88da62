"""The protocol of engines, and the inputs and outputs of a forward pass.

A KV cache has one of two layouts. A `SequenceKVCache` is contiguous: each sequence has a buffer row of its own, and
repeated sequences are copied. It is for samples, which diverge for good, and for recurrent states. In a `TreeKVCache`
the continuations of one prompt or source share a buffer row and the slots of their common past. It is for beams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import torch
from torch import Tensor

from lm.kernels.torch_ops import TopK
from lm.model.kv_cache import LayerKVCache
from lm.model.transformer import DecoderOnly, EncoderDecoder

if TYPE_CHECKING:
    from lm.engine.pytorch import KVCache

DecoderModel = DecoderOnly | EncoderDecoder
Layout = Literal["sequence", "tree", "none"]
"""Layout of the KV cache: `SequenceKVCache` or `TreeKVCache`; with "none" everything is recomputed each time."""


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """The requested outputs of a forward pass.

    Attributes:
        logits_to_keep: logits after this many last tokens of each row.
        top_k: if the engine supports it, this many best next tokens of each row, instead of logits.
        attention: the source attention weights of the last layer, for this many last tokens; a session reads it as a
            boolean, and wants those of the new tokens.
    """

    logits_to_keep: int = 1
    top_k: int = 0
    attention: int = 0


NO_OUTPUT, LAST_LOGITS = OutputSpec(logits_to_keep=0), OutputSpec()


@dataclass(frozen=True, slots=True)
class Output:
    """The outputs of a forward pass.

    Attributes:
        logits: (rows, logits_to_keep, vocabulary) float32, of an ensemble log-probabilities; None if not requested, or
            if the top k were.
        top_k: the best next tokens of each row, if requested and supported.
        attention: of each model (rows, source length), mean over heads, summed over the new tokens; if requested.
    """

    logits: Tensor | None = None
    top_k: TopK | None = None
    attention: Sequence[Tensor] = ()

    @property
    def last_logits(self) -> Tensor:
        """(rows, vocabulary) logits after the last token of each row."""
        assert self.logits is not None, "no logits were requested"
        return self.logits[:, -1]


class Engine(Protocol):
    """Computes decode steps of a model; thread-safe, with a cache per thread."""

    def forward(
        self, tokens: Tensor, rows: Sequence[int], positions: Sequence[int], cache: KVCache, output_spec: OutputSpec
    ) -> Output:
        """Compute a step, and write keys and values into the cache.

        Args:
            tokens: (rows, n) IDs.
            rows: of the cache, none of them empty; all of them in a `TreeKVCache`.
            positions: of the first token of each row.
            cache: extended in place.
        """


@dataclass(frozen=True, slots=True)
class CompiledStepInputs:
    """The inputs of a compiled decode step: tokens, and where their keys and values go.

    Attributes:
        tokens: (number,) IDs; those of a row one after the other.
        rows: (number,) the buffer row of each token.
        positions: (number,) the position of each token in its row.
        layers: the KV cache of each layer, with room for the new positions.
        end: greater than all positions.
        slots: (number, end) the slot of each position up to the token's own; None if slot and position are the same.
        cross_layers: of each layer of an encoder-decoder, keys and values of each row's source.
        lengths: (rows,) real source positions; None without a source.
    """

    tokens: Tensor
    rows: Tensor
    positions: Tensor
    layers: Sequence[LayerKVCache]
    end: int
    slots: Tensor | None = None
    cross_layers: Sequence[LayerKVCache] = ()
    lengths: Tensor | None = None


class EncodedSource:
    """The encoder output of a cache's sources, one per row.

    Attributes:
        output: (sources, source length, d_model).
        lengths: (sources,) real positions; None if all are.
        layers: of each decoder layer, the keys and values of the output; computed once.
    """

    def __init__(self, model: EncoderDecoder, source: Tensor, lengths: Tensor | None) -> None:
        """Encode (sources, length) IDs, or (sources, length, 4) with dependency trees, on the model's device."""
        self.output, self.lengths = model.encode(source, lengths=lengths), lengths
        self.layers: Sequence[LayerKVCache] = ()
        self._rows = torch.arange(len(source), device=source.device)

    def select(self, rows: Tensor, *, layers: bool = True) -> None:
        """Row i reads the source of the former row `rows[i]`; `layers` are reordered too, unless the caller does it."""
        source_rows = self._rows.index_select(0, rows)
        if torch.equal(source_rows, self._rows):
            return
        self._rows, self.output = source_rows, self.output.index_select(0, rows)
        self.lengths = None if self.lengths is None else self.lengths.index_select(0, rows)
        for layer in self.layers if layers else ():
            layer.reorder(rows)

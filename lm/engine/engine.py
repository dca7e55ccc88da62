"""Engines and their KV caches: what is asked of them, and what they give.

An engine computes logits for given tokens, rows, positions and cache, and keeps nothing of a session itself. A cache
has one of two layouts. In a `RowCache` each row has a place of its own, and repeated rows are copied: for samples,
which part for good, and for recurrent states. In a `SharedCache` the rows of one prompt or source share one place, and
repeated rows share the slots of their past: for beams, which keep most of it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from lm.kernels.torch_ops import TopK
from lm.model.kv_cache import LayerKVCache
from lm.model.transformer import DecoderOnly, EncoderDecoder

DecoderModel = DecoderOnly | EncoderDecoder
Layout = Literal["rows", "shared", "none"]
"""How a cache is laid out; with "none" all is read again each time."""


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """What is wanted of a forward pass.

    Attributes:
        logits_to_keep: logits after so many of the last tokens of each row.
        top_k: of engines that can find them, so many of the best tokens to follow each row, instead of the logits.
        attention: the weights by which the last layer attends to the source, of so many of the last tokens.
    """

    logits_to_keep: int = 1
    top_k: int = 0
    attention: int = 0


NO_OUTPUT, LAST_LOGITS = OutputSpec(logits_to_keep=0), OutputSpec()


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """What a forward pass gave.

    Attributes:
        logits: (rows, last, vocabulary) float32; None if none were wanted, or the best were found.
        top_k: the best tokens to follow each row, if they were wanted and the engine finds them.
        attention: (rows, source length) mean over heads, summed over the tokens that were asked for.
    """

    logits: Tensor | None = None
    top_k: TopK | None = None
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
        output_spec: OutputSpec,
        *,
        lengths: Sequence[int] | None = None,
    ) -> EngineOutput:
        """Read tokens, and have their keys and values in the cache.

        Args:
            tokens: (rows, n) ids; of rows that are new to the cache all of their window.
            rows: of the cache; all of them in a `SharedCache`.
            positions: where the first token of each row stands.
            cache: extended in place.
            output_spec: what to compute.
            lengths: how many tokens of each row are real, where padding follows them; only of new rows.
        """


class KVCache(Protocol):
    """What an engine remembers of the rows of a session, which are numbered from 0.

    Attributes:
        lengths: positions that it holds of each row.
        moves_freely: whether rows leave at no cost; else moving costs about as much as a decode step.
    """

    lengths: list[int]
    reorders_for_free: bool

    def needs_prefill(self, row: int) -> bool:
        """Whether the window of a row is to be read from its beginning."""

    def compute_hidden(
        self, model: DecoderModel, tokens: Tensor, rows: Sequence[int], positions: Sequence[int], lengths: Sequence[int]
    ) -> Tensor:
        """(rows, n, d_model) final states by PyTorch; arguments as of `Engine.forward`."""

    def prepare_step(self, tokens: Tensor, rows: Sequence[int], positions: Sequence[int]) -> StepInputs:
        """What compiled code is to read; the positions count as held then."""

    def add(self, rows: int) -> None:
        """Take in so many rows, of which nothing is held."""

    def select(self, rows: Sequence[int]) -> None:
        """Row i becomes what row `rows[i]` was; rows may be repeated or left out."""

    def release(self, rows: Collection[int]) -> None:
        """Let rows go; the others keep their order."""

    def truncate(self, lengths: Sequence[int]) -> None:
        """Hold at most so many positions of each row; none of a row whose state of then is not kept."""

    def clear(self, rows: Collection[int]) -> None:
        """Hold nothing of some rows."""


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Tokens that compiled code is to read, and where their keys and values go.

    Attributes:
        tokens: (number,) ids; those of a row one after the other.
        rows: (number,) the row of the layers' buffers that each token belongs to.
        positions: (number,) where it stands in its row.
        layers: the cache of each layer, with room for the new positions.
        end: a position after those of all tokens.
        slots: (number, end) the slot of each position up to the token's own; None if it is the position itself.
        cross_layers: of each layer of an encoder-decoder, keys and values of each row's source.
        lengths: (rows,) how many of these are real; None without a memory.
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
    """What an encoder made of the sources, one a row of the cache.

    Attributes:
        output: (sources, source length, d_model).
        lengths: (sources,) how many positions are real; None if all are.
        layers: of each layer of the decoder, keys and values of the output; computed once.
    """

    def __init__(self, model: EncoderDecoder, source: Tensor, lengths: Tensor | None) -> None:
        """Encode (sources, length) ids, or (sources, length, 4) with trees, on the model's device."""
        self.output, self.lengths = model.encode(source, lengths=lengths), lengths
        self.layers: Sequence[LayerKVCache] = ()
        self._rows = torch.arange(len(source), device=source.device)

    def select(self, rows: Tensor, *, layers: bool = True) -> None:
        """Row i reads the source of row `rows[i]`; `layers` move too, unless somebody else moves them."""
        of = self._rows.index_select(0, rows)
        if torch.equal(of, self._rows):
            return
        self._rows, self.output = of, self.output.index_select(0, rows)
        self.lengths = None if self.lengths is None else self.lengths.index_select(0, rows)
        for layer in self.layers if layers else ():
            layer.reorder(rows)

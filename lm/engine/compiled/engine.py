"""The engine of the compiled decode step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lm.config.model import ModelConfig
from lm.engine.compiled.decode_step import (
    LAYER,
    MODEL,
    ModelScalars,
    ModelShape,
    StepArrays,
    TopKArrays,
    address_dtype,
    decode_step,
)
from lm.engine.engine import CompiledStepInputs, DecoderModel, Output, OutputSpec
from lm.engine.pytorch import KVCache
from lm.errors import UsageError
from lm.kernels.torch_ops import TopK, numba_threads
from lm.kernels.vector_ops import ACTIVATIONS
from lm.model.kv_cache import LayerKVCache
from lm.model.positions import ALiBi, RotaryPositions, T5Bias
from lm.model.transformer import Stack

_BITS: Mapping[torch.dtype, np.dtype[Any]] = {torch.float32: np.dtype(np.float32), torch.int8: np.dtype(np.int8)}
"""The supported dtypes of matrices."""
_POSITIONS = 2048
"""The least number of positions in tables, if the context has as many."""


class _PositionTables(NamedTuple):
    """Tables by position.

    Attributes:
        addresses: of `MODEL`, tables included.
        shape: of the model, tables included.
        kept_alive: the tables, whose addresses are used.
        identity_slots: (1, length) the slots of a row whose positions are their own slots.
    """

    length: int
    addresses: np.void
    shape: ModelShape
    kept_alive: list[Tensor]
    identity_slots: Tensor


class CompiledEngine:
    """Runs the compiled decode step of one model, on the same caches as PyTorch."""

    def __init__(self, model: DecoderModel) -> None:
        """Take the addresses of the weights, which must not move.

        `lm.engine.selection.find_unsupported` knows the supported settings.
        """
        assert isinstance(model.decoder, Stack)
        weights, _ = model.output_layer
        own = model.state_dict()
        if model.head is None:
            own |= {name.replace("embedding.tokens", "head"): tensor for name, tensor in own.items()}
        blocks = [block.state_dict() for block in model.decoder.blocks]
        self._kept_alive: list[Tensor] = []
        self._first = next(model.parameters()).data_ptr()
        self._layers = np.array(
            [tuple(self._address(block.get(name)) for name in LAYER) for block in blocks], address_dtype(LAYER)
        )
        self._weights = np.array([tuple(self._address(own.get(name)) for name in MODEL)], address_dtype(MODEL))
        self._dtype_like: NDArray[Any] = np.empty(0, _BITS[weights.dtype])
        self._shape = _model_shape(model.config, blocks[0], vocabulary=len(weights))
        self._config, self._absolute_positions, self._relative_positions = (
            model.config,
            model.embedding.positions,
            model.decoder.positions,
        )
        self._tables = self._build_tables(0)
        fractions = (model.config.norm_eps, model.embedding.scale, model.config.softcap)
        self._scales = ModelScalars(*map(np.float32, fractions))

    def forward(
        self, tokens: Tensor, rows: Sequence[int], positions: Sequence[int], cache: KVCache, output_spec: OutputSpec
    ) -> Output:
        """See `Engine`."""
        step_inputs, vocabulary = cache.prepare_step(tokens, rows, positions), self._shape.vocab_size
        if output_spec.top_k:
            best = TopK.empty(len(step_inputs.tokens), min(output_spec.top_k, vocabulary))
            self._step(step_inputs, torch.empty(0, vocabulary), best)
            return Output(top_k=best)
        logits = torch.empty(len(step_inputs.tokens), vocabulary)
        self._step(step_inputs, logits, TopK.empty(0, 1))
        return Output(logits=logits.view(*tokens.shape, -1)[:, tokens.shape[1] - output_spec.logits_to_keep :])

    def _step(self, step_inputs: CompiledStepInputs, logits: Tensor, top_k: TopK) -> None:
        tables = self._tables
        if step_inputs.end > tables.length:
            tables = self._tables = self._build_tables(step_inputs.end)
        slots = tables.identity_slots[:, : step_inputs.end] if step_inputs.slots is None else step_inputs.slots
        lengths = step_inputs.positions[:0] if step_inputs.lengths is None else step_inputs.lengths
        batch = (step_inputs.tokens, step_inputs.rows, step_inputs.positions, slots, lengths)
        with numba_threads() as threads:
            unknown = decode_step(
                StepArrays(*(tensor.contiguous().numpy() for tensor in batch)), self._layers,
                _cache_addresses(step_inputs.layers), _cache_addresses(step_inputs.cross_layers), tables.addresses,
                tables.shape, self._scales, self._dtype_like, logits.numpy(),
                TopKArrays(*(tensor.numpy() for tensor in top_k)), threads,
            )  # fmt: skip
        if unknown >= 0:
            token, vocabulary = int(step_inputs.tokens[unknown]), self._shape.vocab_size
            raise UsageError(f"token ID {token} is not in the model's vocabulary: its {vocabulary} IDs start at 0")

    def has_weights_of(self, model: DecoderModel) -> bool:
        """Whether a model's weights are where they were; moving or converting a model moves them."""
        first = next(model.parameters())
        return first.data_ptr() == self._first and not first.requires_grad

    def _build_tables(self, length: int) -> _PositionTables:
        """Tables of at least `length` positions: of twice as many, up to the context, so that they seldom grow."""
        context = self._config.context_length
        length = max(length, min(context, max(2 * length, _POSITIONS)))
        tables = _position_tables(self._absolute_positions, self._relative_positions, length)
        weights = self._weights.copy()
        for name, table in tables.items():
            weights[name.replace(".", "_")] = table.data_ptr()
        shape = self._shape._replace(
            table_length=length, rotary_dim=tables["rotation"].shape[-1] if "rotation" in tables else 0
        )
        return _PositionTables(length, weights[0], shape, [*tables.values()], torch.arange(length)[None])

    def _address(self, tensor: Tensor | None) -> int:
        """The address of a tensor or its contiguous copy, which is kept alive."""
        if tensor is None:
            return 0
        self._kept_alive.append(tensor.detach().contiguous())
        return self._kept_alive[-1].data_ptr()


def _position_tables(vectors: nn.Module | None, positions: nn.Module | None, length: int) -> dict[str, Tensor]:
    """The tables of the position schemes, by name in `MODEL`."""
    cpu = torch.device("cpu")
    if vectors is not None:
        return {"embedding.positions": vectors(0, length, cpu).float().contiguous()}
    if isinstance(positions, RotaryPositions):
        return {"rotation": positions.table.rows(0, length, cpu).contiguous()}
    if isinstance(positions, ALiBi | T5Bias):
        distances = -torch.arange(length)[None, None]
        return {"biases": positions.bias(distances)[0, :, 0].float().contiguous()}
    return {}


def _model_shape(config: ModelConfig, block: Mapping[str, Tensor], *, vocabulary: int) -> ModelShape:
    return ModelShape(
        d_model=config.d_model, heads=config.n_heads, kv_heads=config.n_kv_heads, head_size=config.d_head,
        up_outputs=len(block["feed_forward.up.weight"]), vocab_size=vocabulary,
        activation=ACTIVATIONS[config.activation], rotary_dim=0,
        window=config.attention_window if config.attention == "window" else 0,
        table_length=0, is_layer_norm=int(config.norm == "layernorm"),
        norm_first=int(config.norm_position == "pre"), is_parallel=int(config.parallel_residual),
    )  # fmt: skip


def _cache_addresses(caches: Sequence[LayerKVCache]) -> NDArray[np.int64]:
    """(caches, 3): addresses of keys and values, and the capacity in positions."""
    buffers = [cache.buffers() for cache in caches]
    rows = [(keys.data_ptr(), values.data_ptr(), keys.shape[2]) for keys, values in buffers]
    return np.array(rows, np.int64).reshape(-1, 3)

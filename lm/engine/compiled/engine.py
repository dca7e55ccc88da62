"""The engine of the compiled decode step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from lm.engine.compiled.decode_step import (
    LAYER,
    MODEL,
    TENSOR_KINDS,
    ModelArrays,
    TopKArrays,
    address_dtype,
    decode_step,
)
from lm.engine.engine import Output, OutputSpec
from lm.engine.kv_cache import DecoderModel, KVCache
from lm.kernels.torch_ops import TopK, numba_threads
from lm.kernels.vector_ops import ACTIVATIONS
from lm.model.positions import ALiBi, RotaryPositions, T5Bias
from lm.model.transformer import Stack

_POSITIONS = 2048
"""The least number of positions in tables, if the context has as many."""


class CompiledEngine:
    """Runs the compiled decode step of one model, on the same caches as PyTorch."""

    def __init__(self, model: DecoderModel) -> None:
        """Take the addresses of the weights, which must not move.

        `lm.engine.selection.compiled_engine_supports` knows the supported settings.
        """
        assert isinstance(model.decoder, Stack)
        config, (weights, _), own = model.config, model.output_layer, model.state_dict()
        if model.head is None:
            own |= {name.replace("embedding.tokens", "head"): tensor for name, tensor in own.items()}
        own |= {"head.bias": own["output_bias"]} if "output_bias" in own else {}
        blocks = [block.state_dict() for block in model.decoder.blocks]
        self._kept_alive: list[Tensor] = []
        self._first = next(model.parameters()).data_ptr()
        self._embedding_positions, self._positions = model.embedding.positions, model.decoder.positions
        self._context_length = config.context_length
        self._model = ModelArrays(
            layers=np.array([self._addresses(LAYER, block) for block in blocks], address_dtype(LAYER)),
            modules=np.array([self._addresses(MODEL, own)], address_dtype(MODEL)),
            dtype_like=np.empty(0, np.int8 if weights.dtype is torch.int8 else np.float32),
            d_model=config.d_model, heads=config.n_heads, kv_heads=config.n_kv_heads, head_size=config.d_head,
            up_outputs=len(blocks[0]["feed_forward.up.weight"]), vocab_size=len(weights),
            activation=ACTIVATIONS[config.activation], rotary_dim=0,
            window=config.attention_window if config.attention == "window" else 0, table_length=0,
            is_layer_norm=config.norm == "layernorm", norm_first=config.norm_position == "pre",
            is_parallel=config.parallel_residual, epsilon=np.float32(config.norm_eps),
            embedding_scale=np.float32(model.embedding.scale), cap=np.float32(config.softcap),
        )  # fmt: skip
        self._model = self._with_tables(0)

    def forward(
        self, tokens: Tensor, rows: Sequence[int], positions: Sequence[int], cache: KVCache, output_spec: OutputSpec
    ) -> Output:
        """Compute a decode step; see `TorchEngine.forward`."""
        number, n, vocabulary = tokens.numel(), tokens.shape[1], self._model.vocab_size
        batch, end = cache.prepare_step(tokens, rows, positions), max(positions) + n
        model = self._model
        if end > model.table_length:
            model = self._model = self._with_tables(end)
        is_top_k = output_spec.top_k > 0
        logits = torch.empty(0 if is_top_k else number, vocabulary)
        best = TopK.empty(number, min(output_spec.top_k, vocabulary)) if is_top_k else TopK.empty(0, 1)
        with numba_threads() as threads:
            decode_step(batch, model, logits.numpy(), TopKArrays(*(tensor.numpy() for tensor in best)), threads)
        if is_top_k:
            return Output(top_k=best)
        return Output(logits=logits.view(*tokens.shape, -1)[:, n - output_spec.logits_to_keep :])

    def has_weights_of(self, model: DecoderModel) -> bool:
        """Whether a model's weights are where they were; moving or converting a model moves them."""
        first = next(model.parameters())
        return first.data_ptr() == self._first and not first.requires_grad

    def _with_tables(self, length: int) -> ModelArrays:
        """The model with tables of at least `length` positions: of twice as many, up to the context."""
        length = max(length, min(self._context_length, max(2 * length, _POSITIONS)))
        cpu, positions, modules, rotary_dim = torch.device("cpu"), self._positions, self._model.modules.copy(), 0
        if self._embedding_positions is not None:
            name, table = "embedding_positions", self._embedding_positions(0, length, cpu).float()
        elif isinstance(positions, RotaryPositions):
            name, table = "rotation", positions.table.rows(0, length, cpu)
            rotary_dim = table.shape[-1]
        elif isinstance(positions, ALiBi | T5Bias):
            biases, _ = positions.compute_bias(torch.empty(0), -torch.arange(length)[None, None], layer=0)
            name, table = "biases", biases[0, :, 0].float()
        else:
            return self._model._replace(table_length=length)
        modules[name]["weight"] = self._address(table)
        return self._model._replace(modules=modules, rotary_dim=rotary_dim, table_length=length)

    def _addresses(self, names: Sequence[str], tensors: Mapping[str, Tensor]) -> tuple[tuple[int, ...], ...]:
        """The addresses of modules' tensors; of what is no module, of the tensor itself."""
        tensors = {**{f"{name}.weight": tensor for name, tensor in tensors.items()}, **tensors}
        return tuple(tuple(self._address(tensors.get(f"{name}.{kind}")) for kind in TENSOR_KINDS) for name in names)

    def _address(self, tensor: Tensor | None) -> int:
        """The address of a tensor or its contiguous copy, which is kept alive."""
        if tensor is None:
            return 0
        self._kept_alive.append(tensor.detach().contiguous())
        return self._kept_alive[-1].data_ptr()

"""The engine of the compiled decode step; importing it imports numba, after `initialise_numba`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from lm.engine import Output, OutputSpec
from lm.engine.decode_step import LAYER, MODEL, TENSOR_KINDS, ModelArrays, address_dtype, decode_step
from lm.engine.kv_cache import DecoderModel, KVCache
from lm.kernels.torch_ops import TopK, numba_threads
from lm.kernels.vector_ops import ACTIVATIONS
from lm.model import Stack
from lm.model.positions import ALiBi, RotaryPositions, T5Bias


class CompiledEngine:
    """Runs the compiled decode step of one model, on the same caches as PyTorch."""

    def __init__(self, model: DecoderModel, address: int = 0) -> None:
        """Take the addresses of the weights, which must not move; `address` is that of the first.

        `lm.engine.compiled_engine_supports` knows the supported settings.
        """
        assert isinstance(model.decoder, Stack)
        config, (weights, _), own = model.config, model.output_layer, model.state_dict()
        if model.head is None:
            own |= {name.replace("embedding.tokens", "head"): tensor for name, tensor in own.items()}
        own |= {"head.bias": own["output_bias"]} if "output_bias" in own else {}
        blocks = [block.state_dict() for block in model.decoder.blocks]
        self.address, self._kept_alive = address, list[Tensor]()
        positions, length, cpu = model.decoder.positions, config.context_length, torch.device("cpu")
        if model.embedding.positions is not None:
            own["embedding.positions"] = model.embedding.positions(0, length, cpu).float()
        elif isinstance(positions, RotaryPositions):
            own["rotation"] = positions.table.rows(0, length, cpu)
        elif isinstance(positions, ALiBi | T5Bias):
            own["biases"] = positions.bias(-torch.arange(length)[None, None])[0, :, 0].float()
        self._model = ModelArrays(
            layers=np.array([self._addresses(LAYER, block) for block in blocks], address_dtype(LAYER)),
            modules=np.array([self._addresses(MODEL, own)], address_dtype(MODEL)),
            dtype_like=np.empty(0, np.int8 if weights.dtype is torch.int8 else np.float32),
            d_model=config.d_model, heads=config.n_heads, kv_heads=config.n_kv_heads, head_size=config.d_head,
            up_outputs=len(blocks[0]["feed_forward.up.weight"]), vocab_size=len(weights),
            activation=ACTIVATIONS[config.activation],
            rotary_dim=own["rotation"].shape[-1] if "rotation" in own else 0,
            n_offset_heads=config.n_offset_heads,
            window=config.attention_window if config.attention == "window" else 0, table_length=length,
            is_layer_norm=config.norm == "layernorm", norm_first=config.norm_position == "pre",
            is_parallel=config.parallel_residual, epsilon=np.float32(config.norm_eps),
            embedding_scale=np.float32(model.embedding.scale), cap=np.float32(config.softcap),
        )  # fmt: skip

    def forward(
        self, tokens: Tensor, rows: Sequence[int], positions: Sequence[int], cache: KVCache, output_spec: OutputSpec
    ) -> Output:
        """Compute a decode step; see `TorchEngine.forward`."""
        number, n, vocabulary = tokens.numel(), tokens.shape[1], self._model.vocab_size
        batch, k = cache.prepare_step(tokens, rows, positions), min(output_spec.top_k, vocabulary)
        logits, best = torch.empty(0 if k else number, vocabulary), TopK.empty(number if k else 0, max(k, 1))
        with numba_threads() as threads:
            decode_step(batch, self._model, logits.numpy(), tuple(tensor.numpy() for tensor in best), threads)
        if k:
            return Output(top_k=best)
        return Output(logits=logits.view(*tokens.shape, -1)[:, n - output_spec.logits_to_keep :])

    def _addresses(self, names: Sequence[str], tensors: Mapping[str, Tensor]) -> tuple[tuple[int, ...], ...]:
        """The addresses of modules' tensors; of what is no module, of the tensor itself."""
        tensors = {**tensors, **{f"{name}.weight": tensor for name, tensor in tensors.items()}}
        return tuple(tuple(self._address(tensors.get(f"{name}.{kind}")) for kind in TENSOR_KINDS) for name in names)

    def _address(self, tensor: Tensor | None) -> int:
        """The address of a tensor or its contiguous copy, which is kept alive."""
        if tensor is None:
            return 0
        self._kept_alive.append(tensor.detach().contiguous())
        return self._kept_alive[-1].data_ptr()

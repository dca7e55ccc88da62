"""The engine of the compiled decode step, which is compiled and saved once per machine and version."""

from __future__ import annotations

import fcntl
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import numpy as np
import torch
from torch import Tensor

from lm import files
from lm.config.model import ModelConfig
from lm.engine import LAST_LOGITS, NO_OUTPUT, Output, OutputSpec, TorchEngine
from lm.engine.decode_step import LAYER, MODEL, TENSOR_KINDS, ModelArrays, address_dtype, decode_step
from lm.engine.kv_cache import DecoderModel, KVCache
from lm.errors import InputError
from lm.kernels import code_cache
from lm.kernels.torch_ops import TopK, initialise_numba, numba_threads
from lm.kernels.vector_ops import ACTIVATIONS
from lm.model import DecoderOnly, Stack
from lm.model.layers import quantise
from lm.model.positions import ALiBi, RotaryPositions, T5Bias
from lm.processes import default_signal_handling, python_command


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


_SMALL = ModelConfig(vocab_size=8, context_length=4, d_model=4, n_layers=1, n_heads=1)
"""The compiled code doesn't depend on the model's shape."""
_CHILD = """
import os
from lm.engine.compiled import compile_decode_step
from lm.processes import end_after
end_after(lambda: os.read(0, 1))  # its standard input closes when the parent ends
os.nice(10)  # a tenth of a core that training keeps busy
compile_decode_step()
"""


def compile_decode_step() -> None:
    """Compile everything, or wait for another process that does; signals end this process meanwhile.

    Raises:
        InputError: numba is missing or disabled, or the cache is not writable.
    """
    if code_cache.is_complete():
        return
    if not code_cache.is_installed():
        raise InputError("compiling needs numba: pip install numba, and unset NUMBA_DISABLE_JIT")
    folder = code_cache.code_folder()
    # Python's signal handlers would not run in LLVM
    with files.with_path_in_errors(folder), default_signal_handling():
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            code_cache.is_complete.cache_clear()
            if not code_cache.is_complete():
                _call_everything()
                (folder / "complete").touch()
    code_cache.is_complete.cache_clear()


def _call_everything() -> None:
    """Call each compiled function with all types of arguments that it is called with."""
    initialise_numba()
    from lm.kernels import matmul, vector_ops

    token, one = torch.zeros(1, 1, dtype=torch.long), np.ones((1, 1), np.float32)
    vector_ops.top_k(one, one, *(tensor.numpy() for tensor in TopK.empty(1, 1)))
    matmul.matmul(one.astype(np.int8), one[0], one[0], one, one.copy(), False, 1)
    for is_quantised in (False, True):
        model = DecoderOnly(_SMALL).eval().requires_grad_(False)
        if is_quantised:
            quantise(model)
        with torch.inference_mode():
            cache = KVCache(model)
            cache.add(1)
            TorchEngine(model).forward(token, [0], (), cache, NO_OUTPUT, lengths=[1])
            CompiledEngine(model).forward(token, [0], [1], cache, LAST_LOGITS)


@contextmanager
def compiling_in_child() -> Iterator[subprocess.Popen[bytes]]:
    """Compile in a child process of low priority, which ends with the context or this process.

    What it has compiled until then is saved.
    """
    no_output = subprocess.DEVNULL
    with subprocess.Popen(python_command(_CHILD), stdin=subprocess.PIPE, stdout=no_output, stderr=no_output) as child:
        try:
            yield child
        finally:
            child.kill()
            code_cache.is_complete.cache_clear()

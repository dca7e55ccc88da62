"""Engine selection: which engine runs a model, fixed before decoding."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch

from lm.config.model import ModelConfig
from lm.engine.engine import TorchEngine
from lm.engine.kv_cache import DecoderModel
from lm.kernels import code_cache
from lm.kernels.torch_ops import initialise_numba
from lm.model.transformer import count_parameters

if TYPE_CHECKING:
    from lm.engine.compiled.engine import CompiledEngine

_COMPILED_ANY = frozenset({
    "vocab_size", "source_vocab_size", "context_length", "d_model", "n_layers", "n_encoder_layers", "n_heads",
    "n_kv_heads", "d_ff", "attention_window", "attention_block", "global_blocks", "random_blocks", "attention_rank",
    "attention_stride", "max_distance", "max_tree_distance", "syntax", "rope_base", "d_head",
    "rotary_fraction", "rope_factor", "rope_context", "rope_slow", "rope_fast", "rope_temperature",
    "parallel_residual", "norm_eps", "qk_norm", "bias", "dropout", "attention_dropout", "tie_embeddings",
    "scale_embeddings", "init_std", "zero_init", "softcap", "value_residual", "output_bias",
})  # fmt: skip
"""Fields of which compiled code supports all values; `syntax` only affects the encoder, which PyTorch runs."""
_COMPILED_SOME: dict[str, tuple[object, ...]] = {
    "architecture": ("transformer",),
    "attention": ("full", "window"),
    "objective": ("causal",),
    "experts_per_token": (1,),
    "expert_every": (1,),
    "positions": ("learned", "sinusoidal", "sinusoidal-half", "rotary", "alibi", "t5", "none"),
    "rope_scaling": ("none", "linear", "llama3", "yarn"),
    "attention_bias": (None, "none", "inputs", "all"),
    "norm": ("layernorm", "rmsnorm"),
    "norm_position": ("pre", "post"),
    "activation": ("relu", "gelu", "gelu-tanh", "swiglu", "relu2", "silu"),
}
"""Fields of which it supports some; every other field must have its default, and that be off."""
_OFF = (False, None, "none", ())
_MAX_TOKENS = 64
"""The most tokens per step for which compiled code is faster; in an encoder-decoder any number."""
_LAYER_SECONDS, _BYTES_PER_SECOND, _LOADING_SECONDS = 2e-4, 1e10, 0.4
"""On a Zen 3: of a layer's calls in a step of PyTorch, of reading weights, and of loading compiled code."""

_compiled: WeakKeyDictionary[DecoderModel, CompiledEngine] = WeakKeyDictionary()


def compiled_engine_supports(config: ModelConfig) -> bool:
    """Whether compiled code knows every setting of a model."""
    return all(
        field.name in _COMPILED_ANY
        or getattr(config, field.name)
        in _COMPILED_SOME.get(field.name, (field.default,) if field.default in _OFF else ())
        for field in fields(config)
    )


@dataclass(frozen=True)
class EnginePlan:
    """The engines of one model.

    Attributes:
        pytorch: runs what the other doesn't.
        compiled: computes steps of few tokens, if it supports the model here.
        use_cache: whether keys and values are cached; else everything is recomputed each time.
        is_compiled: whether compiled code is loaded, which finds the top k of any logits on a CPU.
    """

    model: DecoderModel
    pytorch: TorchEngine
    compiled: CompiledEngine | None
    use_cache: bool
    is_compiled: bool

    def step_engine(self, tokens: int) -> TorchEngine | CompiledEngine:
        """Return the engine for a decode step with a number of tokens, of all rows together."""
        is_fast = self.model.config.is_encoder_decoder or tokens <= _MAX_TOKENS
        return self.compiled if self.compiled is not None and is_fast else self.pytorch

    @property
    def dtype(self) -> str:
        """The dtype of the model's matrices, as a value of the setting `dtype`."""
        weights, _ = self.model.output_layer
        return str(weights.dtype).removeprefix("torch.")

    def __str__(self) -> str:
        return f"{self.dtype}, {'PyTorch' if self.compiled is None else 'compiled engine'}"


def plan_engines(model: DecoderModel, *, tokens: int | None = None, use_cache: bool = True) -> EnginePlan:
    """Choose the engines of a session.

    Args:
        model: in eval mode; its weights must not move, so the compiled engine runs none that are being trained.
        tokens: tokens to generate per row; None if unknown. Compiled code is only loaded for work that takes PyTorch
            longer than loading it.
        use_cache: else everything is recomputed each time, which is the reference.
    """
    config, (weights, _), first = model.config, model.output_layer, next(model.parameters())
    use_cache = use_cache and config.attention != "compressed"
    is_loaded = first.device.type == "cpu" and code_cache.is_complete()
    if is_loaded and tokens is not None and "numba" not in sys.modules and weights.dtype is not torch.int8:
        # int8 always uses compiled matmuls
        read = torch.float32.itemsize * count_parameters(model) / _BYTES_PER_SECOND
        is_loaded = tokens * (config.n_layers * _LAYER_SECONDS + read) > _LOADING_SECONDS
    runs_compiled = (
        use_cache and is_loaded and compiled_engine_supports(config)
        and weights.dtype in {torch.float32, torch.int8} and first.dtype is torch.float32
        and not any(parameter.requires_grad for parameter in model.parameters())
    )  # fmt: skip
    return EnginePlan(
        model, TorchEngine(model), get_compiled_engine(model) if runs_compiled else None, use_cache, is_loaded
    )


def needs_compiling(config: ModelConfig, device: str) -> bool:
    """Whether `lm compile` would make a model faster."""
    can_compile = code_cache.is_installed() and not code_cache.is_complete()
    return can_compile and device == "cpu" and compiled_engine_supports(config)


def get_compiled_engine(model: DecoderModel) -> CompiledEngine:
    """Return the engine of a model, whose code is loaded the first time."""
    address = next(model.parameters()).data_ptr()  # moving or converting a model moves its weights
    engine = _compiled.get(model)
    if engine is None or engine.address != address:
        initialise_numba()
        from lm.engine.compiled.engine import CompiledEngine

        engine = _compiled[model] = CompiledEngine(model, address)
    return engine

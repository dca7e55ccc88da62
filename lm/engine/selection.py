"""Engine selection: which engine runs a model, fixed before decoding."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch

from lm.config.model import ModelConfig
from lm.engine.engine import DecoderModel, Layout
from lm.engine.pytorch import Engine, TorchEngine
from lm.kernels import code_cache
from lm.kernels.torch_ops import initialise_numba
from lm.model.transformer import count_parameters

if TYPE_CHECKING:
    from lm.engine.compiled.engine import CompiledEngine

_COMPILED_ANY = frozenset({
    "vocab_size", "source_vocab_size", "context_length", "d_model", "n_layers", "n_encoder_layers", "n_heads",
    "n_kv_heads", "d_ff", "attention_window", "max_distance", "max_tree_distance", "syntax", "rope_base", "d_head",
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


def find_unsupported(config: ModelConfig) -> str | None:
    """Return the first setting of a model that compiled code doesn't know, as `field=value`; None if it runs it."""
    for field in fields(config):
        value = getattr(config, field.name)
        known = _COMPILED_SOME.get(field.name, (field.default,) if field.default in _OFF else ())
        if field.name not in _COMPILED_ANY and value not in known:
            return f"{field.name}={value}"
    return None


@dataclass(frozen=True)
class EnginePlan:
    """The engines of one model.

    Attributes:
        pytorch: runs what the other doesn't.
        compiled: computes steps of few tokens, if it supports the model here.
        reason: why it was chosen, or why there is none.
        is_compiled: whether compiled code is loaded, which finds the top k of any logits on a CPU.
    """

    model: DecoderModel
    layout: Layout
    pytorch: TorchEngine
    compiled: CompiledEngine | None
    reason: str
    is_compiled: bool

    def step_engine(self, tokens: int) -> Engine:
        """Return the engine for a decode step with a number of tokens, of all rows together."""
        is_fast = self.model.config.is_encoder_decoder or tokens <= _MAX_TOKENS
        return self.compiled if self.compiled is not None and is_fast else self.pytorch

    @property
    def dtype(self) -> str:
        """The dtype of the model's matrices, as a value of the setting `dtype`."""
        weights, _ = self.model.output_layer
        return str(weights.dtype).removeprefix("torch.")

    def __str__(self) -> str:
        return f"{self.dtype}, {'PyTorch' if self.compiled is None else 'compiled engine'} ({self.reason})"


def plan_engines(
    model: DecoderModel, *, tokens: int | None = None, shares_prefixes: bool = False, use_cache: bool = True
) -> EnginePlan:
    """Choose the engines of a session, and the layout of its cache.

    Args:
        model: in eval mode; its weights must not move.
        tokens: tokens to generate per row; None if unknown. Compiled code is only loaded for work that takes PyTorch
            longer than loading it.
        shares_prefixes: rows are repeated often, as a beam's are.
        use_cache: else everything is recomputed each time, which is the reference.
    """
    config, pytorch = model.config, TorchEngine(model)
    not_loaded = _why_not_loaded(model, tokens)
    if config.attention == "compressed" or not use_cache:
        return EnginePlan(model, "none", pytorch, None, "nothing is cached", not_loaded is None)
    reason = _why_not_compiled(model) or not_loaded
    # In PyTorch a mask that separates a prompt's rows costs more than a copy.
    is_tree = config.translates or (shares_prefixes and reason is None)
    layout: Layout = "tree" if is_tree and not config.is_recurrent else "sequence"
    if reason is not None:
        return EnginePlan(model, layout, pytorch, None, reason, not_loaded is None)
    return EnginePlan(model, layout, pytorch, get_compiled_engine(model), "CPU, compiled code is installed", True)


def _why_not_compiled(model: DecoderModel) -> str | None:
    """Why compiled code doesn't support a model; None if it does."""
    (weights, _), first = model.output_layer, next(model.parameters())
    if weights.dtype not in {torch.float32, torch.int8} or first.dtype is not torch.float32:
        return f"no compiled code for {str(first.dtype).removeprefix('torch.')}"
    if (setting := find_unsupported(model.config)) is not None:
        return f"no compiled code for {setting}"
    if any(parameter.requires_grad for parameter in model.parameters()):  # perhaps only of adapters
        return "the weights are being trained, which may move them"
    return None


def _why_not_loaded(model: DecoderModel, tokens: int | None) -> str | None:
    """Why compiled code is not loaded for a model; None if it is."""
    device, (weights, _) = next(model.parameters()).device.type, model.output_layer
    if device != "cpu":
        return f"no compiled code for device {device}"
    if not code_cache.is_complete():
        return "no code is compiled yet" if code_cache.is_installed() else "numba is not installed"
    if tokens is None or "numba" in sys.modules or weights.dtype is torch.int8:  # int8 always uses compiled matmuls
        return None
    read = torch.float32.itemsize * count_parameters(model) / _BYTES_PER_SECOND
    if tokens * (model.config.n_layers * _LAYER_SECONDS + read) > _LOADING_SECONDS:
        return None
    return f"{tokens} tokens are generated before compiled code is loaded"


def needs_compiling(config: ModelConfig, device: str) -> bool:
    """Whether `lm compile` would make a model faster."""
    can_compile = code_cache.is_installed() and not code_cache.is_complete()
    return can_compile and device == "cpu" and find_unsupported(config) is None


def get_compiled_engine(model: DecoderModel) -> CompiledEngine:
    """Return the engine of a model, whose code is loaded the first time."""
    engine = _compiled.get(model)
    if engine is None or not engine.has_weights_of(model):
        initialise_numba()
        from lm.engine.compiled.engine import CompiledEngine

        engine = _compiled[model] = CompiledEngine(model)
    return engine

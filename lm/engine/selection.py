"""Engine selection: which engine runs which model and operation, declared per config field, fixed before decoding."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal
from weakref import WeakKeyDictionary

import torch

from lm.config.model import ModelConfig
from lm.engine.cuda_graph import RECORDERS, CudaGraphEngine
from lm.engine.engine import DecoderModel, Engine, Layout
from lm.engine.pytorch import TorchEngine
from lm.kernels import code_cache
from lm.kernels.torch_ops import initialise_numba
from lm.model.transformer import DecoderOnly, EncoderDecoder, count_parameters

if TYPE_CHECKING:
    from lm.engine.compiled.engine import CompiledEngine

Operation = Literal["prefill", "step", "verify", "attention", "beyond_context"]
"""A kind of forward pass: a prompt; one more token of each row, or several; with source attention; positions beyond
the context.
"""

ANY_VALUE = object()
"""In a declaration: all values of the field are supported."""

_SUPPORTED_EVERYWHERE = (
    "vocab_size", "source_vocab_size", "context_length", "d_model", "n_layers", "n_heads", "n_kv_heads", "d_ff",
    "attention_window", "max_distance", "max_tree_distance", "rope_base", "d_head", "rotary_fraction", "rope_factor",
    "rope_context", "rope_slow", "rope_fast", "rope_temperature", "parallel_residual", "norm_eps", "qk_norm",
    "bias", "dropout", "attention_dropout", "tie_embeddings", "scale_embeddings", "init_std", "zero_init",
    "softcap", "value_residual", "embedding_shortcut", "output_bias",
)  # fmt: skip
"""Fields of which both compiled code and CUDA graphs support all values."""
_SUPPORTED_SUBSETS = {
    "architecture": {"transformer"},
    "attention": {"full", "window"},
    "objective": {"causal"},
    "experts": {0},
}
"""Fields of which both support some values: those with a step of fixed shapes, of transformer blocks."""

COMPILED_SUPPORT: Mapping[str, object] = {
    **dict.fromkeys(_SUPPORTED_EVERYWHERE, ANY_VALUE),
    **_SUPPORTED_SUBSETS,
    "n_encoder_layers": ANY_VALUE,
    "decoder_only": {False},  # it could, but with different rounding than before
    "syntax": ANY_VALUE,  # only affects the encoder, which PyTorch runs
    "positions": {"learned", "sinusoidal", "sinusoidal-half", "rotary", "alibi", "t5", "none"},
    "rope_scaling": {"none", "linear", "llama3", "yarn"},
    "attention_bias": {None, "none", "inputs", "all"},
    "norm": {"layernorm", "rmsnorm"},
    "norm_position": {"pre", "post"},
    "activation": {"relu", "gelu", "gelu-tanh", "swiglu", "relu2", "silu"},
    "experts_per_token": {1},
    "expert_every": {1},
}
"""For every field of `ModelConfig`, the values that the compiled engine supports."""

CUDA_GRAPH_SUPPORT: Mapping[str, object] = {
    **dict.fromkeys(
        (*COMPILED_SUPPORT, "embedding_norm", "output_transform"), ANY_VALUE
    ),  # the graph replays PyTorch's own kernels
    **_SUPPORTED_SUBSETS,
    "n_encoder_layers": {0},
}
"""For every field of `ModelConfig`, the values whose step can be recorded: those with fixed shapes."""


def find_unsupported(config: ModelConfig, declared: Mapping[str, object]) -> str | None:
    """Return the first setting of a model that an engine doesn't support, as `field=value`; None if it supports all.

    Args:
        declared: `COMPILED_SUPPORT` or `CUDA_GRAPH_SUPPORT`; a missing field must be off (false, 0, none) by
            default.
    """
    for field in fields(config):
        off = () if field.default and field.default != "none" else (field.default,)
        value, values = getattr(config, field.name), declared.get(field.name, off)
        if values is not ANY_VALUE and value not in values:  # type: ignore[operator]
            return f"{field.name}={value}"
    return None


COMPILED_OPERATIONS: Mapping[Operation, float] = {
    "prefill": 0,  # PyTorch computes the sources' keys and values; its matmuls are faster for many tokens
    "step": 64,
    "verify": 64,
    "attention": 0,
    "beyond_context": 0,
}
"""The most tokens per call for which compiled code is faster; in an encoder-decoder any number."""
CUDA_GRAPH_OPERATIONS: Mapping[Operation, float] = {
    "prefill": 0,
    "step": 64,  # more rows keep a GPU busy, and each number of rows is a separate recording
    "verify": 0,
    "attention": 0,
    "beyond_context": 0,
}
"""The same of recorded steps."""

_DTYPES = (torch.float32, torch.int8)
_LAYER_SECONDS, _BYTES_PER_SECOND, _LOADING_SECONDS = 2e-4, 1e10, 0.4
"""On a Zen 3: of a layer's calls in a step of PyTorch, of reading weights, and of loading compiled code."""

_compiled: WeakKeyDictionary[DecoderModel, CompiledEngine] = WeakKeyDictionary()


@dataclass(frozen=True)
class EnginePlan:
    """The engines of one model, and what each does.

    Attributes:
        pytorch: runs what the other doesn't.
        accelerated: a faster engine, if one supports the model here.
        accelerated_up_to: of each operation, the most tokens per call for which the faster engine is used.
        reason: why it was chosen, or why there is none.
        is_compiled: whether compiled code is loaded, which finds the top k of any logits on a CPU.
    """

    model: DecoderModel
    layout: Layout
    pytorch: TorchEngine
    accelerated: Engine | None
    accelerated_up_to: Mapping[Operation, float]
    reason: str
    is_compiled: bool = False

    def engine(self, operation: Operation, tokens: int) -> Engine:
        """The engine for an operation on a number of tokens, of all rows together."""
        if self.accelerated is None or tokens > self.accelerated_up_to[operation]:
            return self.pytorch
        return self.accelerated

    @property
    def dtype(self) -> str:
        """The dtype of the model's matrices, as a value of the setting `dtype`."""
        weights, _ = self.model.output_layer
        return str(weights.dtype).removeprefix("torch.")

    def __str__(self) -> str:
        name = self.pytorch.name if self.accelerated is None else f"{self.accelerated.name} engine"
        return f"{self.dtype}, {name} ({self.reason})"


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
    layout: Layout = "tree" if shares_prefixes or config.translates else "sequence"
    if config.is_recurrent:
        layout = "sequence"
    device = next(model.parameters()).device.type
    not_loaded = _why_not_loaded(model, tokens) if device == "cpu" else f"no compiled code for device {device}"
    is_loaded = not_loaded is None
    if config.attention == "compressed" or not use_cache:
        return EnginePlan(model, "none", pytorch, None, {}, "nothing is cached", is_loaded)
    reason = _why_not_compiled(model) or not_loaded
    if reason is None:
        compiled, reason = get_compiled_engine(model), "CPU, compiled code is installed"
        return EnginePlan(model, layout, pytorch, compiled, _accelerated_up_to(config), reason, is_loaded)
    layout = layout if config.translates else "sequence"  # a mask that separates a prompt's rows costs more than a copy
    if device in RECORDERS:
        reason = _why_not_recorded(model, layout)
        if reason is None:
            assert isinstance(model, DecoderOnly)
            return EnginePlan(model, layout, pytorch, CudaGraphEngine(model), CUDA_GRAPH_OPERATIONS, f"device {device}")
    return EnginePlan(model, layout, pytorch, None, {}, reason, is_loaded)


def _accelerated_up_to(config: ModelConfig) -> Mapping[Operation, float]:
    if not config.is_encoder_decoder:
        return COMPILED_OPERATIONS
    return {operation: math.inf if most else 0 for operation, most in COMPILED_OPERATIONS.items()}


def _why_not_compiled(model: DecoderModel) -> str | None:
    """Why compiled code doesn't support a model on the CPU; None if it does."""
    (weights, _), first = model.output_layer, next(model.parameters())
    if weights.dtype not in _DTYPES or first.dtype is not torch.float32:
        return f"no compiled code for {str(first.dtype).removeprefix('torch.')}"
    if (setting := find_unsupported(model.config, COMPILED_SUPPORT)) is not None:
        return f"no compiled code for {setting}"
    if any(parameter.requires_grad for parameter in model.parameters()):  # perhaps only of adapters
        return "the weights are being trained, which may move them"
    return None


def needs_compiling(config: ModelConfig, device: str) -> bool:
    """Whether `lm compile` would make a model faster."""
    can_compile = code_cache.is_installed() and not code_cache.is_complete()
    return can_compile and device == "cpu" and find_unsupported(config, COMPILED_SUPPORT) is None


def _why_not_loaded(model: DecoderModel, tokens: int | None) -> str | None:
    """Why compiled code is not loaded for a model on the CPU; None if it is."""
    if not code_cache.is_complete():
        return "no code is compiled yet" if code_cache.is_installed() else "numba is not installed"
    weights, _ = model.output_layer
    is_loaded = "numba" in sys.modules or weights.dtype is torch.int8  # int8 always uses compiled matmuls
    if tokens is not None and not is_loaded and not _is_worth_loading(model, tokens):
        return f"{tokens} tokens are generated before compiled code is loaded"
    return None


def _is_worth_loading(model: DecoderModel, tokens: int) -> bool:
    """Whether PyTorch needs longer for some tokens than loading takes, at speeds that are the same everywhere."""
    weights = torch.float32.itemsize * count_parameters(model) / _BYTES_PER_SECOND
    return tokens * (model.config.n_layers * _LAYER_SECONDS + weights) > _LOADING_SECONDS


def get_compiled_engine(model: DecoderModel) -> CompiledEngine:
    """Return the engine of a model, whose code is loaded the first time."""
    engine = _compiled.get(model)
    if engine is None or not engine.has_weights_of(model):
        initialise_numba()
        from lm.engine.compiled.engine import CompiledEngine

        engine = _compiled[model] = CompiledEngine(model)
    return engine


def _why_not_recorded(model: DecoderModel, layout: Layout) -> str | None:
    """Why steps of a model are not recorded as CUDA graphs; None if they are."""
    device = next(model.parameters()).device.type
    if isinstance(model, EncoderDecoder) or layout != "sequence":
        return "rows share prefixes, and steps of changing shapes are not recorded"
    if (setting := find_unsupported(model.config, CUDA_GRAPH_SUPPORT)) is not None:
        return f"no CUDA graphs for {setting}"
    if model.training or torch.is_autocast_enabled(device) or next(model.parameters()).requires_grad:
        return "the weights are being trained, or converted for each operation"
    return None

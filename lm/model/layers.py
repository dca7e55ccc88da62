"""Layers that act on each position alone: linear (float or int8), norms, dropout, feed-forward and output heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lm.config.model import ModelConfig
from lm.hardware import measure_speedup
from lm.kernels.torch_ops import int8_matmul
from lm.model.module import Module

_MIN_ONEDNN_MACS = 1_000_000
"""MACs from which a matmul may be computed by oneDNN."""
_TIMED_ROWS, _TIMED_INPUTS, _TIMED_OUTPUTS, _TRIALS = 128, 256, 512, 9
"""The matmul that both libraries are timed with, and the number of trials."""
_MIN_SPEEDUP = 1.25
"""The least speed-up by oneDNN at which it is used."""
_FUSED_ACTIVATION = "gelu-tanh"
"""The activation that oneDNN may fuse with the matmul."""
_INT8_MAX = 127
"""The largest int8 used; the smallest is its negative."""
_WEIGHTS_PER_CHUNK = 2**20
"""Weights converted to float32 at a time, when quantising or before a matmul, so that they stay in the CPU cache.

For 32,768 outputs and 768 inputs, one row and one thread of an AMD EPYC: 3 ms; all at once 52 ms, in float32 6 ms.
"""


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _relu_squared(x: Tensor) -> Tensor:
    """Source: So et al. 2021 (Primer)."""
    return F.relu(x).square()


def _swiglu(x: Tensor) -> Tensor:
    """(…, 2·width), gate and value -> (…, width). Source: Shazeer 2020."""
    gate, value = x.chunk(2, dim=-1)
    return F.silu(gate) * value


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": _gelu_tanh,
    "relu2": _relu_squared,
    "silu": F.silu,
    "swiglu": _swiglu,
}


@dataclass
class OneDNNKernels:
    """What oneDNN computes in this process instead of torch's own kernels.

    Attributes:
        float32: float32 matmuls.
        fused_dtypes: dtypes in which the matmul is fused with the activation `_FUSED_ACTIVATION`.
    """

    float32: bool = False
    fused_dtypes: set[torch.dtype] = field(default_factory=set)


onednn_kernels = OneDNNKernels()


def choose_matmul_kernels(dtype: torch.dtype, activation: str) -> None:
    """Choose which matmuls of a dtype oneDNN computes: those where it is clearly faster.

    Both are timed once per process, alternating. Until then torch computes all of them.
    """
    if dtype is torch.float32:
        onednn_kernels.float32 = _onednn_is_faster()
    if activation == _FUSED_ACTIVATION and _fused_is_faster(dtype):
        onednn_kernels.fused_dtypes.add(dtype)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `x` weightᵀ + bias: (…, inputs) and (outputs, inputs) -> (…, outputs).

    torch uses MKL for float32, which on some CPUs leaves half of the vector units idle, unlike oneDNN: 160 rows of 160
    by 480 weights, one thread of an AMD EPYC with AVX-512: MKL 103, oneDNN 206 GFLOP/s; with AVX2 103 and 111. Below a
    million MACs there is little difference.
    """
    if onednn_kernels.float32 and weight.dtype is torch.float32 and _onednn_applies(x, weight):
        return _onednn_linear(x, weight, bias)
    return F.linear(x, weight, bias)


def _onednn_applies(x: Tensor, weight: Tensor) -> bool:
    """Whether a matmul has a single dtype, no gradient, and is large enough to matter."""
    return (
        weight.dtype is x.dtype
        and x.device.type == "cpu"
        and not torch.is_grad_enabled()
        and x.numel() * len(weight) >= _MIN_ONEDNN_MACS
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


class Linear(nn.Linear, Module):
    """torch's linear layer, with `linear` as the matmul.

    Attributes:
        std: standard deviation of the initial weights; biases start at zero.
        projected: the outputs of each projection in it, such as queries, keys and values.
    """

    def __init__(
        self, inputs: int, outputs: int, *, bias: bool = True, std: float = 0.02, projected: Sequence[int] | None = None
    ) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.std, self.projected = std, [outputs] if projected is None else [*projected]

    def initialise(self) -> None:
        nn.init.normal_(self.weight, std=self.std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        """(…, inputs) -> (…, outputs)."""
        return self.matmul(input, self.bias)

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Apply the weights with another bias, or none."""
        return linear(x, self.weight, bias)

    def matmul_in_dtype_of(self, x: Tensor) -> Tensor:
        """Apply the weights without bias, in the dtype of `x`."""
        return linear(x, self.weight.to(x.dtype))

    def to_int8(self) -> Int8Linear:
        return Int8Linear(self)

    def forward_activated(self, x: Tensor, activation: str) -> Tensor:
        """Apply the layer and an activation, fused where that is faster: (…, inputs) -> (…, outputs).

        torch's tanh GELU takes four times as long as the exact one, a quarter of the layer's time in bfloat16: 5,120
        rows of 768 by 3,072 weights, one thread of an AMD EPYC with AVX512-BF16: 89 ms, fused 67; in float32 144 and
        129. With AVX2 oneDNN is slower.
        """
        may_fuse = activation == _FUSED_ACTIVATION and x.dtype in onednn_kernels.fused_dtypes and type(self) is Linear
        if may_fuse and _onednn_applies(x, self.weight):
            return _onednn_linear_gelu(x, self.weight, self.bias)
        return ACTIVATIONS[activation](self(x))

    def forward_slice(self, x: Tensor, outputs: slice) -> Tensor:
        """Compute a slice of the outputs: (…, inputs) -> (…, some of the outputs)."""
        return linear(x, self.weight[outputs], None if self.bias is None else self.bias[outputs])


class TokenEmbedding(nn.Embedding):
    """The token embedding, which may also be the weights of the output layer."""

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiply states by all embeddings: (…, d_model) -> (…, vocabulary)."""
        return linear(x, self.weight, bias)

    def to_int8(self) -> Int8Embedding:
        return Int8Embedding(self)


class Int8Linear(Linear):
    """A linear layer with int8 weights and one scale per output.

    Attributes:
        weight: (outputs, inputs) int8, from -127 to 127.
        scale: (outputs,) float32, the factor of each output's weights.
    """

    scale: Tensor

    def __init__(self, layer: Linear) -> None:
        """Quantise a layer; the bias is shared."""
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.std, self.projected = layer.std, layer.projected
        _quantise_rows(self, layer.weight)
        self.register_parameter("bias", layer.bias)

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """See `Linear.matmul`; computed in the dtype of `x`."""
        return _int8_matmul(x, self.weight, self.scale, bias)

    def matmul_in_dtype_of(self, x: Tensor) -> Tensor:
        return self.matmul(x)

    def forward_slice(self, x: Tensor, outputs: slice) -> Tensor:
        """(…, inputs) -> (…, some of the outputs)."""
        bias = None if self.bias is None else self.bias[outputs]
        return _int8_matmul(x, self.weight[outputs], self.scale[outputs], bias)


class Int8Embedding(TokenEmbedding):
    """An int8 token embedding with one scale per token; see `Int8Linear`."""

    scale: Tensor

    def __init__(self, embedding: TokenEmbedding) -> None:
        nn.Module.__init__(self)
        self.num_embeddings, self.embedding_dim = embedding.num_embeddings, embedding.embedding_dim
        _quantise_rows(self, embedding.weight)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        """(…,) tokens -> (…, d_model) float32."""
        return self.weight[input].float() * self.scale[input][..., None]

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """See `TokenEmbedding.matmul`; computed in the dtype of `x`."""
        return _int8_matmul(x, self.weight, self.scale, bias)


def quantise(model: nn.Module) -> None:
    """Quantise all linear layers and embeddings of a model to int8, in place."""
    for name, module in model.named_children():
        if isinstance(module, Linear | TokenEmbedding):
            setattr(model, name, module.to_int8())
        else:
            quantise(module)


@torch.no_grad()
def _quantise_rows(layer: nn.Module, weight: Tensor) -> None:
    """Register int8 weights and scales: the largest absolute weight of each output becomes 127."""
    values, scales = torch.empty_like(weight, dtype=torch.int8), weight.new_empty(len(weight), dtype=torch.float32)
    chunk_size = _outputs_per_chunk(weight)
    for part, rounded, scale in zip(*(tensor.split(chunk_size) for tensor in (weight, values, scales)), strict=True):
        torch.amax(part.float().abs(), 1, out=scale).clamp_(min=torch.finfo(torch.float32).tiny).div_(_INT8_MAX)
        rounded.copy_((part.float() / scale[:, None]).round_())
    layer.register_buffer("weight", values)
    layer.register_buffer("scale", scales)


def _int8_matmul(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """(…, inputs) -> (…, outputs) in the dtype of `x`; by compiled code where that is available."""
    compiled = int8_matmul(weight, scale, bias, x)
    if compiled is not None:
        return compiled
    chunk_size = min(len(weight), _outputs_per_chunk(weight))
    widened = x.new_empty(chunk_size, x.shape[-1])  # one buffer for all chunks
    output = x.new_empty(*x.shape[:-1], len(weight))
    for part, into in zip(weight.split(chunk_size), output.split(chunk_size, -1), strict=True):
        into.copy_(F.linear(x, widened[: len(part)].copy_(part)))
    output *= scale.to(x.dtype)
    return output if bias is None else output + bias


def _outputs_per_chunk(weight: Tensor) -> int:
    return max(1, _WEIGHTS_PER_CHUNK // weight.shape[1])


def _onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def _onednn_linear_gelu(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "gelu", [], "tanh")


@cache
@torch.no_grad()
def _onednn_is_faster() -> bool:
    x, weight = torch.ones(_TIMED_ROWS, _TIMED_INPUTS), torch.ones(_TIMED_OUTPUTS, _TIMED_INPUTS)
    return _is_clearly_faster(lambda: _onednn_linear(x, weight, None), lambda: F.linear(x, weight))


@cache
@torch.no_grad()
def _fused_is_faster(dtype: torch.dtype) -> bool:
    """Whether the fused kernel is clearly faster than matmul and activation in this dtype.

    The operands are realistic: torch's tanh is slower where it saturates, which favoured oneDNN with AVX2.
    """
    numbers = torch.Generator().manual_seed(0)
    x, weight = (
        torch.randn(rows, _TIMED_INPUTS, generator=numbers).to(dtype) for rows in (_TIMED_ROWS, _TIMED_OUTPUTS)
    )
    weight *= _TIMED_INPUTS**-0.5
    return _is_clearly_faster(
        lambda: _onednn_linear_gelu(x, weight, None), lambda: ACTIVATIONS[_FUSED_ACTIVATION](linear(x, weight))
    )


def _is_clearly_faster(by_onednn: Callable[[], object], otherwise: Callable[[], object]) -> bool:
    if not torch.backends.mkldnn.is_available():
        return False
    try:
        return measure_speedup(by_onednn, otherwise, tries=_TRIALS) > _MIN_SPEEDUP
    except (AttributeError, RuntimeError):  # not supported by this torch or processor
        return False


class RMSNorm(nn.RMSNorm, Module):
    """torch's RMSNorm; weights start at one. Source: Zhang and Sennrich 2019."""

    part = "norms"


class LayerNorm(nn.LayerNorm, Module):
    """torch's LayerNorm; weights start at one and biases at zero. Source: Ba et al. 2016."""

    part = "norms"


def build_norm(config: ModelConfig, *, part: str = "norms") -> RMSNorm | LayerNorm:
    """Build the norm of a model over d_model; its parameters count as `part`."""
    if config.norm == "rmsnorm":
        norm: RMSNorm | LayerNorm = RMSNorm(config.d_model, config.norm_eps)
    else:
        norm = LayerNorm(config.d_model, config.norm_eps, bias=config.bias)
    norm.part = part
    return norm


def output_std(config: ModelConfig) -> float:
    """Return the standard deviation of a sublayer's initial output weights: init_std / √(2·layers), or zero.

    Source: Radford et al. 2019, section 2.3; zero initialisation: Zhang et al. 2019 (Fixup), section 3.
    """
    layers = max(config.n_layers, config.n_encoder_layers)
    return 0.0 if config.zero_init else config.init_std / (2 * layers) ** 0.5


class Dropout(nn.Module):
    """Dropout with `dropout`. Source: Srivastava et al. 2014."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Drop at random in training; torch's generator decides what."""
        return dropout(x, self.rate) if self.training else x


def dropout(x: Tensor, rate: float) -> Tensor:
    """Zero values at random at a rate, and scale up the others.

    On a CPU, torch draws a number per value, which takes a quarter of the step of a small encoder-decoder; a byte per
    value takes a tenth of that. There the rate is a multiple of 1/256, and the scale is that of the actual rate.
    """
    if rate == 0.0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, rate)
    draw = torch.ops.lm.dropout_mask if torch.compiler.is_compiling() else _dropout_mask
    return x * draw(x.detach(), max(1, round(256 * rate)))


def _dropout_mask(values: Tensor, dropped: int) -> Tensor:
    """A mask of the shape and dtype of `values`: 0 for `dropped` of 256 values, and the scale for the others."""
    words = torch.empty(-(-values.numel() // 8), dtype=torch.int64).random_(-(2**63), None)
    bytes_ = words.view(torch.uint8)[: values.numel()].view(values.shape)
    keep = torch.ge(bytes_, dropped, out=torch.empty_like(values, memory_format=torch.contiguous_format))
    return keep.mul_(256 / (256 - dropped))


# Compiled models use this mask too: F.dropout under torch.compile costs more on a CPU than compiling saves
_dropout_mask_op = torch.library.custom_op(
    "lm::dropout_mask", _dropout_mask, mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)


@_dropout_mask_op.register_fake
def _(values: Tensor, dropped: int) -> Tensor:  # noqa: ARG001
    return torch.empty_like(values, memory_format=torch.contiguous_format)


class FeedForward(Module):
    """The position-wise feed-forward layer: linear, activation, linear."""

    def __init__(self, config: ModelConfig, *, part: str = "feed-forward") -> None:
        super().__init__()
        self.part = part
        width = config.d_ff
        projected = [width, width] if config.activation == "swiglu" else [width]
        self.up = Linear(config.d_model, sum(projected), bias=config.bias, std=config.init_std, projected=projected)
        self.down = Linear(width, config.d_model, bias=config.bias, std=output_std(config))
        self.activation = config.activation

    def forward(self, x: Tensor, _inputs: object = None) -> Tensor:
        """(batch, length, d_model) -> the same shape."""
        return self.down(self.up.forward_activated(x, self.activation))


class OutputTransform(Module):
    """A linear layer, activation and norm before the output layer.

    Source: Devlin et al. 2019 (in their code).
    """

    part = "output transform"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        widths = 2 if config.activation == "swiglu" else 1  # gate and value
        self.up = Linear(config.d_model, widths * config.d_model, bias=config.bias, std=config.init_std)
        self.activation = config.activation
        self.norm = build_norm(config, part=self.part)

    def forward(self, x: Tensor) -> Tensor:
        """(…, d_model) -> the same shape."""
        return self.norm(self.up.forward_activated(x, self.activation))


class ClassificationHead(Module):
    """The output head of a classifier: pools the state of the first token, BERT's [CLS], and scores the labels.

    Source: Devlin et al. 2019, section 3.2 and their code (the pooler).
    """

    part = "label head"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pooler = Linear(config.d_model, config.d_model, std=config.init_std)
        self.dropout = Dropout(config.dropout)
        self.labels = Linear(config.d_model, len(config.labels), std=config.init_std)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, d_model) final states -> (batch, 1, d_model)."""
        return self.dropout(self.pooler(x[:, :1]).tanh())

"""Layers that act on each position alone: linear (float or int8), norms, dropout, feed-forward and output heads.

A module may have a method `initialise`, which draws the initial values of its own parameters; see `initialise`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lm.config.model import ModelConfig
from lm.kernels.torch_ops import int8_matmul

_INT8_MAX = 127
"""The largest int8 used; the smallest is its negative."""
_WEIGHTS_PER_CHUNK = 2**20
"""Weights converted to float32 at a time, when quantising or before a matmul, so that they stay in the CPU cache.

For 32,768 outputs and 768 inputs, one row and one thread of an AMD EPYC: 3 ms; all at once 52 ms, in float32 6 ms.
"""
_MIN_ONEDNN_MACS = 1_000_000
"""MACs from which a matmul may be computed by oneDNN."""
_BLOCK, _MIN_LENGTH = 128, 512
"""Queries per block, and the positions beyond which attention is computed by blocks."""
HAS_BFLOAT16 = torch.cpu._is_avx512_bf16_supported()
"""Whether this CPU multiplies bfloat16."""
MKL_IS_SLOW = torch.backends.cpu.get_cpu_capability() == "AVX512" and not torch.cpu._is_amx_tile_supported()
"""Whether it has AVX-512 but not AMX, as AMD's have."""


def initialise(model: nn.Module) -> None:
    """Initialise the parameters of all modules of a model, from the outside inwards, in registration order.

    Vectors start as constants, so the matrices don't depend on which vectors there are.
    """
    for module in model.modules():
        if draw := getattr(module, "initialise", None):
            draw()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `x` weightᵀ + bias: (…, inputs) and (outputs, inputs) -> (…, outputs).

    torch uses MKL for float32, which on AMD's CPUs leaves half of the vector units idle, unlike oneDNN: 160 rows of 160
    by 480 weights, one thread of an EPYC with AVX-512: MKL 103, oneDNN 206 GFLOP/s; with AVX2 103 and 111. Below a
    million MACs there is little difference.
    """
    if MKL_IS_SLOW and _suits_onednn(x, weight, torch.float32):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return F.linear(x, weight, bias)


def _suits_onednn(x: Tensor, weight: Tensor, dtype: torch.dtype) -> bool:
    """Whether a matmul has a single dtype, this one, no gradient, and is large enough to matter."""
    is_large = x.numel() * len(weight) >= _MIN_ONEDNN_MACS and not torch.is_grad_enabled()
    return is_large and x.dtype is weight.dtype is dtype and _is_eager_on_cpu(x)


def _is_eager_on_cpu(x: Tensor) -> bool:
    return x.device.type == "cpu" and not torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling()


def uses_blocks(query: Tensor, n_keys: int) -> bool:
    """Whether causal attention from (batch, heads, queries, head) to as many keys is computed block by block.

    torch's fused CPU kernel computes in float32 between its matmuls and leaves most of a processor's bfloat16 units
    unused: 4 rows, 12 heads, 1024 positions, head 64, one thread of an AMD EPYC with AVX512-BF16: 132 ms, block by
    block 69 ms. In float32 blocks are slower. Training uses torch's kernels.
    """
    is_long = query.shape[2] == n_keys > _MIN_LENGTH and not query.requires_grad
    return is_long and HAS_BFLOAT16 and query.dtype is torch.bfloat16 and _is_eager_on_cpu(query)


def blockwise_causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention: (batch, heads, length, head), with fewer key/value heads if grouped -> the same shape."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    batch, heads, length, head = query.shape
    output = query.new_empty(batch, length, heads, head).transpose(1, 2)  # the layout that the output projection reads
    query = (query * head**-0.5).flatten(0, 1)
    key, value = key.transpose(-1, -2).flatten(0, 1), value.flatten(0, 1)  # one copy for all blocks
    future = torch.full((_BLOCK, _BLOCK), -torch.inf, dtype=query.dtype).triu(1)
    for start in range(0, length, _BLOCK):
        end = min(start + _BLOCK, length)
        scores = query[:, start:end] @ key[:, :, :end]
        scores[..., start:] += future[: end - start, : end - start]
        output[:, :, start:end] = (scores.softmax(-1) @ value[:, :end]).unflatten(0, (batch, heads))
    return output


def _swiglu(x: Tensor) -> Tensor:
    """(…, 2·width), gate and value -> (…, width). Source: Shazeer 2020."""
    gate, value = x.chunk(2, dim=-1)
    return F.silu(gate) * value


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "relu2": lambda x: F.relu(x).square(),  # So et al. 2021 (Primer)
    "silu": F.silu,
    "swiglu": _swiglu,
}


class Linear(nn.Linear):
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

    def take_shape(self, layer: Linear) -> None:
        """Become a module like a layer, without weights."""
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.std, self.projected = layer.std, layer.projected

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
        rows of 768 by 3,072 weights, one thread of an AMD EPYC with AVX512-BF16: 89 ms, fused 67.
        """
        is_plain = activation == "gelu-tanh" and type(self) is Linear and HAS_BFLOAT16
        if is_plain and _suits_onednn(x, self.weight, torch.bfloat16):
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "gelu", [], "tanh")
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


class _Int8(nn.Module):
    """Int8 weights with one scale per output.

    Attributes:
        weight: (outputs, inputs) int8, from -127 to 127.
        scale: (outputs,) float32, the factor of each output's weights.
    """

    weight: Tensor
    scale: Tensor

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Apply the weights: (…, inputs) -> (…, outputs) in the dtype of `x`."""
        return _int8_matmul(x, self.weight, self.scale, bias)


class Int8Linear(_Int8, Linear):
    """A linear layer with int8 weights."""

    def __init__(self, layer: Linear) -> None:
        """Quantise a layer; the bias is shared."""
        self.take_shape(layer)
        _quantise_rows(self, layer.weight)
        self.register_parameter("bias", layer.bias)

    def matmul_in_dtype_of(self, x: Tensor) -> Tensor:
        return self.matmul(x)

    def forward_slice(self, x: Tensor, outputs: slice) -> Tensor:
        """(…, inputs) -> (…, some of the outputs)."""
        bias = None if self.bias is None else self.bias[outputs]
        return _int8_matmul(x, self.weight[outputs], self.scale[outputs], bias)


class Int8Embedding(_Int8, TokenEmbedding):
    """An int8 token embedding with one scale per token."""

    def __init__(self, embedding: TokenEmbedding) -> None:
        nn.Module.__init__(self)
        self.num_embeddings, self.embedding_dim = embedding.num_embeddings, embedding.embedding_dim
        _quantise_rows(self, embedding.weight)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        """(…,) tokens -> (…, d_model) float32."""
        return self.weight[input].float() * self.scale[input][..., None]


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
    return len(weight) if weight.is_cuda else max(1, _WEIGHTS_PER_CHUNK // weight.shape[1])


def build_norm(config: ModelConfig) -> nn.RMSNorm | nn.LayerNorm:
    """Build the norm of a model over d_model.

    Source: Zhang and Sennrich 2019 (RMSNorm); Ba et al. 2016 (LayerNorm).
    """
    if config.norm == "rmsnorm":
        return nn.RMSNorm(config.d_model, config.norm_eps)
    return nn.LayerNorm(config.d_model, config.norm_eps, bias=config.bias)


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


class FeedForward(nn.Module):
    """The position-wise feed-forward layer: linear, activation, linear."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.d_ff
        projected = [width, width] if config.activation == "swiglu" else [width]
        self.up = Linear(config.d_model, sum(projected), bias=config.bias, std=config.init_std, projected=projected)
        self.down = Linear(width, config.d_model, bias=config.bias, std=output_std(config))
        self.activation = config.activation

    def forward(self, x: Tensor, _inputs: object = None) -> Tensor:
        """(batch, length, d_model) -> the same shape."""
        return self.down(self.up.forward_activated(x, self.activation))


class OutputTransform(nn.Module):
    """A linear layer, activation and norm before the output layer.

    Source: Devlin et al. 2019 (in their code).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        widths = 2 if config.activation == "swiglu" else 1  # gate and value
        self.up = Linear(config.d_model, widths * config.d_model, bias=config.bias, std=config.init_std)
        self.activation = config.activation
        self.norm = build_norm(config)

    def forward(self, x: Tensor) -> Tensor:
        """(…, d_model) -> the same shape."""
        return self.norm(self.up.forward_activated(x, self.activation))


class ClassificationHead(nn.Module):
    """The output head of a classifier: pools the state of the first token, BERT's [CLS], and scores the labels.

    Source: Devlin et al. 2019, section 3.2 and their code (the pooler).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pooler = Linear(config.d_model, config.d_model, std=config.init_std)
        self.dropout = Dropout(config.dropout)
        self.labels = Linear(config.d_model, len(config.labels), std=config.init_std)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, d_model) final states -> (batch, 1, d_model)."""
        return self.dropout(self.pooler(x[:, :1]).tanh())

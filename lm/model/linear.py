"""Linear layers and their activations, computed by the faster of the libraries that torch has for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lm.hardware import times_as_fast
from lm.model.module import Module, multiplied
from lm.model.quantised import Int8Matrix


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _relu_squared(x: Tensor) -> Tensor:
    """Source: So et al. 2021 (Primer)."""
    return F.relu(x).square()


def _swiglu(x: Tensor) -> Tensor:
    """(…, 2·width): a gate and what it lets through -> (…, width). Source: Shazeer 2020."""
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


_LEAST_PRODUCTS = 1_000_000
"""Multiplications from which a product may go to oneDNN."""
_ROWS, _INPUTS, _OUTPUTS, _TRIES = 128, 256, 512, 9
"""The product that both libraries are timed with, and how often."""
_CLEARLY = 1.25
"""How many times as fast oneDNN must be to be taken."""
_FUSED = "gelu-tanh"
"""The activation that may be computed by oneDNN, together with the product."""


def linear(x: Tensor, weight: Tensor | Int8Matrix, bias: Tensor | None = None) -> Tensor:
    """The product `x` weightᵀ + bias: (…, inputs) and (outputs, inputs) -> (…, outputs).

    torch takes MKL for float32, which on some CPUs leaves half of the vector units idle, as oneDNN does not: 160 rows
    of 160 by 480 weights, one thread of an AMD EPYC with AVX-512: MKL 103, oneDNN 206 GFLOP/s; with AVX2 103 and 111.
    Below a million multiplications neither is ahead by much.
    """
    if isinstance(weight, Int8Matrix):
        return weight.product(x, bias)
    if weight.dtype is torch.float32 and _may_go_to_onednn(x, weight) and _onednn_is_faster():
        return _by_onednn(x, weight, bias)
    return F.linear(x, weight, bias)


def _may_go_to_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether a product is one of plain numbers of a single type, without a gradient, and large enough to matter."""
    return (
        weight.dtype is x.dtype
        and x.device.type == "cpu"
        and not torch.is_grad_enabled()
        and x.numel() * len(weight) >= _LEAST_PRODUCTS
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def rows(weight: Tensor | Int8Matrix, outputs: Tensor) -> Tensor:
    """The weights of some outputs, such as the vectors of tokens: (…,) numbers -> (…, inputs)."""
    return weight.rows(outputs) if isinstance(weight, Int8Matrix) else F.embedding(outputs, weight)


class Linear(nn.Linear, Module):
    """torch's linear layer, with `linear` for the product.

    Attributes:
        std: standard deviation of its initial weights; biases start at zero.
        projected: the number of outputs of each projection that it holds, such as queries, keys and values.
    """

    def __init__(
        self, inputs: int, outputs: int, *, bias: bool = True, std: float = 0.02, projected: Sequence[int] | None = None
    ) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.std, self.projected = std, [outputs] if projected is None else [*projected]

    def initialise(self) -> None:
        """Draw the weights from a normal distribution."""
        nn.init.normal_(self.weight, std=self.std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def weights_per_position(self) -> float:
        """See `Module`."""
        return multiplied(self.weight)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        """(…, inputs) -> (…, outputs)."""
        return linear(input, self.weight, self.bias)

    def activated(self, x: Tensor, activation: str) -> Tensor:
        """(…, inputs) -> an activation of (…, outputs), which may be computed together with the product.

        torch's GELU with a tanh takes four times as long as the exact one, a quarter of the layer's time in bfloat16:
        5,120 rows of 768 by 3,072 weights, one thread of an AMD EPYC with AVX512-BF16: 89 ms, in one go 67; in float32
        144 and 129. With AVX2 oneDNN's is the slower one.
        """
        is_plain = activation == _FUSED and isinstance(self.weight, Tensor)  # which 8 bits are not
        if is_plain and _may_go_to_onednn(x, self.weight) and _fused_is_faster(x.dtype):
            return _fused_by_onednn(x, self.weight, self.bias)
        return ACTIVATIONS[activation](self(x))

    def some(self, x: Tensor, outputs: slice) -> Tensor:
        """(…, inputs) -> (…, some of the outputs)."""
        return linear(x, self.weight[outputs], None if self.bias is None else self.bias[outputs])


def _by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def _fused_by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`_FUSED` of the product."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "gelu", [], "tanh")


@cache
def _onednn_is_faster() -> bool:
    """Whether oneDNN clearly is faster here: both multiply in turns."""
    x, weight = torch.ones(_ROWS, _INPUTS), torch.ones(_OUTPUTS, _INPUTS)
    return _is_clearly_faster(lambda: _by_onednn(x, weight, None), lambda: F.linear(x, weight))


@cache
@torch.no_grad()
def _fused_is_faster(dtype: torch.dtype) -> bool:
    """Whether a product of this type together with its activation clearly is faster here than one after the other.

    Of numbers as a model has them: torch's tanh is slower where it is 1, and then oneDNN's seemed faster with AVX2.
    """
    numbers = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(rows, _INPUTS, generator=numbers).to(dtype) for rows in (_ROWS, _OUTPUTS))
    weight *= _INPUTS**-0.5
    return _is_clearly_faster(lambda: _fused_by_onednn(x, weight, None), lambda: ACTIVATIONS[_FUSED](linear(x, weight)))


def _is_clearly_faster(by_onednn: Callable[[], object], otherwise: Callable[[], object]) -> bool:
    if not torch.backends.mkldnn.is_available():
        return False
    try:
        return times_as_fast(by_onednn, otherwise, tries=_TRIES) > _CLEARLY
    except (AttributeError, RuntimeError):  # a torch without this operator, or one that does not know the processor
        return False

"""Matrices in 8 bits: whole numbers from -127 to 127, and for each output a scale."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lm.kernels.tensors import product

_LARGEST = 127
_WIDENED_AT_ONCE = 2**20
"""Weights that are in float32 at a time where they are rounded, and that are widened for a product before they are
multiplied, so that they are still in the processor's cache: of 32,768 outputs and 768 inputs, one row and one
thread of an AMD EPYC, 3 ms; all at once 52 ms, in float32 6 ms."""


class Int8Matrix:
    """A matrix of weights in 8 bits.

    Attributes:
        values: (outputs, inputs) int8.
        scales: (outputs,) float32, what the values of an output are multiplied by.
    """

    dtype = torch.int8

    def __init__(self, values: Tensor, scales: Tensor) -> None:
        self.values, self.scales = values, scales

    @classmethod
    @torch.no_grad()
    def of(cls, weight: Tensor) -> Int8Matrix:
        """The nearest to (outputs, inputs) weights: the largest of each output becomes 127, or -127."""
        values, scales = torch.empty_like(weight, dtype=torch.int8), weight.new_empty(len(weight), dtype=torch.float32)
        at_once = _outputs_at_once(weight)
        for part, rounded, scale in zip(*(of.split(at_once) for of in (weight, values, scales)), strict=True):
            torch.amax(part.float().abs(), 1, out=scale).clamp_(min=torch.finfo(torch.float32).tiny).div_(_LARGEST)
            rounded.copy_((part.float() / scale[:, None]).round_())
        return cls(values, scales)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, outputs: slice) -> Int8Matrix:
        """Some of the outputs."""
        return Int8Matrix(self.values[outputs], self.scales[outputs])

    def rows(self, outputs: Tensor) -> Tensor:
        """(…,) numbers of outputs -> (…, inputs) float32."""
        return self.values[outputs].float() * self.scales[outputs][..., None]

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """(…, inputs) -> (…, outputs), computed in the type of `x`; by compiled code, where that is ready."""
        compiled = product(self.values, self.scales, bias, x)
        if compiled is not None:
            return compiled
        at_once = min(len(self), _outputs_at_once(self.values))
        wide = x.new_empty(at_once, x.shape[-1])  # one for all parts, or each would have a place of its own
        found = x.new_empty(*x.shape[:-1], len(self))
        for part, into in zip(self.values.split(at_once), found.split(at_once, -1), strict=True):
            into.copy_(F.linear(x, wide[: len(part)].copy_(part)))
        found *= self.scales.to(x.dtype)
        return found if bias is None else found + bias


def _outputs_at_once(weight: Tensor) -> int:
    return max(1, _WIDENED_AT_ONCE // weight.shape[1])


def quantise(model: nn.Module) -> None:
    """Round the weights of all linear layers and embeddings of a model to 8 bits, in place, one after another."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Embedding):
            weight = Int8Matrix.of(layer.weight)
            del layer.weight  # where torch has a parameter, it takes nothing else
            setattr(layer, "weight", weight)  # noqa: B010 (its type says that there is always a parameter)


def int8_matrices(module: nn.Module) -> Iterator[tuple[str, Int8Matrix]]:
    """The matrices in 8 bits of a module, by the names of their layers."""
    for name, layer in module.named_modules():
        weight = getattr(layer, "weight", None)
        if isinstance(weight, Int8Matrix):
            yield name, weight


def tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """All weights of a module by their names; of matrices in 8 bits the values are the weight, beside their scales."""
    yield from module.named_parameters()
    for name, matrix in int8_matrices(module):
        yield f"{name}.weight", matrix.values
        yield f"{name}.scale", matrix.scales

"""Matrices in 8 bits: whole numbers from -127 to 127, and for each output a scale."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lm.kernels.tensors import product

_LARGEST = 127
_WIDENED_AT_ONCE = 2**20
"""Weights that are widened for a product before they are multiplied, so that they are still in the processor's cache:
of 32,768 outputs and 768 inputs, one row and one thread of an AMD EPYC, 3 ms; all at once 52 ms, in float32 6 ms."""


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
    def of(cls, weight: Tensor) -> Int8Matrix:
        """The nearest to (outputs, inputs) weights: the largest of each output becomes 127, or -127."""
        scales = weight.float().abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / _LARGEST
        return cls((weight.float() / scales[:, None]).round_().to(torch.int8), scales)

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
        parts = self.values.split(max(1, _WIDENED_AT_ONCE // self.values.shape[1]))
        found = [F.linear(x, part.to(x.dtype)) for part in parts]
        scaled = (found[0] if len(found) == 1 else torch.cat(found, -1)) * self.scales.to(x.dtype)
        return scaled if bias is None else scaled + bias


def quantise(model: nn.Module) -> None:
    """Round the weights of all linear layers and embeddings of a model to 8 bits, in place, one after another."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Embedding):
            weight = Int8Matrix.of(layer.weight)
            del layer.weight  # where torch has a parameter, it takes nothing else
            setattr(layer, "weight", weight)  # noqa: B010 (its type says that there is always a parameter)
    for parameter in model.parameters():  # each may be a view of the file that all came from, which stays with it
        parameter.data = parameter.data.clone()


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

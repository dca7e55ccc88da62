"""Matrices in 8 bits: whole numbers from -127 to 127, and for each output a scale."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LARGEST = 127


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
        """(…, inputs) -> (…, outputs), computed in the type of `x`."""
        found = F.linear(x, self.values.to(x.dtype)) * self.scales.to(x.dtype)
        return found if bias is None else found + bias


class Int8Linear(nn.Module):
    """A linear layer whose weights have 8 bits; its bias stays as it was."""

    def __init__(self, layer: nn.Linear) -> None:
        """Round the weights of a layer."""
        super().__init__()
        self.weight, self.bias = Int8Matrix.of(layer.weight), layer.bias

    def forward(self, x: Tensor) -> Tensor:
        """(…, inputs) -> (…, outputs)."""
        return self.weight.product(x, self.bias)

    def some(self, x: Tensor, outputs: slice) -> Tensor:
        """(…, inputs) -> (…, some of the outputs)."""
        return self.weight[outputs].product(x, None if self.bias is None else self.bias[outputs])


class Int8Embedding(nn.Module):
    """A table of embeddings with a scale for each token, which an output layer may share."""

    def __init__(self, table: nn.Embedding) -> None:
        """Round the vectors of a table."""
        super().__init__()
        self.weight = Int8Matrix.of(table.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        """(…,) ids -> (…, d_model) float32."""
        return self.weight.rows(tokens)


def quantise(model: nn.Module) -> None:
    """Round the weights of all linear layers and embeddings of a model to 8 bits, in place, one after another."""
    for parent, name, layer in list(_matrices(model)):
        setattr(parent, name, Int8Embedding(layer) if isinstance(layer, nn.Embedding) else Int8Linear(layer))


def _matrices(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear | nn.Embedding]]:
    """The layers that `quantise` replaces, each with what it belongs to and its name there."""
    for parent in model.modules():
        for name, layer in parent.named_children():
            if isinstance(layer, nn.Linear | nn.Embedding):
                yield parent, name, layer

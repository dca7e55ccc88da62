"""The base class of the model's modules: initialisation and cost accounting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from typing import ClassVar, ParamSpec

import torch
from torch import Tensor, nn

_FROZEN = 2 / 3
"""Fraction of the training FLOPs of a frozen matrix: the forward pass and the gradient of its input."""


class Module(nn.Module):
    """A module that initialises its own parameters and reports their cost; submodules do so themselves.

    Attributes:
        part: the model part that its parameters count as, and those of submodules without a part.
        parts: the same for single parameters, by attribute.
    """

    part: str = ""
    parts: ClassVar[Mapping[str, str]] = {}

    def initialise(self) -> None:
        """Draw the initial values of its own parameters, in registration order."""

    def macs_per_position(self) -> float:
        """Return the multiply-accumulates per position in the forward pass; those of frozen weights count 2/3."""
        return sum(map(macs_per_position, self.children()))


def initialise(model: nn.Module) -> None:
    """Initialise the parameters of all modules of a model, from the outside inwards.

    Vectors start as constants, so the matrices don't depend on which vectors there are.
    """
    for module in model.modules():
        if isinstance(module, Module):
            module.initialise()


def macs_per_position(module: nn.Module) -> float:
    """Return `Module.macs_per_position`, or the sum over a list of modules."""
    if isinstance(module, Module):
        return module.macs_per_position()
    return sum(map(macs_per_position, module.children()))


def count_macs(weight: Tensor) -> float:
    """Return the multiply-accumulates per position of a matrix; a frozen one has no gradient and counts 2/3."""
    return weight.numel() if weight.requires_grad else weight.numel() * _FROZEN


def parameters_by_part(module: nn.Module, part: str = "other") -> Counter[str]:
    """Count the parameters of each part of a module.

    Args:
        part: its own part, unless it has another.
    """
    parts = module.parts if isinstance(module, Module) else {}
    counts = Counter[str]()
    for name, parameter in module.named_parameters(recurse=False):
        counts[parts.get(name, part)] += parameter.numel()
    for child in module.children():
        counts += parameters_by_part(child, getattr(child, "part", "") or part)
    return counts


P = ParamSpec("P")


def memoised(compute: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Memoise a function of hashable arguments; under torch.compile it is called each time."""
    cached = lru_cache(maxsize=64)(compute)

    @wraps(compute)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        if torch.compiler.is_compiling():
            return compute(*args, **kwargs)
        with torch.inference_mode(False):  # it outlives an evaluation, and training uses it
            return cached(*args, **kwargs)  # type: ignore[arg-type]

    return wrapper

"""What every module of a model knows of itself: how its parameters start, and what they cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from typing import ClassVar, ParamSpec

import torch
from torch import Tensor, nn

_FROZEN = 2 / 3
"""Of the arithmetic of a trained matrix: the forward pass, and the gradient of its input."""


class Module(nn.Module):
    """A module that initialises its own parameters and reports their cost; the modules in it do so themselves.

    Attributes:
        part: the part of a model that its parameters are counted in, and those of modules in it that have none.
        parts: the same for single parameters, by attribute.
    """

    part: str = ""
    parts: ClassVar[Mapping[str, str]] = {}

    def initialise(self) -> None:
        """Draw the initial values of its own parameters, in the order in which they are registered."""

    def macs_per_position(self) -> float:
        """The weights that each position is multiplied by on its way through; frozen ones count two thirds."""
        return sum(map(macs_per_position, self.children()))


def initialise(model: nn.Module) -> None:
    """Let each module of a model initialise its parameters, one after the other from the outside inwards.

    Vectors start at constants, so the matrices are the same whatever vectors there are.
    """
    for module in model.modules():
        if isinstance(module, Module):
            module.initialise()


def macs_per_position(module: nn.Module) -> float:
    """See `Module.macs_per_position`; of a list of modules, their sum."""
    if isinstance(module, Module):
        return module.macs_per_position()
    return sum(map(macs_per_position, module.children()))


def count_macs(weight: Tensor) -> float:
    """How many weights a position is multiplied by in a matrix; one that is frozen has no gradient and counts less."""
    return weight.numel() if weight.requires_grad else weight.numel() * _FROZEN


def parameters_by_part(module: nn.Module, part: str = "other") -> Counter[str]:
    """The number of parameters of each part of a module, which itself is in the part given."""
    parts = module.parts if isinstance(module, Module) else {}
    found = Counter[str]()
    for name, parameter in module.named_parameters(recurse=False):
        found[parts.get(name, part)] += parameter.numel()
    for child in module.children():
        found += parameters_by_part(child, getattr(child, "part", "") or part)
    return found


P = ParamSpec("P")


def memoised(compute: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """A function that keeps what it gave for the latest arguments; torch.compile sees one that keeps nothing."""
    kept = lru_cache(maxsize=64)(compute)

    @wraps(compute)
    def given(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        if torch.compiler.is_compiling():
            return compute(*args, **kwargs)
        with torch.inference_mode(False):  # it outlives an evaluation, and training differentiates past it
            return kept(*args, **kwargs)  # type: ignore[arg-type]

    return given

"""The base class of the model's modules: initialisation, and what their parameters count as."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from typing import ClassVar, ParamSpec

import torch
from torch import Tensor, nn


class Module(nn.Module):
    """A module that initialises its own parameters; submodules do so themselves.

    Attributes:
        part: the model part that its parameters count as, and those of submodules without a part.
        parts: the same for single parameters, by attribute.
        uses: how often a position uses each of its weights, those of submodules included.
    """

    part: str = ""
    parts: ClassVar[Mapping[str, str]] = {}
    uses: float = 1.0

    def initialise(self) -> None:
        """Draw the initial values of its own parameters, in registration order."""

    def own_macs(self) -> float:
        """Return the multiply-accumulates of its own parameters per position; see `lm.model.cost`."""
        return sum(map(count_macs, self.parameters(recurse=False)))


def count_macs(weight: Tensor) -> float:
    """Return the multiply-accumulates per position of a matrix, 0 of a vector.

    A frozen matrix counts 2/3: of forward and backward passes it lacks its own gradient.
    """
    macs = weight.numel() if weight.ndim > 1 else 0
    return macs if weight.requires_grad else macs * 2 / 3


def initialise(model: nn.Module) -> None:
    """Initialise the parameters of all modules of a model, from the outside inwards.

    Vectors start as constants, so the matrices don't depend on which vectors there are.
    """
    for module in model.modules():
        if isinstance(module, Module):
            module.initialise()


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

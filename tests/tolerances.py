"""How far apart two correct results in floating point may be.

Rounding errors have either sign and are nearly independent, so those of a sum of `terms` products grow with the square
root of `terms`, and those of `depth` such sums one after another with the square root of `depth` (Higham and Mary 2019,
"A new approach to probabilistic rounding error analysis"). Two results may therefore differ by

    FACTOR * eps(dtype) * max |value| * sqrt(terms * depth)

whatever the order in which a processor, a library or a number of threads adds. A fixed tolerance says nothing about
this: 1e-5 is below the rounding error of logits near 10, and far above that of gradients near 0.01.

A comparison that needs another tolerance, because an approximation or an optimizer enlarges the error, says why.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

FACTOR = 4.0
"""Standard deviations, roughly: results under all roundings of `make test-roundings` differ by less than a quarter."""


def rounding_error(
    *values: Any, terms: int = 1, depth: int = 1, model: nn.Module | None = None, dtype: torch.dtype | None = None
) -> float:
    """Return the largest absolute difference that rounding explains.

    Args:
        values: what is compared, or other values of the same scale (tensors, arrays, floats, lists of these).
        terms: products that each sum adds: the longest dimension that is contracted.
        depth: sums that follow one another.
        model: takes `terms` and `depth` from its matrices: the longest row, and their count.
        dtype: of the computation. Default: the coarsest of the tensors and arrays; float32 for plain floats.
    """
    if model is not None:
        rows = [parameter.shape[-1] for parameter in model.parameters() if parameter.dim() > 1]
        terms, depth = max([terms, *rows]), depth + len(rows)
    tensors = [_tensor(value, dtype or torch.float32) for value in values]
    epsilon = torch.finfo(dtype).eps if dtype else max(torch.finfo(each.dtype).eps for each in tensors)
    factor = FACTOR
    if epsilon > torch.finfo(torch.float32).eps:  # products of float16 and bfloat16 are added in float32, rounded once
        terms, factor = 1, 1.0
    finite = [each[each.isfinite()].abs() for each in tensors]
    scale = max((each.max().item() for each in finite if each.numel()), default=0.0)
    return factor * epsilon * scale * math.sqrt(terms * depth)


def assert_close(
    actual: Any,
    expected: Any,
    *,
    terms: int = 1,
    depth: int = 1,
    model: nn.Module | None = None,
    dtype: torch.dtype | None = None,
    scale: Any = 0.0,
    equal_nan: bool = False,
    msg: str | None = None,
) -> None:
    """Assert that two tensors or arrays differ by rounding at most; `rounding_error` explains the arguments.

    `scale` holds intermediate values that are larger than the results and therefore decide how these are rounded, as
    logits decide for log-probabilities. A single number may be expected of all elements.
    """
    dtype = dtype or max((_tensor(each).dtype for each in (actual, expected)), key=lambda each: torch.finfo(each).eps)
    error = rounding_error(actual, expected, scale, terms=terms, depth=depth, model=model, dtype=dtype)
    found, wanted = _tensor(actual).double(), _tensor(expected).double()
    wanted = wanted.expand_as(found) if wanted.dim() == 0 else wanted
    torch.testing.assert_close(found, wanted, atol=error, rtol=0, equal_nan=equal_nan, msg=msg)


def approx(
    expected: Any,
    *,
    terms: int = 1,
    depth: int = 1,
    model: nn.Module | None = None,
    dtype: torch.dtype = torch.float32,
    scale: Any = 0.0,
) -> Any:
    """Return `pytest.approx` of floats that were computed in a dtype; `rounding_error` explains the arguments.

    Those of a model are log-probabilities and what is made of them. However small, they come of logits near 1 or more.
    """
    values = list(expected.values()) if isinstance(expected, Mapping) else expected
    least = 0.0 if model is None else 1.0
    error = rounding_error(values, scale, least, terms=terms, depth=depth, model=model, dtype=dtype)
    return pytest.approx(expected, rel=0, abs=error)


def ulps(count: float, dtype: torch.dtype = torch.float32) -> float:
    """Return the relative error of so many units in the last place, for values of many magnitudes."""
    return count * torch.finfo(dtype).eps


def _tensor(value: Any, dtype: torch.dtype | None = None) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, Sequence) and value and isinstance(value[0], Tensor):
        return torch.stack([each.detach().cpu() for each in value])
    return torch.tensor(value, dtype=dtype or torch.float32)

"""Muon, with matrices of one shape orthogonalised together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_EPSILON = 1e-7
_RMS_OF_ADAMW = 0.2


class Muon(torch.optim.Optimizer):
    """Momentum whose update of each matrix has all its singular values brought near one.

    An update is as large as AdamW's would be (root mean square 0.2), so that the learning rate and weight decay of
    AdamW serve. `torch.optim.Muon(adjust_lr_fn="match_rms_adamw")` is the same, one matrix at a time, which on small
    models takes longer than the rest of the step.

    Source: Jordan et al. 2024; the size of the update: Liu et al. 2025 (Moonlight), section 2.2.
    """

    def __init__(
        self,
        parameters: Mapping[Tensor, Sequence[int]],
        *,
        lr: float,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        """An optimizer of matrices of hidden layers, (outputs, inputs) each; several may be stacked in one parameter.

        Args:
            parameters: each with the numbers of outputs of the matrices that are stacked in it.
            lr: learning rate.
            weight_decay: share of the learning rate by which weights shrink.
            momentum: decay of the mean gradient.
            dtype: of the products that orthogonalise an update; it need not be exact.
        """
        super().__init__(list(parameters), {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        self._dtype = dtype
        self._rows = {parameter: list(rows) for parameter, rows in parameters.items()}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update all matrices that have a gradient."""
        assert closure is None
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[tuple[Tensor, ...]]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    for matrix in self._matrices(parameter):
                        by_shape.setdefault(matrix[0].shape, []).append(matrix)
            for matrices in by_shape.values():
                self._update(*map(list, zip(*matrices, strict=True)), group=group)

    def _matrices(self, parameter: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Weights, gradient and momentum of each matrix in a parameter: parts of it, not copies."""
        assert parameter.grad is not None
        if "momentum" not in self.state[parameter]:
            self.state[parameter]["momentum"] = torch.zeros_like(parameter)
        whole = (parameter, parameter.grad, self.state[parameter]["momentum"])
        return zip(*(tensor.split(self._rows[parameter]) for tensor in whole), strict=True)

    def _update(
        self, weights: list[Tensor], gradients: list[Tensor], momenta: list[Tensor], *, group: dict[str, Any]
    ) -> None:
        """Update matrices of one shape."""
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        ahead = torch.stack(torch._foreach_lerp(gradients, momenta, group["momentum"]))
        size = size_of_update(weights[0].shape)
        updates = self._orthogonalised(ahead.to(self._dtype)).to(weights[0].dtype)
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(weights, list(updates.unbind()), alpha=-group["lr"] * size)

    def _orthogonalised(self, matrices: Tensor) -> Tensor:
        """See `orthogonalised`; where several processes have the same to do, they may share it out."""
        return orthogonalised(matrices)


def size_of_update(shape: torch.Size) -> float:
    """What an orthogonalised matrix is multiplied by, besides the learning rate."""
    return _RMS_OF_ADAMW * max(shape) ** 0.5


def orthogonalised(matrices: Tensor) -> Tensor:
    """(matrices, rows, columns) -> the same shape and type, each with singular values between about 0.7 and 1.2.

    Source: the Newton-Schulz iteration of Jordan et al. 2024.
    """
    a, b, c = _COEFFICIENTS
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=_EPSILON)
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if tall else x

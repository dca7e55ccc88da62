"""Muon, with matrices of one shape orthogonalised together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
        self, parameters: Iterable[Tensor], *, lr: float, weight_decay: float = 0.0, momentum: float = 0.95
    ) -> None:
        """For matrices of hidden layers: (outputs, inputs) each."""
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update all matrices that have a gradient."""
        assert closure is None
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes.setdefault(parameter.shape, []).append(parameter)
            for parameters in shapes.values():
                self._update(parameters, group)

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Update matrices of one shape."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for parameter in parameters:
            if "momentum" not in self.state[parameter]:
                self.state[parameter]["momentum"] = torch.zeros_like(parameter)
        buffers = [self.state[parameter]["momentum"] for parameter in parameters]
        torch._foreach_lerp_(buffers, gradients, 1 - group["momentum"])
        ahead = torch.stack([torch.lerp(g, b, group["momentum"]) for g, b in zip(gradients, buffers, strict=True)])
        size = _RMS_OF_ADAMW * max(parameters[0].shape) ** 0.5
        updates = orthogonalised(ahead).to(parameters[0].dtype)
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(parameters, list(updates.unbind()), alpha=-group["lr"] * size)


def orthogonalised(matrices: Tensor) -> Tensor:
    """(…, rows, columns) -> the same shape in bfloat16, each with singular values between about 0.7 and 1.2.

    Source: the Newton-Schulz iteration of Jordan et al. 2024.
    """
    a, b, c = _COEFFICIENTS
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = (matrices.mT if tall else matrices).bfloat16()
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=_EPSILON)
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x

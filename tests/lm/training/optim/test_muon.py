"""Muon: torch's own, many matrices at a time."""

import math

import pytest
import torch

from lm.training.optimizers import Muon, orthogonalise
from tests.tolerances import rounding_error

SHAPES = [(24, 8), (24, 8), (8, 24), (16, 16), (24, 8)]


def jordan(x):
    """The iteration of Jordan et al. 2024."""
    x = x / x.norm()
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


def rank_one(*shape):
    return torch.randn(*shape[:-1], 1) @ torch.randn(*shape[:-2], 1, shape[-1])


def test_equals_torch():
    """To the rounding of bfloat16 in the iteration, over a few steps with weight decay."""
    torch.manual_seed(0)
    ours = [torch.randn(shape).requires_grad_() for shape in SHAPES]
    theirs = [p.detach().clone().requires_grad_() for p in ours]
    one = Muon({p: [len(p)] for p in ours}, lr=0.02, weight_decay=0.1)
    # Their momentum sums what ours averages; an orthogonalised update is the same for both.
    other = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(5):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        one.step()
        other.step()
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("draw", [torch.randn, rank_one])
@pytest.mark.parametrize("shape", [(3, 20, 20), (3, 80, 20), (3, 20, 80), (3, 20, 25), (1, 1, 5)])
def test_orthogonalised_matrices_are_those_of_float64(draw, shape):
    """In float32; five iterations multiply the rounding errors of the smallest singular values by up to 3.4445⁵."""
    torch.manual_seed(0)
    matrices = draw(*shape) * 7
    expected = torch.stack([jordan(matrix.double()) for matrix in matrices])
    error = (orthogonalise(matrices) - expected).abs().max()
    assert error < 3.4445**5 * rounding_error(matrices / matrices.norm(), terms=max(shape))


def updated(weight, gradients, *, rows, lr=0.02, weight_decay=0.1, momentum=0.9):
    """What Muon makes of a parameter, in a float64 loop straight from the papers."""
    weight, mean = weight.double(), torch.zeros_like(weight, dtype=torch.float64)
    for gradient in gradients:
        mean = momentum * mean + (1 - momentum) * gradient.double()
        ahead = momentum * mean + (1 - momentum) * gradient.double()
        updates = [0.2 * math.sqrt(max(part.shape)) * jordan(part) for part in ahead.split(rows)]
        weight = (1 - lr * weight_decay) * weight - lr * torch.cat(updates)
    return weight


@pytest.mark.parametrize("rows", [[40], [24, 8, 8], [12, 28]])
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.03)])
def test_the_update_is_that_of_a_loop_in_float64(rows, steps, dtype, tolerance):
    """Relative to the update itself: the rounding of bfloat16 is about 1% of it, another iteration 10% or more."""
    torch.manual_seed(0)
    start, gradients = torch.randn(40, 16), list(torch.randn(steps, 40, 16))
    ours = start.clone().requires_grad_()
    optimizer = Muon({ours: rows}, lr=0.02, weight_decay=0.1, dtype=dtype)
    for gradient in gradients:
        ours.grad = gradient.clone()
        optimizer.step()
    expected = updated(start, gradients, rows=rows) - start
    assert (ours.detach() - start - expected).norm() < tolerance * expected.norm()

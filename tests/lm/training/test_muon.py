"""Muon: torch's own, many matrices at a time."""

from __future__ import annotations

import torch

from lm.training.muon import Muon, orthogonalised

SHAPES = [(24, 8), (24, 8), (8, 24), (16, 16), (24, 8)]


def test_equals_torch():
    """To the rounding of bfloat16 in the iteration, over a few steps with weight decay."""
    torch.manual_seed(0)
    ours = [torch.randn(shape).requires_grad_() for shape in SHAPES]
    theirs = [p.detach().clone().requires_grad_() for p in ours]
    one = Muon(ours, lr=0.02, weight_decay=0.1)
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


def test_singular_values_come_near_one():
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalised(torch.randn(3, 60, 20) * 7).float())
    assert values.min() > 0.4
    assert values.max() < 1.4

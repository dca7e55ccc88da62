"""The loss of an output layer: torch's own, without the logits."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from lm.config import IGNORED
from lm.model import loss
from lm.model.loss import linear_cross_entropy


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("logits_at_a_time", [1, 1 << 21])
def test_equals_torch_in_value_and_gradient(monkeypatch, smoothing, logits_at_a_time):
    """Whatever is held at a time, and with positions that have no target."""
    monkeypatch.setattr(loss, "_LOGITS_ON_CPU", logits_at_a_time)
    monkeypatch.setattr(loss, "_FEWEST_ROWS", 5)
    torch.manual_seed(1)
    hidden, weight = torch.randn(3, 11, 8, dtype=torch.float64), torch.randn(17, 8, dtype=torch.float64)
    targets = torch.randint(0, 17, (3, 11))
    targets[0, 3:] = targets[2, :4] = IGNORED
    found = []
    for ours in (True, False):
        inputs = [hidden.clone().float().requires_grad_(), weight.clone().float().requires_grad_()]
        if ours:
            total = linear_cross_entropy(*inputs, targets, label_smoothing=smoothing)
        else:
            inputs = [part.detach().double().requires_grad_() for part in inputs]
            logits = F.linear(*inputs).flatten(0, 1)
            total = F.cross_entropy(logits, targets.flatten(), reduction="sum", label_smoothing=smoothing)
        (total * 0.7).backward()
        found.append([total.detach().double(), *(part.grad.double() for part in inputs)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_nothing_to_predict_costs_nothing():
    hidden = torch.randn(2, 3, 4, requires_grad=True)
    total = linear_cross_entropy(hidden, torch.randn(5, 4), torch.full((2, 3), IGNORED))
    total.backward()
    assert total.item() == 0.0
    assert not hidden.grad.any()


def test_under_autocast_the_gradient_stays_near():
    torch.manual_seed(1)
    hidden, weight = torch.randn(40, 32), torch.randn(50, 32) / 8
    targets, gradients = torch.randint(0, 50, (40,)), []
    for enabled in (False, True):
        inputs = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            linear_cross_entropy(*inputs, targets).backward()
        gradients.append(torch.cat([part.grad.flatten() for part in inputs]))
    assert gradients[1].dtype is torch.float32
    assert F.cosine_similarity(*gradients, dim=0) > 0.999

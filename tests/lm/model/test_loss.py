"""The loss of an output layer: torch's own, without the logits."""

import pytest
import torch
import torch.nn.functional as F

from lm.config.run_config import IGNORE_INDEX
from lm.model import loss
from lm.model.loss import chunked_loss, linear_cross_entropy
from tests.tolerances import assert_close


@pytest.mark.parametrize("softcap", [0.0, 3.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("logits_at_a_time", "probabilities_at_a_time"), [(1, 1), (1, 1 << 20), (1 << 25, 40)])
def test_equals_torch_in_value_and_gradient(
    monkeypatch, has_bias, smoothing, logits_at_a_time, probabilities_at_a_time, softcap
):
    """Whatever is held at a time, and with positions that have no target."""
    monkeypatch.setattr(loss, "_LOGITS_ON_CPU", logits_at_a_time)
    monkeypatch.setattr(loss, "_PROBABILITIES_ON_CPU", probabilities_at_a_time)
    monkeypatch.setattr(loss, "_MIN_ROWS", 5)
    torch.manual_seed(1)
    drawn = [torch.randn(3, 11, 8), torch.randn(17, 8), *([torch.randn(17)] if has_bias else [])]
    targets = torch.randint(0, 17, (3, 11))
    targets[0, 3:] = targets[2, :4] = IGNORE_INDEX
    ours, theirs = (
        [part.clone().to(dtype).requires_grad_() for part in drawn] for dtype in (torch.float32, torch.float64)
    )
    hidden, weight, *bias = ours
    keywords = {"label_smoothing": smoothing, "softcap": softcap}
    total, _ = linear_cross_entropy(hidden, weight, targets, bias=bias[0] if bias else None, **keywords)
    logits = F.linear(*theirs).flatten(0, 1)
    logits = softcap * torch.tanh(logits / softcap) if softcap else logits
    expected = F.cross_entropy(logits, targets.flatten(), reduction="sum", label_smoothing=smoothing)
    for each in (total, expected):
        (each * 0.7).backward()
    assert_close(total, expected, terms=33, depth=3)
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one.grad, other.grad, terms=33, depth=3)


def disagreeing(hidden, output, targets):
    """A loss of two passes and their targets, in which a position counts for itself, and the first one's surprisal."""
    one, other = (F.linear(states, *output).log_softmax(-1) for states in hidden)
    surprisal = F.nll_loss(one, targets, reduction="sum")
    return surprisal + ((one - other) ** 2).sum(), surprisal


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("at_a_time", [1, 1 << 22])
def test_a_loss_in_parts_is_that_of_all_positions_with_a_target(monkeypatch, at_a_time, has_bias):
    monkeypatch.setattr(loss, "_AUTOGRAD_LOGITS_ON_CPU", at_a_time)
    monkeypatch.setattr(loss, "_MIN_ROWS", 5)
    torch.manual_seed(1)
    targets = torch.randint(0, 17, (33,))
    targets[20:29] = IGNORE_INDEX
    hidden, weight = torch.randn(2, 33, 8, dtype=torch.float64), torch.randn(17, 8, dtype=torch.float64)
    bias = [torch.randn(17, dtype=torch.float64)] if has_bias else []
    found = []
    for ours in (True, False):
        inputs = [part.clone().requires_grad_() for part in (hidden, weight, *bias)]
        counts, output = targets != IGNORE_INDEX, (inputs[1], inputs[2] if has_bias else None)
        total, surprisal = (
            chunked_loss(
                lambda states, layer, some: disagreeing(states, layer, targets[some]),
                inputs[0],
                output,
                counts.nonzero()[:, 0],
            )
            if ours
            else disagreeing(inputs[0][:, counts], output, targets[counts])
        )
        (total * 0.7).backward()
        assert surprisal.requires_grad != ours
        found.append([total.detach(), surprisal.detach(), *(part.grad for part in inputs)])
    for one, other in zip(*found, strict=True):
        assert_close(one, other, terms=33, depth=3, dtype=torch.float32)

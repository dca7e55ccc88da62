"""Dropout: the share asked for, nothing on average, the same for the same seed, and a gradient of what was kept."""

import pytest
import torch

from lm.model.layers import Dropout, dropout
from tests.compiler import needs_compiler


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_drops_at_its_rate_and_keeps_the_mean(share, dtype):
    torch.manual_seed(0)
    dropped = dropout(torch.ones(501, 799, dtype=dtype), share).float()
    zeros = (dropped == 0).float().mean().item()
    assert zeros == pytest.approx(share, abs=1 / 512 + 0.004)
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.02)
    assert len(dropped.unique()) == 2


def test_positions_are_dropped_independently():
    """Of neighbours, and of the bytes of one random word, no two are alike more often than by chance."""
    torch.manual_seed(0)
    kept = (dropout(torch.ones(200_000), 0.5) > 0).float()
    for distance in (1, 2, 4, 8, 64):
        pairs = torch.stack((kept[:-distance], kept[distance:]))
        assert abs(torch.corrcoef(pairs)[0, 1].item()) < 0.01


def test_follows_the_seed_and_passes_the_gradient_of_what_it_keeps():
    x = torch.randn(7, 5, 3).transpose(0, 2).requires_grad_()
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(dropout(x, 0.4))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    (gradient,) = torch.autograd.grad(results[0].sum(), x)
    torch.testing.assert_close(gradient * x, results[0])


def test_does_nothing_in_eval_mode_or_at_a_rate_of_zero():
    x = torch.randn(4, 4)
    assert dropout(x, 0.0) is x
    assert Dropout(0.5).eval()(x) is x


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@needs_compiler
def test_compiled_dropout_has_the_same_rate_and_different_masks():
    """Half a minute of compiling. The gradient is that of what was kept, so the masks are not drawn again for it."""

    def two(x):
        return dropout(x, 0.4), dropout(2 * x, 0.4)

    x = torch.randn(40, 50, requires_grad=True)
    for function in (two, torch.compile(two)):
        torch.manual_seed(1)
        first, second = function(x)
        assert not torch.equal(first == 0, second == 0)
        (gradient,) = torch.autograd.grad(first.sum(), x)
        torch.testing.assert_close(gradient * x, first)
        assert (first == 0).float().mean().item() == pytest.approx(0.4, abs=0.05)

"""In chunks and at once give the same results, with other memory."""

import pytest
import torch

from lm.model.variants.block_sparse import compute_in_chunks, split_evenly


def test_chunks_are_even_and_cost_no_more_than_they_may():
    assert split_evenly(10, 3, max_cost=100) == [(0, 10)]
    assert split_evenly(10, 3, max_cost=15) == [(0, 5), (5, 10)]
    assert split_evenly(10, 3, max_cost=14) == [(0, 4), (4, 8), (8, 10)]
    assert split_evenly(3, 50, max_cost=1) == [(0, 1), (1, 2), (2, 3)]
    assert split_evenly(6, 1, max_cost=2, start=2) == [(2, 4), (4, 6)]
    assert split_evenly(2, 1, max_cost=2, start=2) == []


@pytest.mark.parametrize("draws", [True, False])
def test_the_gradient_is_that_of_one_piece(draws):
    x = torch.randn(1, 2, 9, 3, dtype=torch.float64, requires_grad=True)
    kept = []

    def compute(first, end):
        kept.append((first, end))
        noise = torch.randn(end - first, 1, dtype=torch.float64) if draws else 1.0
        return (x[:, :, first:end] * noise).sin()

    torch.manual_seed(0)
    found = compute_in_chunks(compute, [(0, 4), (4, 9)], is_random=draws)
    (gradient,) = torch.autograd.grad(found.sum(), x)
    assert sorted(kept) == [(0, 4), (0, 4), (4, 9), (4, 9)]
    torch.manual_seed(0)
    noise = torch.cat([torch.randn(n, 1, dtype=torch.float64) for n in (4, 5)]) if draws else torch.ones(9, 1).double()
    torch.testing.assert_close(found, (x * noise).sin())
    torch.testing.assert_close(gradient, (x * noise).cos() * noise)


def test_nothing_is_recomputed_without_gradients():
    calls = []
    with torch.no_grad():
        found = compute_in_chunks(
            lambda first, end: calls.append(first) or torch.ones(1, 1, end - first, 1), [(0, 2), (2, 3)],
                          is_random=False)  # fmt: skip
    assert (found.shape[2], calls) == (3, [0, 2])

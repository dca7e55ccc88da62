"""In chunks and at once give the same results, with other memory."""

import pytest
import torch

from lm.model.variants.block_sparse import compute_in_chunks


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

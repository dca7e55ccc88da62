"""The best logits, against a stable sort of all, and the log-probabilities that torch finds."""

import pytest
import torch

pytest.importorskip("numba")

from lm.kernels.vector_ops import top_k
from tests.tolerances import rounding_error


@pytest.mark.parametrize("size", [7, 64, 150, 64 * 40 + 17])
@pytest.mark.parametrize("values", [3, 1000, 10**9], ids=["many equal", "some equal", "none equal"])
def test_they_are_those_that_a_stable_sort_puts_first(size, values):
    of = torch.Generator().manual_seed(size)
    logits = torch.randint(values, (30, size), generator=of) * (10.0 / values)
    filtered = logits.clone()
    filtered[:, torch.randint(size, (size // 3,), generator=of)] = -torch.inf
    for left in (logits, filtered):
        expected = left.sort(stable=True, descending=True)
        (largest, logprobs), places = torch.empty(2, 30, 7), torch.empty(30, 7, dtype=torch.long)
        top_k(*(each.numpy() for each in (logits, left, largest, places, logprobs)))
        assert torch.equal(places, expected.indices[:, :7])
        assert torch.equal(largest, expected.values[:, :7])
        error = rounding_error(logits) + rounding_error(1.0, terms=size)  # the second of the logarithm of a sum
        torch.testing.assert_close(logprobs, logits.log_softmax(-1).gather(1, places), atol=error, rtol=0)

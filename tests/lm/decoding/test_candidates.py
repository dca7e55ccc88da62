import pytest
import torch

from lm.decoding.candidates import Candidates, top_k_tokens
from tests.tolerances import assert_close


def random_logits(rows: int, size: int, values: int) -> torch.Tensor:
    """Of so many different values, so that some may be equal."""
    generator = torch.Generator().manual_seed(size)
    return torch.randint(values, (rows, size), generator=generator) * (10.0 / values)


@pytest.mark.parametrize("size", [7, 64, 2000, 64 * 40, 64 * 40 + 17])
@pytest.mark.parametrize("values", [3, 1000, 10**9], ids=["many equal", "some equal", "none equal"])
def test_top_k_equals_a_stable_sort(size, values):
    logits, totals = random_logits(70, size, values), torch.zeros(70, 1, dtype=torch.float64)
    found = Candidates.extend(totals, top_k_tokens(logits, logits, 5))
    expected = logits.sort(stable=True, descending=True).indices[:, :5]
    assert found.tokens.tolist() == expected.tolist()
    assert not found.parents.any()
    logprobs = logits.log_softmax(-1).gather(1, expected).double()
    assert_close(found.total_logprobs, logprobs, terms=size, scale=logits, dtype=torch.float32)


def test_of_equal_candidates_those_of_the_better_hypothesis_come_first():
    totals = torch.tensor([[-1.0, -1.0, -2.0]], dtype=torch.float64)
    found = Candidates.extend(totals, top_k_tokens(torch.zeros(3, 4), torch.zeros(3, 4), 2))
    assert found.parents.tolist() == [[0, 0, 1, 1, 2, 2]]
    assert found.tokens.tolist() == [[0, 1, 0, 1, 0, 1]]


def test_changes_by_filters_count_without_renormalisation():
    totals, logits = torch.tensor([[-1.0], [-2.0]], dtype=torch.float64), random_logits(2, 9, 1000)
    filtered = logits - torch.arange(9) * 2.0
    found = Candidates.extend(totals, top_k_tokens(logits, filtered, 9))
    expected = (totals + logits.log_softmax(-1).double() + filtered - logits).sort(descending=True)
    assert found.tokens.tolist() == expected.indices.tolist()
    assert_close(found.total_logprobs, expected.values, terms=9, scale=filtered, dtype=torch.float32)
    ruled_out = Candidates.extend(totals, top_k_tokens(logits, torch.full_like(logits, -torch.inf), 3))
    assert (ruled_out.total_logprobs == -torch.inf).all()


def test_a_selection_keeps_the_order_and_is_padded():
    totals = torch.zeros(2, 1, dtype=torch.float64)
    found = Candidates.extend(totals, top_k_tokens(random_logits(2, 6, 10**9), random_logits(2, 6, 10**9), 4))
    chosen = torch.tensor([[False, True, False, True], [False, False, True, False]])
    selected = found.keep(chosen)
    assert selected.tokens[0].tolist() == found.tokens[0, [1, 3]].tolist()
    assert selected.total_logprobs[0].tolist() == found.total_logprobs[0, [1, 3]].tolist()
    assert (int(selected.tokens[1, 0]), float(selected.total_logprobs[1, 1])) == (int(found.tokens[1, 2]), -torch.inf)
    assert found.keep(torch.zeros(2, 4, dtype=torch.bool)).total_logprobs.shape == (2, 0)

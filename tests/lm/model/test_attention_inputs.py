"""Masks, caches and other inputs of attention against their definitions."""

import pytest
import torch

from lm.model.mask import Mask
from lm.model.variants.block_sparse import SlidingWindow

CPU = torch.device("cpu")
LENGTHS = torch.tensor([0, 2, 5])


def sees(mask: Mask, row: int, query: int, key: int) -> bool:
    """Whether the query at a position sees the key at another."""
    if mask.is_causal and key > query:
        return False
    if mask.pattern is not None and abs(query - key) > mask.pattern.max_distance:
        return False
    return mask.key_lengths is None or key < int(mask.key_lengths[row])


@pytest.mark.parametrize("n_queries", [1, 3, 5])
@pytest.mark.parametrize("farthest", [None, 0, 1, 3, 4, 8])
@pytest.mark.parametrize("lengths", [None, LENGTHS])
@pytest.mark.parametrize("is_causal", [True, False])
def test_the_parts_of_a_mask_restrict_each_other(n_queries, farthest, lengths, is_causal):
    pattern = None if farthest is None else SlidingWindow(farthest)
    mask = Mask(is_causal=is_causal, pattern=pattern, key_lengths=lengths)
    if mask == Mask():
        return
    allowed = mask.build_tensor(n_queries, 5, CPU)
    expected = [
        [[[sees(mask, row, query, key) for key in range(5)] for query in range(5 - n_queries, 5)]]
        for row in range(1 if lengths is None else 3)
    ]
    assert allowed.expand(-1, -1, n_queries, -1).tolist() == expected

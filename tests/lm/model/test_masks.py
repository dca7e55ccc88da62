"""Masks against their definition, a query and a key at a time."""

from __future__ import annotations

import pytest
import torch

from lm.model.attention_inputs import Mask
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


def test_pairs_that_are_named_restrict_the_rest():
    pairs = torch.tensor([[True, False, True, True, True]])[None, None]
    assert Mask(visible=pairs).build_tensor(2, 5, CPU) is pairs
    assert Mask(is_causal=True, visible=pairs).build_tensor(2, 5, CPU)[0, 0].int().tolist() == [
        [1, 0, 1, 1, 0],
        [1, 0, 1, 1, 1],
    ]


def test_an_empty_mask_is_full():
    assert Mask().build_tensor(3, 5, CPU) is None
    assert Mask.key_padding(None).build_tensor(3, 5, CPU) is None
    assert Mask.key_padding(LENGTHS).build_tensor(1, 5, CPU)[:, 0, 0].sum(-1).tolist() == [0, 2, 5]


@pytest.mark.parametrize(
    ("mask", "flags"),
    [
        (Mask(), [True, True, True]),
        (Mask.causal(), [True, False, True]),
        (Mask.causal(pattern=SlidingWindow(5)), [True, False, True]),
        (Mask.causal(pattern=SlidingWindow(4)), [True, False, True]),
        (Mask.causal(pattern=SlidingWindow(3)), [False, False, False]),
        (Mask(pattern=SlidingWindow(4)), [True, True, True]),
        (Mask(pattern=SlidingWindow(3)), [False, False, False]),
        (Mask(visible=torch.ones(1, 1, 1, 5, dtype=torch.bool)), [False, False, False]),
        (Mask.key_padding(LENGTHS), [False, False, False]),
        (Mask.causal(bias=torch.zeros(1, 1, 1, 5)), [False, False, False]),
    ],
)
def test_a_flag_says_it_all_where_no_position_needs_more(mask, flags):
    """Of one query, of three and of five, with five keys."""
    assert [mask.needs_no_tensor(n_queries, 5) for n_queries in (1, 3, 5)] == flags

"""Patterns against their definitions, a query and a key at a time."""

import pytest
import torch

from lm.model.variants.block_sparse import (
    BigBird,
    LocalBlocks,
    SlidingWindow,
)

BIG = {"block_size": 4, "global_blocks": 2, "random_blocks": 2, "layer": 1}
PATTERNS = {
    "window": SlidingWindow(5),
    "only itself": SlidingWindow(0),
    "wide window": SlidingWindow(150),
    "blocks": LocalBlocks(7),
    "bigbird": BigBird(**BIG, is_causal=False),
    "causal bigbird": BigBird(**BIG, is_causal=True),
    "bigbird of neighbours": BigBird(4, 0, 0, layer=0, is_causal=True),
}


def all_pairs(pattern, length):
    places = torch.arange(length)
    return pattern.build_token_mask(places[:, None], places, n_positions=length)


@pytest.mark.parametrize("is_causal", [True, False])
def test_bigbird_has_neighbours_global_and_random_blocks(is_causal):
    seen = all_pairs(BigBird(**BIG, is_causal=is_causal), 120)
    blocks = seen.view(30, 4, 30, 4)[:, 0, :, 0]
    assert torch.equal(seen, blocks.repeat_interleave(4, 0).repeat_interleave(4, 1))
    for i in range(30):
        fixed = {j for j in range(30) if abs(i - j) <= 1 or j < 2 or (i < 2 and not is_causal)}
        found = set(blocks[i].nonzero().flatten().tolist())
        assert fixed <= found
        drawn = found - fixed
        if is_causal:
            assert len(drawn) == min(2, max(0, i - 3))
            assert all(j < i for j in drawn)
        elif i >= 2:
            assert len(drawn) <= 2
            assert all(j < 2 * (i + 1) for j in drawn)
    if not is_causal:
        later = blocks.triu(2)[2:12].sum() + blocks[2:12].tril(-2)[:, 2:].sum()
        assert blocks.triu(2)[2:12].any()
        assert later <= 20


def mixed(x):
    """The hash of the module, in Python's own integers."""
    x = (x + 0x1E3779B9) % 2**31
    x = (x ^ x >> 16) * 0x7FEB352D % 2**31
    x = (x ^ x >> 15) * 0x046CA68B % 2**31
    return x ^ x >> 16


def drawn(layer, n_blocks=60):
    connected = BigBird(4, 0, 1, layer=layer, is_causal=True).build_block_mask(n_blocks)
    return [[j for j in row.nonzero().flatten().tolist() if j < i - 1] for i, row in enumerate(connected)]


@pytest.mark.parametrize("layer", [0, 5])
def test_random_blocks_are_the_same_on_every_machine(layer):
    for i, found in enumerate(drawn(layer)):
        assert found == sorted(range(i - 1), key=lambda j, i=i: mixed(mixed(mixed(layer) + i) + j))[:1]


@pytest.mark.parametrize("name", PATTERNS)
def test_nothing_before_the_first_visible_position_is_visible_later(name):
    pattern, seen = PATTERNS[name], all_pairs(PATTERNS[name], 90)
    for query in range(90):
        assert not seen[query:, : pattern.first_visible(query)].any()

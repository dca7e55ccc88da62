"""Patterns against their definitions, a query and a key at a time."""

import pytest
import torch

from lm.config.model import ModelConfig
from lm.model.variants.block_sparse import (
    BigBird,
    LocalBlocks,
    SlidingWindow,
    build_pattern,
    count_pattern_pairs,
    key_block_table,
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


def test_a_window_reaches_as_far_on_either_side():
    assert all_pairs(SlidingWindow(2), 9).tolist() == [[abs(i - j) <= 2 for j in range(9)] for i in range(9)]


def test_local_blocks_see_nothing_of_each_other():
    assert all_pairs(LocalBlocks(4), 11).tolist() == [[i // 4 == j // 4 for j in range(11)] for i in range(11)]


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


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("shorter", [1, 9, 40, 61])
def test_patterns_do_not_depend_on_the_length(name, shorter):
    pattern = PATTERNS[name]
    assert torch.equal(all_pairs(pattern, 130)[:shorter, :shorter], all_pairs(pattern, shorter))


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


def test_random_blocks_differ_by_layer_and_come_from_everywhere():
    assert drawn(0) != drawn(1)
    shares = torch.tensor([j / (i - 2) for layer in range(8) for i, (*_, j) in enumerate(drawn(layer)[3:], 3)])
    assert shares.mean() == pytest.approx(0.5, abs=0.05)
    assert shares.histc(5, 0, 1).min() > 0.7 * len(shares) / 5


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("length", [1, 4, 26, 130])
def test_blocks_are_connected_if_any_of_their_positions_are(name, length):
    pattern = PATTERNS[name]
    n_blocks = -(-length // pattern.block_size)
    seen = all_pairs(pattern, n_blocks * pattern.block_size)
    expected = seen.view(n_blocks, pattern.block_size, n_blocks, pattern.block_size).transpose(1, 2).flatten(2).any(-1)
    assert torch.equal(pattern.build_block_mask(n_blocks), expected)


@pytest.mark.parametrize("name", PATTERNS)
def test_up_to_a_length_all_see_all(name):
    pattern = PATTERNS[name]
    is_causal = getattr(pattern, "is_causal", False)
    for length in range(1, pattern.dense_length + 1):
        pairs = all_pairs(pattern, length)
        assert (pairs | ~torch.ones_like(pairs).tril() if is_causal else pairs).all()


@pytest.mark.parametrize("name", PATTERNS)
def test_nothing_before_the_first_visible_position_is_visible_later(name):
    pattern, seen = PATTERNS[name], all_pairs(PATTERNS[name], 90)
    for query in range(90):
        assert not seen[query:, : pattern.first_visible(query)].any()


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("name", PATTERNS)
def test_tables_name_each_connected_block_once(name, is_causal):
    pattern = PATTERNS[name]
    if getattr(pattern, "is_causal", is_causal) != is_causal:
        return
    table, connected = key_block_table(pattern, 25, is_causal=is_causal), pattern.build_block_mask(25)
    for row in range(pattern.n_dense_blocks, 25):
        expected = [j for j in connected[row].nonzero().flatten().tolist() if j <= row or not is_causal]
        assert table[row].tolist() == expected + [-1] * (table.shape[1] - len(expected))


def test_pairs_are_counted_by_blocks():
    assert count_pattern_pairs(LocalBlocks(5), 17, is_causal=False) == 3 * 25 + 4
    assert count_pattern_pairs(LocalBlocks(5), 17, is_causal=True) == (3 * 25 + 4) / 2
    pattern = BigBird(**BIG, is_causal=False)
    assert count_pattern_pairs(pattern, 50, is_causal=False) == all_pairs(pattern, 50).sum()


def test_a_window_is_of_so_many_positions_up_to_its_own_or_on_either_side():
    config = ModelConfig(attention="window", attention_window=8)
    assert [build_pattern(config, 0, is_causal=is_causal).max_distance for is_causal in (True, False)] == [7, 8]


def test_blocks_of_a_window_have_its_reach_rounded_down_to_a_power_of_two_between_16_and_64():
    sizes = {1: 16, 16: 16, 31: 16, 32: 32, 63: 32, 64: 64, 65: 64, 127: 64, 128: 64, 129: 64}
    assert {distance: SlidingWindow(distance).block_size for distance in sizes} == sizes
    for distance in sizes:
        pattern = SlidingWindow(distance)
        connected = pattern.build_block_mask(10)
        for is_causal, mask in ((False, connected), (True, connected.tril())):
            assert pattern.max_key_blocks(is_causal=is_causal) == mask.sum(1).max()


def test_compressed_attention_is_local_in_every_other_layer():
    config = ModelConfig(attention="compressed", attention_block=16)
    assert [build_pattern(config, layer, is_causal=True) for layer in range(3)] == [
        LocalBlocks(16),
        None,
        LocalBlocks(16),
    ]
    assert [config.has_compressed_attention(layer) for layer in range(3)] == [False, True, False]
    assert build_pattern(ModelConfig(), 0, is_causal=True) is None

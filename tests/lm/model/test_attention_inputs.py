"""Masks, caches and other inputs of attention against their definitions."""

import pytest
import torch

from lm.model.kv_cache import DecoderCache, LayerKVCache
from lm.model.mask import Mask
from lm.model.variants.block_sparse import SlidingWindow
from lm.model.variants.recurrent import RecurrentCache

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


def test_cache_reorders_repeats_and_forgets():
    cache, keys = LayerKVCache(), torch.randn(3, 2, 100, 4)
    for start in range(0, 100, 7):
        cache.extend(keys[:, :, start : start + 7], -keys[:, :, start : start + 7])
    rows = torch.tensor([2, 0, 0, 1])
    cache.reorder(rows)
    cache.truncate(60)
    key, value = cache.extend(keys[rows, :, :1], -keys[rows, :, :1])
    expected = torch.cat((keys[rows, :, :60], keys[rows, :, :1]), dim=2)
    assert torch.equal(key, expected)
    assert torch.equal(value, -expected)


def test_truncating_self_attention_keeps_the_cross_attention_cache():
    cache, states = DecoderCache([LayerKVCache(), LayerKVCache()]), torch.randn(2, 1, 6, 4)
    for layer in (*cache.self_attention, *cache.cross_attention):
        layer.extend(states, states)
    cache.truncate(4)
    cache.reorder(torch.tensor([1]))
    cache.select(torch.tensor([[0, 2]]))
    assert cache.length == 2
    assert [layer.keys_and_values()[0].shape for layer in cache.self_attention] == [(1, 1, 2, 4)] * 2
    assert all(torch.equal(layer.keys_and_values()[1], states[1:]) for layer in cache.cross_attention)


def test_states_follow_their_rows_and_are_forgotten_together():
    cache, hidden, cells, source = RecurrentCache(), torch.randn(1, 3, 4), torch.randn(1, 3, 4), torch.randn(3, 1, 5, 4)
    cache.advance([(hidden, cells), hidden], 2)
    cache.cross_attention[0].extend(source, source)
    rows = torch.tensor([2, 2, 0])
    cache.reorder(rows, same_sources=True)
    assert torch.equal(cache.cross_attention[0].keys_and_values()[0], source)
    cache.reorder(rows)
    chosen = rows[rows]
    assert torch.equal(cache.states[0][1], cells[:, chosen])
    assert torch.equal(cache.states[1], hidden[:, chosen])
    assert torch.equal(cache.cross_attention[0].keys_and_values()[0], source[rows])
    cache.truncate(2)
    assert cache.length == 2
    cache.truncate(1)
    assert (cache.length, cache.states) == (0, ())
    assert torch.equal(cache.cross_attention[0].keys_and_values()[1], source[rows])

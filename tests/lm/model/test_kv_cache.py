"""A cache holds what was fed, in the order of the rows and positions that were chosen since."""

from __future__ import annotations

import torch

from lm.model.attention_inputs import DecoderCache, LayerKVCache
from lm.model.variants.recurrent import RecurrentCache


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


def test_positions_are_selected_row_by_row():
    cache, keys = LayerKVCache(), torch.randn(2, 3, 9, 4)
    cache.extend(keys[:, :, :5], -keys[:, :, :5])
    cache.extend(keys[:, :, 5:], -keys[:, :, 5:])
    positions = torch.tensor([[8, 0, 3], [1, 2, 7]])
    cache.select(positions)
    key, value = cache.keys_and_values()
    assert torch.equal(key, torch.stack([row[:, kept] for row, kept in zip(keys, positions, strict=True)]))
    assert torch.equal(value, -key)


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

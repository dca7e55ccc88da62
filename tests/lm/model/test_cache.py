"""A cache holds what was fed, in the order of the rows and positions that were chosen since."""

from __future__ import annotations

import torch

from lm.model.cache import DecoderCache, KeyValueCache


def test_cache_reorders_repeats_and_forgets():
    cache, keys = KeyValueCache(), torch.randn(3, 2, 100, 4)
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
    cache, keys = KeyValueCache(), torch.randn(2, 3, 9, 4)
    cache.extend(keys[:, :, :5], -keys[:, :, :5])
    cache.extend(keys[:, :, 5:], -keys[:, :, 5:])
    positions = torch.tensor([[8, 0, 3], [1, 2, 7]])
    cache.select(positions)
    key, value = cache.contents()
    assert torch.equal(key, torch.stack([row[:, kept] for row, kept in zip(keys, positions, strict=True)]))
    assert torch.equal(value, -key)


def test_a_decoder_keeps_its_memory_when_it_forgets_its_own_positions():
    cache, states = DecoderCache(2), torch.randn(2, 1, 6, 4)
    for layer in (*cache.own, *cache.memory):
        layer.extend(states, states)
    cache.truncate(4)
    cache.reorder(torch.tensor([1]))
    cache.select(torch.tensor([[0, 2]]))
    assert cache.length == 2
    assert [layer.contents()[0].shape for layer in cache.own] == [(1, 1, 2, 4)] * 2
    assert all(torch.equal(layer.contents()[1], states[1:]) for layer in cache.memory)

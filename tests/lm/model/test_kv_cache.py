"""The KV cache of a layer, against a concatenation of the same keys and values."""

import random

import pytest
import torch

from lm.model.attention import LayerKVCache

HEADS, HEAD = 2, 3


def drawn(rows: int, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, HEADS, positions, HEAD), torch.randn(rows, HEADS, positions, HEAD)


@pytest.mark.parametrize("seed", range(6))
def test_it_holds_what_was_added_to_the_rows_and_positions_that_are_left(seed):
    chance, rows = random.Random(seed), 3
    torch.manual_seed(seed)
    cache, expected = LayerKVCache(), drawn(rows, 0)
    for _ in range(25):
        new = drawn(rows, chance.randint(1, 9))
        joined = tuple(torch.cat(pair, 2) for pair in zip(expected, new, strict=True))
        assert all(map(torch.equal, cache.extend(*new), joined))
        expected = joined
        match chance.choice(["reorder", "truncate", "nothing"]):
            case "reorder":
                order = torch.tensor([chance.randrange(rows) for _ in range(rows)])
                cache.reorder(order)
                expected = tuple(each[order] for each in expected)
            case "truncate":
                cache.length = chance.randint(1, cache.length)
                expected = tuple(each[:, :, : cache.length] for each in expected)
        assert cache.length == expected[0].shape[2]
        assert all(map(torch.equal, cache.keys_and_values(), expected))

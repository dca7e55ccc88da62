"""Heads are those of one tree, and words stand in it where a search of its graph finds them."""

import random

import pytest

from lm.text.parallel_text import compute_tree_positions, parse_heads
from tests.lm.text.random_trees import path, random_heads, searched_depth

SENTENCE, HEADS = "Bush held a talk with Sharon", "2 0 4 2 4 5"


def test_a_tree_computed_by_hand():
    """Below `held` are `Bush` and `talk`, below `talk` are `a` and `with`, and below that is `Sharon`."""
    heads = parse_heads(HEADS, SENTENCE, where="x")
    assert heads == (2, 0, 4, 2, 4, 5)
    assert compute_tree_positions(heads).tolist() == [[1, 1, 2], [0, 0, 6], [2, 3, 4], [1, 2, 6], [2, 4, 6], [3, 5, 6]]


@pytest.mark.parametrize("words", [1, 2, 3, 7, 20])
def test_depths_and_what_is_below_are_those_of_a_search(words):
    chance = random.Random(words)
    for _ in range(20):
        heads = random_heads(words, chance)
        places = compute_tree_positions(heads)
        assert sorted(places[:, 1]) == list(range(words))
        for word in range(1, words + 1):
            depth, first, end = places[word - 1]
            assert depth == searched_depth(heads, word)
            below = {other for other in range(1, words + 1) if word in path(heads, heads.index(0) + 1, other)}
            assert below == {other for other in range(1, words + 1) if first <= places[other - 1, 1] < end}

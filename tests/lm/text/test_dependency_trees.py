"""Heads are those of one tree, and words stand in it where a search of its graph finds them."""

import random

import pytest

from lm.errors import InputError
from lm.text.dependency_trees import attach_heads, compute_tree_positions, parse_heads
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


def test_a_chain_may_be_long():
    assert compute_tree_positions(range(3000))[-1].tolist() == [2999, 2999, 3000]


def test_a_blank_sentence_has_a_blank_tree():
    assert parse_heads(" ", "", where="x") == ()
    assert compute_tree_positions(()).shape == (0, 3)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2 0 4 2 4", "x has 5 heads, and its sentence 6 words"),
        ("0", "x has 1 head, and its sentence 6 words"),
        ("2 0 4 2 4 7", "x: word 6 has the head 7, and the words go from 1 to 6"),
        ("2 0 4 2 4 -1", "x: word 6 has the head -1, and the words go from 1 to 6"),
        ("2 0 4 2 0 5", r"x has 2 roots \(words with the head 0\), and a tree has one"),
        ("2 1 4 2 4 5", r"x has 0 roots \(words with the head 0\), and a tree has one"),
        ("2 0 4 5 6 4", "x: the heads of words 4, 5, 6 form a cycle"),
        ("2 0 3 2 4 5", "x: the heads of words 3 form a cycle"),
        ("2 0 4 2 4 five", "x: 'five' is not a head: heads are word numbers from 1, or 0 for the root"),
        ("2 0 4 2 4 5.0", "x: '5.0' is not a head"),
    ],
)
def test_what_is_no_tree_is_refused_in_a_line(line, message):
    with pytest.raises(InputError, match=f"^{message}"):
        parse_heads(line, SENTENCE, where="x")


def test_each_sentence_has_its_line():
    sentences = ["a b", "", "c"]
    read = attach_heads(sentences, ["0 1", "", "0"], sentence=str, names=("x.en", "x.heads"))
    assert list(read) == [("a b", (0, 1)), ("", ()), ("c", (0,))]
    for lines, message in (
        (["0 1", ""], "x.heads: ends before line 3 of x.en: give heads for each sentence"),
        (["0 1", "", "0", "0"], "x.heads: line 4 has no sentence, for x.en ends before it"),
        (["0 1", "0", "0"], "x.heads: line 2 has 1 head, and its sentence 0 words"),
    ):
        with pytest.raises(InputError, match=message):
            list(attach_heads(sentences, lines, sentence=str, names=("x.en", "x.heads")))

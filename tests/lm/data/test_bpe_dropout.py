"""BPE dropout: its distribution is that of the paper's algorithm, written again here, and it is a pure function."""

import itertools
from collections import Counter, defaultdict

import numpy as np
import pytest

from lm.corpus import RaggedArray
from lm.data.pairs import DropoutMerges, segment_words
from lm.tokenizer import MergeRules, Tokenizer
from tests.lm.tokenizers_elsewhere import TEXT

RULES = [("a", "b"), ("ab", "a"), ("b", "a"), ("c", "ab"), ("aba", "c")]
NAMES = ["a", "b", "c", "ab", "aba", "ba", "cab", "abac"]
VOCABULARY = {name: index for index, name in enumerate(NAMES)}
MERGES = DropoutMerges(MergeRules(VOCABULARY, RULES, []))


def keys(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.uint64)


def distribution(letters: list[str], dropout: float) -> dict[tuple[str, ...], float]:
    """The probability of each segmentation, exactly: algorithm 1 of Provilkov et al. 2020, by enumeration."""
    found: dict[tuple[str, ...], float] = defaultdict(float)
    candidates = sorted(
        (RULES.index(pair), place) for place, pair in enumerate(itertools.pairwise(letters)) if pair in RULES
    )
    for number, (_, place) in enumerate(candidates):  # it is made if it is kept and all that rank higher are left out
        probability = dropout**number * (1 - dropout)
        merged = [*letters[:place], letters[place] + letters[place + 1], *letters[place + 2 :]]
        for segmentation, rest in distribution(merged, dropout).items():
            found[segmentation] += probability * rest
    found[tuple(letters)] += dropout ** len(candidates)
    return found


@pytest.mark.parametrize("dropout", [0.1, 0.5])
@pytest.mark.parametrize("word", ["abacab", "ababab"])
def test_distribution_is_that_of_the_paper(word, dropout):
    draws = 20_000
    words = RaggedArray.from_rows([[VOCABULARY[letter] for letter in word]] * draws)
    segmented = segment_words(words, MERGES, dropout=dropout, keys=keys(draws))
    drawn = Counter(tuple(NAMES[token] for token in segmented.row(number)) for number in range(draws))
    expected = distribution(list(word), dropout)
    assert set(drawn) <= {segmentation for segmentation, probability in expected.items() if probability > 0}
    for segmentation, probability in expected.items():
        deviation = np.sqrt(probability * (1 - probability) / draws)
        assert abs(drawn[segmentation] / draws - probability) < 5 * deviation + 1e-9


def words_of(tokenizer: Tokenizer, text: str) -> RaggedArray:
    ids, numbers = tokenizer.encode_words([text])[0]
    ends = np.append(np.flatnonzero(np.diff(numbers)) + 1, len(ids))
    return RaggedArray(ids.astype(np.int64), ends)


@pytest.mark.parametrize("dropout", [0, 0.3, 0.9])
def test_text_stays_the_same_and_without_dropout_the_tokens(elsewhere, dropout):
    if elsewhere.merge_rules is None:
        assert elsewhere.kind != "bpe"
        return
    merges, words = DropoutMerges(elsewhere.merge_rules), words_of(elsewhere, TEXT)
    segmented = segment_words(merges.characters(words), merges, dropout=dropout, keys=keys(len(words)))
    assert (segmented.values.tolist() == elsewhere.encode(TEXT)) == (not dropout)
    assert elsewhere.decode(segmented.values) == elsewhere.decode(words.values)


def test_a_word_depends_on_nothing_but_its_key(gpt2):
    merges = DropoutMerges(gpt2.merge_rules)
    letters = merges.characters(words_of(gpt2, TEXT))
    together = segment_words(letters, merges, dropout=0.3, keys=keys(len(letters)))
    order = np.random.default_rng(0).permutation(len(letters))
    shuffled = segment_words(letters.take(order), merges, dropout=0.3, keys=keys(len(letters))[order])
    assert shuffled.values.tolist() == together.take(order).values.tolist()
    alone = segment_words(letters.take(np.array([5])), merges, dropout=0.3, keys=np.array([5], dtype=np.uint64))
    assert alone.values.tolist() == together.row(5).tolist()
    assert len(segment_words(letters.take(keys(0)), merges, dropout=0.3, keys=keys(0))) == 0

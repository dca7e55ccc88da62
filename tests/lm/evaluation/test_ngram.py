"""N-gram baselines, against the textbook's recursion over dictionaries."""

from collections import Counter

import numpy as np
import pytest

from lm.evaluation.metrics import compute_ngram_surprisals

VOCABULARY, ORDER = 5, 4


@pytest.fixture
def text():
    generator = np.random.default_rng(0)
    return generator.choice(VOCABULARY - 1, p=[0.5, 0.25, 0.15, 0.1], size=300)  # the last token never occurs


def kneser_ney(train, order):
    """Interpolated Kneser–Ney: a function of (context, token)."""
    grams = [Counter(tuple(train[i - n + 1 : i + 1]) for i in range(n - 1, len(train))) for n in range(1, order + 1)]
    followed = [Counter(gram[1:] for gram in longer) for longer in grams[1:]]

    def probability(context, token, counts, lower):
        if counts is None:
            return 1 / VOCABULARY
        once, twice = (sum(count == times for count in counts[-1].values()) for times in (1, 2))
        discount = once / (once + 2 * twice) if once and twice else 0.5
        after = {gram: count for gram, count in counts[-1].items() if gram[:-1] == tuple(context)}
        rest = probability(context[1:], token, lower[-1], lower[:-1])
        if not after:
            return rest
        shared = discount * len(after) / sum(after.values())
        return max(after.get((*context, token), 0) - discount, 0) / sum(after.values()) + shared * rest

    chain = [None, *([counts] for counts in followed[: order - 1])]
    return lambda context, token: probability(context, token, [grams[order - 1]], chain)


@pytest.mark.parametrize("order", range(1, ORDER + 1))
def test_each_order_is_interpolated_kneser_ney(text, order):
    train, held_out = text[:250], np.append(text[250:], VOCABULARY - 1)
    model = kneser_ney(train.tolist(), order)
    found = compute_ngram_surprisals(train, held_out, vocab_size=VOCABULARY, order=ORDER)[order - 1]
    for place in range(order - 1, len(held_out)):
        context = held_out[place - order + 1 : place].tolist()
        assert np.exp(-found[place]) == pytest.approx(model(context, held_out[place]), rel=1e-9)

"""Filters equal independent implementations, and draws have the filtered distribution."""

import dataclasses
import math
import random

import pytest
import torch
from transformers import (
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from lm.config.inference import SamplingConfig
from lm.decoding.sampling import (
    History,
    Sampler,
    apply_filters,
    ban_repeated_ngrams,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    keep_typical,
    parse_logit_biases,
    penalise_repetition,
    top_k_tokens,
)
from lm.errors import UsageError
from tests.cli.small_runs import make_tokenizer
from tests.tolerances import assert_close

INF = math.inf


def random_case(number: int):
    """Logits of a few rows over a small vocabulary, in some cases partly ruled out; and tokens that came before."""
    chance, generator = random.Random(number), torch.Generator().manual_seed(number)
    rows, vocabulary, length = chance.randint(1, 4), chance.randint(2, 60), chance.randint(1, 40)
    logits = chance.choice((0.3, 1.0, 4.0)) * torch.randn(rows, vocabulary, generator=generator)
    if chance.random() < 0.3:
        logits[:, 1:].masked_fill_(torch.rand(rows, vocabulary - 1, generator=generator) < 0.3, -INF)
    # Few different tokens, so that n-grams do repeat.
    tokens = torch.randint(min(vocabulary, chance.choice((2, 4, 60))), (rows, length), generator=generator)
    return chance, logits, tokens


def top_k(chance, vocabulary):
    k = chance.randint(1, vocabulary + 3)
    return (lambda logits, _: keep_top_k(logits, k)), TopKLogitsWarper(k)


def top_p(chance, _):
    p = chance.uniform(0.01, 0.999)
    return (lambda logits, _: keep_top_p(logits, p)), TopPLogitsWarper(p)


def min_p(chance, _):
    p = chance.uniform(0, 1)
    return (lambda logits, _: keep_min_p(logits, p)), MinPLogitsWarper(p)


def typical(chance, _):
    mass = chance.uniform(0.01, 0.999)
    return (lambda logits, _: keep_typical(logits, mass)), TypicalLogitsWarper(mass)


def repetition_penalty(chance, _):
    penalty = chance.uniform(0.5, 2)
    return (lambda *case: penalise_repetition(*case, penalty)), RepetitionPenaltyLogitsProcessor(penalty)


def no_repeat_ngram(chance, _):
    size = chance.randint(1, 5)
    return (lambda *case: ban_repeated_ngrams(*case, size)), NoRepeatNGramLogitsProcessor(size)


FILTERS = [top_k, top_p, min_p, typical, repetition_penalty, no_repeat_ngram]


@pytest.mark.parametrize("make", FILTERS, ids=lambda make: make.__name__)
def test_a_filter_agrees_with_hugging_face_on_random_cases(make):
    changed = 0
    for number in range(300):
        chance, logits, tokens = random_case(number)
        ours, theirs = make(chance, logits.shape[1])
        before, expected = logits.clone(), theirs(tokens, logits.clone())
        found = ours(logits, tokens)
        assert logits.equal(before)
        assert_close(found, expected, terms=logits.shape[-1], scale=logits, msg=f"case {number}")
        changed += not found.equal(before)
    assert changed > 60


def test_only_what_was_generated_counts_for_presence_and_frequency_but_the_prompt_for_repetition():
    logits, history = torch.ones(1, 4), History([[0, 0, 1, 2, 2]], [2])
    for config, expected in (
        (SamplingConfig(presence_penalty=0.5), [1, 0.5, 0.5, 1]),
        (SamplingConfig(frequency_penalty=0.5), [1, 0.5, 0, 1]),
        (SamplingConfig(repetition_penalty=2), [0.5, 0.5, 0.5, 1]),
        (SamplingConfig(no_repeat_ngram_size=1), [-INF, -INF, -INF, 1]),
    ):
        ours = apply_filters(logits, Sampler.from_config(config).filters, history) * config.temperature
        assert ours[0].tolist() == pytest.approx(expected)


EVERYTHING = SamplingConfig(
    repetition_penalty=1.5,
    presence_penalty=0.5,
    frequency_penalty=0.25,
    no_repeat_ngram_size=2,
    temperature=0.7,
    seed=0,
)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_rows_of_different_lengths_are_filtered_as_each_is_alone(size):
    config = dataclasses.replace(EVERYTHING, no_repeat_ngram_size=size)
    filters = Sampler.from_config(config, {3: 1.0, 2: -INF}).filters
    chance = torch.Generator().manual_seed(size)
    prompts = [[1, 2], [0, 1, 2, 0, 1], [4], [3, 1, 2, 1, 3, 1]]
    for _ in range(9):
        rows = [[*prompt, *torch.randint(6, (size + 1,), generator=chance).tolist()] for prompt in prompts]
        logits, lengths = torch.randn(len(rows), 6, generator=chance), list(map(len, prompts))
        expected = [
            apply_filters(logits[row : row + 1], filters, History([rows[row]], [lengths[row]]))
            for row in range(len(rows))
        ]
        torch.testing.assert_close(apply_filters(logits, filters, History(rows, lengths)), torch.cat(expected))


def history(rows: int) -> History:
    """A prompt of tokens 0 and 1, after which 1, 2 and 2 were generated."""
    return History([[0, 1, 1, 2, 2]] * rows, [2] * rows)


def test_a_token_of_probability_zero_is_never_drawn_even_at_the_interval_ends():
    class Extreme:
        def __init__(self, value):
            self.value = value

        def random(self):
            return self.value

    logits = torch.full((1, 40), -INF)
    logits[0, 10], logits[0, 20], logits[0, 30] = 0.3, 0.1, -20.0
    assert Sampler().sample(logits, [Extreme(0.0)], history(1)).item() == 10
    assert Sampler().sample(logits, [Extreme(1.0 - 2**-53)], history(1)).item() == 30
    assert Sampler().sample(logits[:, :30], [Extreme(1.0 - 2**-53)], history(1)).item() == 20


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer("bpe")


def test_ids_and_texts_with_values(tokenizer):
    (owl,) = tokenizer.encode(" owl")
    assert parse_logit_biases(["7=-1.5", " owl=2", "7=-inf"], tokenizer) == {7: -INF, owl: 2}
    with pytest.raises(UsageError, match="one token"):
        parse_logit_biases(["the fox ran=1"], tokenizer)


def test_draws_have_the_filtered_distribution():
    """Drawn with numbers that lie evenly."""
    logits, n = 3 * torch.randn(30, generator=torch.Generator().manual_seed(0)), 4000
    sampler = Sampler.from_config(SamplingConfig(temperature=0.9, top_k=12, top_p=0.8, repetition_penalty=1.5, seed=3))

    class Even:
        def __init__(self, number):
            self.number = number

        def random(self):
            return (self.number + 0.5) / n

    tokens = sampler.sample(logits.expand(n, -1), list(map(Even, range(n))), history(n))
    expected = apply_filters(logits[None], sampler.filters, history(1))[0].double().softmax(-1)
    assert ((tokens.bincount(minlength=30) / n - expected).abs() <= 1 / n).all()


def random_values(rows: int, size: int, values: int) -> torch.Tensor:
    """Of so many different values, so that some may be equal."""
    return torch.randint(values, (rows, size), generator=torch.Generator().manual_seed(size)) * (10.0 / values)


@pytest.mark.parametrize("values", [3, 1000, 10**9], ids=["many equal", "some equal", "none equal"])
def test_top_k_equals_a_stable_sort(values):
    for size in (3, 64, 2000):
        logits = random_values(70, size, values)
        found, expected = top_k_tokens(logits, logits, 5), logits.sort(stable=True, descending=True).indices[:, :5]
        assert found.indices.tolist() == expected.tolist()
        assert_close(found.logprobs, logits.log_softmax(-1).gather(1, expected), terms=size, scale=logits)

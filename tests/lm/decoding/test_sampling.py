"""Filters equal independent implementations, and draws have the filtered distribution."""

import dataclasses
import math
import random

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from lm.config.decoding import SamplingConfig
from lm.decoding.sampling import (
    History,
    Sampler,
    add_biases,
    apply_filters,
    apply_temperature,
    ban_early_end,
    ban_repeated_ngrams,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    keep_typical,
    log_normaliser,
    parse_logit_biases,
    penalise_counts,
    penalise_repetition,
)
from tests.cli.small_runs import make_tokenizer
from tests.tolerances import assert_close

INF = math.inf


def history_of(tokens: torch.Tensor, prompt: int = 0) -> History:
    return History(tokens.tolist(), [prompt] * len(tokens))


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


def temperature(chance, _):
    value = chance.uniform(0.05, 3)
    return (lambda logits, _: apply_temperature(logits, value)), TemperatureLogitsWarper(value)


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


def logit_bias(chance, vocabulary):
    sequences = {
        tuple(chance.randrange(min(vocabulary, 4)) for _ in range(chance.randint(1, 3))): chance.choice(
            (-INF, -3.0, 2.5)
        )
        for _ in range(chance.randint(1, 6))
    }
    biased = add_biases(sequences)
    return (lambda logits, tokens: biased(logits, history_of(tokens))), SequenceBiasLogitsProcessor(sequences)


FILTERS = [temperature, top_k, top_p, min_p, typical, repetition_penalty, no_repeat_ngram, logit_bias]


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


def test_min_tokens_agrees_with_hugging_face_and_counts_each_row_without_its_padding():
    for number in range(200):
        chance, logits, tokens = random_case(number)
        length = tokens.shape[1]
        prompt, least = chance.randint(0, length), chance.randint(1, 20)
        ends = [*range(min(chance.randint(1, 3), logits.shape[1]))]
        before = logits.clone()
        expected = MinNewTokensLengthLogitsProcessor(prompt, least, ends)(tokens, logits.clone())
        generated = history_of(tokens, prompt).n_generated
        assert ban_early_end(logits, generated, ends, least).equal(expected)
        assert logits.equal(before)
        prompts = torch.randint(length + 1, (len(tokens),))
        rows = [
            MinNewTokensLengthLogitsProcessor(int(each), least, ends)(row[None], of_row[None].clone())
            for each, row, of_row in zip(prompts, tokens, logits, strict=True)
        ]
        assert ban_early_end(logits, length - prompts, ends, least).equal(torch.cat(rows))


def test_all_filters_one_after_the_other_agree_with_hugging_face():
    config = SamplingConfig(
        temperature=0.7, top_k=20, top_p=0.9, min_p=0.02, typical_p=0.8, repetition_penalty=1.3, no_repeat_ngram_size=2
    )
    biases = {(3,): 2.0, (1, 2): -INF}
    sampler = Sampler.from_config(config, biases)
    theirs = LogitsProcessorList(
        [
            SequenceBiasLogitsProcessor(biases), RepetitionPenaltyLogitsProcessor(1.3), NoRepeatNGramLogitsProcessor(2),
            TemperatureLogitsWarper(0.7), TopKLogitsWarper(20), TopPLogitsWarper(0.9), MinPLogitsWarper(0.02),
            TypicalLogitsWarper(0.8),
        ]
    )  # fmt: skip
    for number in range(100):
        generator = torch.Generator().manual_seed(number)
        logits = 2 * torch.randn(3, 60, generator=generator)
        tokens = torch.randint(6, (3, 30), generator=generator)
        ours = apply_filters(logits, sampler.filters, history_of(tokens, 10))
        assert_close(ours, theirs(tokens, logits.clone()), terms=60, scale=logits)


def test_penalties_of_counts_are_those_of_a_loop_over_the_generated_tokens():
    for number in range(300):
        chance, logits, tokens = random_case(number)
        presence, frequency = chance.uniform(-2, 2), chance.uniform(-2, 2)
        expected = logits.tolist()
        for row, ids in enumerate(tokens.tolist()):
            for token in set(ids):
                expected[row][token] -= presence
            for token in ids:
                expected[row][token] -= frequency
        ours = penalise_counts(logits, tokens, presence=presence, frequency=frequency)
        assert_close(ours, torch.tensor(expected), terms=30, scale=logits)


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
    filters = Sampler.from_config(config, {(3,): 1.0, (1, 2): -INF, (0, 1, 2): 2.0}).filters
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


def random_logits(rows: int = 200, vocabulary: int = 300) -> torch.Tensor:
    return 3 * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(0))


def history(rows: int) -> History:
    """A prompt of tokens 0 and 1, after which 1, 2 and 2 were generated."""
    return History([[0, 1, 1, 2, 2]] * rows, [2] * rows)


def goodness_of_fit(drawn: torch.Tensor, probabilities: torch.Tensor) -> float:
    """The p-value of Pearson's chi-square test, with rare tokens taken together."""
    expected = probabilities.double() * len(drawn)
    counts = drawn.bincount(minlength=len(expected)).double()
    rare = expected < 5
    expected = torch.cat((expected[~rare], expected[rare].sum()[None]))
    counts = torch.cat((counts[~rare], counts[rare].sum()[None]))[expected > 0]
    expected = expected[expected > 0]
    statistic = ((counts - expected) ** 2 / expected).sum()
    return torch.special.gammaincc((torch.tensor(len(expected)) - 1).double() / 2, statistic / 2).item()


@pytest.mark.parametrize(
    "config",
    [
        SamplingConfig(temperature=1.0),
        SamplingConfig(temperature=0.9, top_k=12, top_p=0.8),
        SamplingConfig(temperature=1.2, repetition_penalty=1.5, presence_penalty=0.3, frequency_penalty=0.4),
    ],
    ids=str,
)
def test_draws_have_the_filtered_distribution(config):
    logits, draws = random_logits(1, 30)[0] / 2, 8_000
    sampler = Sampler.from_config(dataclasses.replace(config, seed=3))
    streams = [sampler.rng(row) for row in range(draws)]
    tokens = sampler.sample(logits.expand(draws, -1), streams, history(draws))
    expected = apply_filters(logits[None], sampler.filters, history(1))[0].double().softmax(-1) * draws
    counts = tokens.bincount(minlength=30)
    assert not counts[expected == 0].any()
    assert goodness_of_fit(tokens, expected / draws) > 1e-3


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
    owl = tuple(tokenizer.encode(" owl"))
    long = tuple(tokenizer.encode("the fox ran"))
    assert len(long) > 1
    assert parse_logit_biases(["7=-1.5", " owl=2", "the fox ran=-inf"], tokenizer) == {
        (7,): -1.5,
        owl: 2,
        long: -math.inf,
    }
    assert parse_logit_biases(["a=b=1"], tokenizer) == {tuple(tokenizer.encode("a=b")): 1}
    assert parse_logit_biases(["7=1", "7=2"], tokenizer) == {(7,): 2}


@pytest.mark.parametrize("vocabulary", [1, 7, 4096])
def test_log_normaliser_has_the_bits_of_logsumexp_and_is_nan_if_not_finite(vocabulary):
    logits = 10 * torch.randn(9, vocabulary, generator=torch.Generator().manual_seed(vocabulary))
    logits[:, 1:][:, ::3] = -torch.inf
    assert torch.equal(log_normaliser(logits), logits.logsumexp(-1))
    for row, value in enumerate((torch.nan, torch.inf)):
        logits[row, -1] = value
    logits[2] = -torch.inf
    assert log_normaliser(logits).isnan().tolist() == [True] * 3 + [False] * 6


def test_top_k_keeps_exactly_k_and_of_equal_tokens_the_first():
    logits = torch.tensor([[1.0, 2.0, 1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    assert keep_top_k(logits, 3).tolist() == [[1.0, 2.0, 1.0, -INF, -INF], [0.0, 0.0, 0.0, -INF, -INF]]

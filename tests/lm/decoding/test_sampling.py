import dataclasses
import math

import pytest
import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from lm.config import SamplingConfig
from lm.decoding.sampling import Sampler, keep_top_k, keep_top_p, temper
from lm.errors import UsageError

INF = math.inf


def random_logits(rows: int = 200, vocabulary: int = 300) -> torch.Tensor:
    return 3 * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(0))


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


@pytest.mark.parametrize("temperature", [0.1, 0.8, 2.5])
def test_temperature_agrees_with_hugging_face(temperature):
    logits = random_logits()
    torch.testing.assert_close(temper(logits, temperature), TemperatureLogitsWarper(temperature)(None, logits))


@pytest.mark.parametrize("k", [1, 2, 40, 299, 300, 1000])
def test_top_k_agrees_with_hugging_face(k):
    logits = random_logits()
    assert keep_top_k(logits, k).equal(TopKLogitsWarper(k)(None, logits))


@pytest.mark.parametrize("p", [0.01, 0.3, 0.9, 0.99])
def test_top_p_agrees_with_hugging_face(p):
    logits = random_logits()
    assert keep_top_p(logits, p).equal(TopPLogitsWarper(p)(None, logits))


def test_filters_one_after_the_other_agree_with_hugging_face():
    logits = random_logits()
    theirs = LogitsProcessorList([TemperatureLogitsWarper(0.7), TopKLogitsWarper(20), TopPLogitsWarper(0.8)])
    ours = Sampler.of(SamplingConfig(temperature=0.7, top_k=20, top_p=0.8)).filters
    filtered = logits
    for keep in ours:
        filtered = keep(filtered)
    torch.testing.assert_close(filtered, theirs(None, logits))


def test_top_k_keeps_exactly_k_and_of_equal_tokens_the_first():
    logits = torch.tensor([[1.0, 2.0, 1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    assert keep_top_k(logits, 3).tolist() == [[1.0, 2.0, 1.0, -INF, -INF], [0.0, 0.0, 0.0, -INF, -INF]]


def test_top_p_keeps_the_smallest_set_that_reaches_p():
    logits = torch.tensor([[0.25, 0.5, 0.125, 0.125]]).log()
    for p, kept in ((0.0, [1]), (0.5, [1]), (0.51, [0, 1]), (0.75, [0, 1]), (0.8, [0, 1, 2]), (0.9, [0, 1, 2, 3])):
        assert keep_top_p(logits, p).isfinite().nonzero()[:, 1].tolist() == kept, p
    assert keep_top_p(logits, 1.0).equal(logits)


@pytest.mark.parametrize(
    "config",
    [
        SamplingConfig(temperature=1.0),
        SamplingConfig(temperature=0.6),
        SamplingConfig(temperature=1.5, top_k=5),
        SamplingConfig(temperature=1.0, top_p=0.9),
        SamplingConfig(temperature=0.9, top_k=12, top_p=0.8),
    ],
    ids=str,
)
def test_draws_have_the_filtered_distribution(config):
    logits, draws = random_logits(1, 30)[0] / 2, 20_000
    sampler = Sampler.of(dataclasses.replace(config, seed=3))
    generators = [sampler.generator(row) for row in range(draws)]
    tokens, _ = sampler.choose(logits.expand(draws, -1), generators)
    filtered = logits[None]
    for keep in sampler.filters:
        filtered = keep(filtered)
    expected = filtered[0].double().softmax(-1) * draws
    counts = tokens.bincount(minlength=30)
    assert not counts[expected == 0].any()
    assert goodness_of_fit(tokens, expected / draws) > 1e-3


def test_consecutive_draws_of_one_row_have_the_distribution_too():
    probabilities = torch.tensor([0.5, 0.2, 0.2, 0.1])
    sampler = Sampler(seed=9)
    generators = [sampler.generator(0)]
    drawn = torch.cat([sampler.choose(probabilities.log()[None], generators)[0] for _ in range(5000)])
    assert goodness_of_fit(drawn, probabilities) > 1e-3


def test_a_token_without_probability_is_never_drawn_not_even_at_the_ends_of_the_interval():
    class Extreme:
        def __init__(self, value):
            self.value = value

        def random(self):
            return self.value

    logits = torch.full((1, 40), -INF)
    logits[0, 10], logits[0, 20], logits[0, 30] = 0.3, 0.1, -20.0
    assert Sampler().choose(logits, [Extreme(0.0)])[0].item() == 10
    assert Sampler().choose(logits, [Extreme(1.0 - 2**-53)])[0].item() == 30
    assert Sampler().choose(logits[:, :30], [Extreme(1.0 - 2**-53)])[0].item() == 20


def test_a_row_draws_the_same_whatever_rows_are_beside_it():
    sampler, logits = Sampler.of(SamplingConfig(seed=5)), random_logits(8)
    together, _ = sampler.choose(logits, [sampler.generator(row) for row in range(8)])
    for row in range(8):
        alone, _ = sampler.choose(logits[row : row + 1], [sampler.generator(row)])
        assert alone.item() == together[row].item()
    assert sampler.generator(0).random() != sampler.generator(1).random()
    assert sampler.generator(0).random() != Sampler(seed=6).generator(0).random()


def test_log_probabilities_are_those_of_the_model_before_any_filter():
    sampler, logits = Sampler.of(SamplingConfig(temperature=0.3, top_k=4, top_p=0.9, seed=1)), random_logits(50)
    tokens, logprobs = sampler.choose(logits, [sampler.generator(row) for row in range(50)])
    expected = logits.double().log_softmax(-1)[torch.arange(50), tokens]
    torch.testing.assert_close(logprobs.double(), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    "config", [SamplingConfig(temperature=0), SamplingConfig(temperature=2.0, greedy=True)], ids=str
)
def test_greedy_takes_the_best_and_needs_no_numbers(config):
    tokens, _ = Sampler.of(config).choose(random_logits(), [])
    assert tokens.equal(random_logits().argmax(-1))


def test_without_a_seed_each_sampler_has_its_own():
    assert Sampler.of(SamplingConfig()).seed != Sampler.of(SamplingConfig()).seed
    assert Sampler.of(SamplingConfig(seed=0)).seed == 0


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"temperature": -0.1}, "--temperature"),
        ({"temperature": math.nan}, "--temperature"),
        ({"top_k": 0}, "--top-k"),
        ({"top_p": 1.1}, "--top-p"),
        ({"max_tokens": 0}, "--max-tokens"),
        ({"seed": -1}, "--seed"),
    ],
)
def test_a_wrong_setting_is_named(values, named):
    with pytest.raises(UsageError, match=named):
        SamplingConfig(**values)

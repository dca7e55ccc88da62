import dataclasses
import math

import pytest
import torch

from lm.config.decoding import SamplingConfig
from lm.decoding.sampling import NO_TOKEN_LEFT, History, Sampler, apply_filters
from lm.errors import UsageError
from tests.tolerances import assert_close

INF = math.inf


def random_logits(rows: int = 200, vocabulary: int = 300) -> torch.Tensor:
    return 3 * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(0))


def history(rows: int) -> History:
    """A prompt of tokens 0 and 1, after which 1, 2 and 2 were generated."""
    return History(torch.tensor([[0, 1, 1, 2, 2]]).expand(rows, -1), 2)


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
        SamplingConfig(temperature=0.6),
        SamplingConfig(temperature=1.5, top_k=5),
        SamplingConfig(temperature=1.0, top_p=0.9),
        SamplingConfig(temperature=0.9, top_k=12, top_p=0.8),
        SamplingConfig(temperature=1.0, min_p=0.1),
        SamplingConfig(temperature=1.0, typical=0.7),
        SamplingConfig(temperature=1.2, repetition_penalty=1.5, presence_penalty=0.3, frequency_penalty=0.4),
        SamplingConfig(temperature=1.0, no_repeat_ngram=1),
    ],
    ids=str,
)
def test_draws_have_the_filtered_distribution(config):
    logits, draws = random_logits(1, 30)[0] / 2, 20_000
    sampler = Sampler.from_config(dataclasses.replace(config, seed=3))
    streams = [sampler.rng(row) for row in range(draws)]
    tokens, _ = sampler.sample(logits.expand(draws, -1), streams, history(draws))
    expected = apply_filters(logits[None], sampler.filters, history(1))[0].double().softmax(-1) * draws
    counts = tokens.bincount(minlength=30)
    assert not counts[expected == 0].any()
    assert goodness_of_fit(tokens, expected / draws) > 1e-3


def test_consecutive_draws_of_one_row_have_the_distribution_too():
    probabilities = torch.tensor([0.5, 0.2, 0.2, 0.1])
    sampler = Sampler(seed=9)
    streams = [sampler.rng(0)]
    drawn = torch.cat([sampler.sample(probabilities.log()[None], streams, history(1))[0] for _ in range(5000)])
    assert goodness_of_fit(drawn, probabilities) > 1e-3


def test_a_token_of_probability_zero_is_never_drawn_even_at_the_interval_ends():
    class Extreme:
        def __init__(self, value):
            self.value = value

        def random(self):
            return self.value

    logits = torch.full((1, 40), -INF)
    logits[0, 10], logits[0, 20], logits[0, 30] = 0.3, 0.1, -20.0
    assert Sampler().sample(logits, [Extreme(0.0)], history(1))[0].item() == 10
    assert Sampler().sample(logits, [Extreme(1.0 - 2**-53)], history(1))[0].item() == 30
    assert Sampler().sample(logits[:, :30], [Extreme(1.0 - 2**-53)], history(1))[0].item() == 20


def test_draws_do_not_depend_on_other_rows():
    sampler, logits = Sampler.from_config(SamplingConfig(seed=5)), random_logits(8)
    together, _ = sampler.sample(logits, [sampler.rng(row) for row in range(8)], history(8))
    for row in range(8):
        alone, _ = sampler.sample(logits[row : row + 1], [sampler.rng(row)], history(1))
        assert alone.item() == together[row].item()
    assert sampler.rng(0).random() != sampler.rng(1).random()
    assert sampler.rng(0).random() != Sampler(seed=6).rng(0).random()


def test_log_probabilities_are_those_of_the_model_before_any_filter():
    sampler, logits = (
        Sampler.from_config(SamplingConfig(temperature=0.3, top_k=4, top_p=0.9, seed=1)),
        random_logits(50),
    )
    tokens, logprobs = sampler.sample(logits, [sampler.rng(row) for row in range(50)], history(50))
    expected = logits.double().log_softmax(-1)[torch.arange(50), tokens]
    assert_close(logprobs, expected, terms=logits.shape[1], scale=logits)


@pytest.mark.parametrize(
    "config", [SamplingConfig(temperature=0), SamplingConfig(temperature=2.0, greedy=True)], ids=str
)
def test_greedy_chooses_the_best_without_random_numbers(config):
    tokens, _ = Sampler.from_config(config).sample(random_logits(), [], history(200))
    assert tokens.equal(random_logits().argmax(-1))


def test_greedy_heeds_biases_and_penalties_but_not_truncation():
    logits = torch.tensor([[0.0, 1.0, 4.0, 3.0]])
    for config, biases, best in (
        (SamplingConfig(greedy=True), {}, 2),
        (SamplingConfig(greedy=True), {(2,): -INF}, 3),
        (SamplingConfig(greedy=True, repetition_penalty=2), {}, 3),
        (SamplingConfig(greedy=True, frequency_penalty=0.6), {}, 3),
        (SamplingConfig(greedy=True, frequency_penalty=0.4), {}, 2),
        (SamplingConfig(greedy=True, no_repeat_ngram=1), {}, 3),
        (SamplingConfig(greedy=True, typical=0.0), {}, 2),
    ):
        assert Sampler.from_config(config, biases).sample(logits, [], history(1))[0].item() == best


@pytest.mark.parametrize("greedy", [True, False])
def test_a_row_with_every_token_banned_is_reported_and_others_continue(greedy):
    sampler = Sampler.from_config(SamplingConfig(greedy=greedy, no_repeat_ngram=1))
    before = History(torch.tensor([[0, 1, 2], [0, 0, 1]]), 0)
    tokens, logprobs = sampler.sample(torch.zeros(2, 3), [sampler.rng(row) for row in range(2)], before)
    assert tokens.tolist() == [NO_TOKEN_LEFT, 2]
    assert logprobs.isfinite().all()


def test_without_a_seed_each_sampler_has_its_own():
    assert Sampler.from_config(SamplingConfig()).seed != Sampler.from_config(SamplingConfig()).seed
    assert Sampler.from_config(SamplingConfig(seed=0)).seed == 0


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_p": 1.1}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"typical": 1.5}, "typical"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"presence_penalty": math.inf}, "presence_penalty"),
        ({"frequency_penalty": math.nan}, "frequency_penalty"),
        ({"no_repeat_ngram": 0}, "no_repeat_ngram"),
        ({"stop": ("",)}, "stop"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"seed": -1}, "seed"),
    ],
)
def test_a_wrong_setting_is_named(values, named):
    with pytest.raises(UsageError, match=named):
        SamplingConfig(**values)

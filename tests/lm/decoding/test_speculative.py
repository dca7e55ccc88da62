"""With a draft, samples have the distribution that the model alone has, and greedy ones are the same."""

import functools
import itertools
from collections import Counter

import pytest
import torch

from lm.config.inference import SamplingConfig
from lm.config.model import ModelConfig
from lm.decoding.batching import Sample, Token, decode
from lm.decoding.sampling import History, Sampler
from lm.decoding.speculative import decode_speculatively, look_up_in_prompt, model_drafter
from lm.model import DecoderOnly, build_model
from tests.lm.decoding.session_driver import session
from tests.tolerances import approx

PROMPT = [1, 2, 3, 1, 2]


@functools.cache
def model(seed: int, *, vocab_size: int = 5, n_layers: int = 1, context_length: int = 16) -> DecoderOnly:
    shape = {"context_length": context_length, "d_model": 16, "n_heads": 2, "init_std": 0.6}
    return build_model(ModelConfig(vocab_size=vocab_size, n_layers=n_layers, **shape), seed=seed).eval()


def draft_of(kind: str, sampler: Sampler, **shape):
    return look_up_in_prompt if kind == "prompt" else model_drafter(session(model(2, **shape)), sampler)


def tokens_of(events) -> list[int]:
    return [event.id for event in events if isinstance(event, Token)]


def make_sample(sampler: Sampler, number: int, max_tokens: int, **options) -> Sample:
    return Sample(PROMPT, sampler, sampler.rng(number), max_tokens, **options)


@pytest.mark.parametrize("kind", ["model", "prompt", "itself"])
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_greedy_samples_are_the_same(kind, penalty):
    """Beyond the context too, with log-probabilities, stop tokens and alternatives."""
    shape = {"vocab_size": 40, "n_layers": 2}
    sampler = Sampler.from_config(SamplingConfig(temperature=0, repetition_penalty=penalty))
    for seed, stop in itertools.product(range(2), [(), (7,)]):
        ours = model(seed, **shape)
        logits = ours(torch.tensor([PROMPT]))
        draft = model_drafter(session(ours), sampler) if kind == "itself" else draft_of(kind, sampler, **shape)
        options = {"stop_ids": stop, "alternatives": 2}
        found = list(decode_speculatively(session(ours), draft, make_sample(sampler, 0, 24, **options)))
        expected = list(decode(session(ours), [make_sample(sampler, 0, 24, **options)], batch_size=1))
        assert tokens_of(found) == tokens_of(expected)
        assert found[-1] == expected[-1]
        for one, other in zip(found[:-1], expected[:-1], strict=True):
            assert one.logprob == approx(other.logprob, model=ours, scale=logits)
            assert [token for token, _ in one.alternatives] == [token for token, _ in other.alternatives]


@torch.inference_mode()
def distribution(one: DecoderOnly, sampler: Sampler, length: int) -> dict[tuple[int, ...], float]:
    """The probability of each continuation of so many tokens, by the chain rule."""
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        longer = {}
        for past, probability in found.items():
            tokens = [*PROMPT, *past]
            logits = one(torch.tensor([tokens]))[:, -1].float()
            shares = sampler.probabilities(logits, History([tokens], [len(PROMPT)]))[0].tolist()
            for token, share in enumerate(shares):
                longer[*past, token] = probability * share
        found = longer
    return found


@pytest.mark.medium
@pytest.mark.parametrize(
    ("kind", "settings"), [("model", {"temperature": 0.7, "top_k": 3}), ("prompt", {"temperature": 1.0})]
)
def test_samples_have_the_distribution_of_the_model_alone(kind, settings):
    """Chi-square over all continuations of three tokens; so seeded that it always passes or never does."""
    ours, sampler, number = model(1), Sampler.from_config(SamplingConfig(seed=1, **settings)), 300
    counted = Counter()
    for sample in range(number):
        draft = draft_of(kind, sampler)
        events = decode_speculatively(session(ours), draft, make_sample(sampler, sample, 3))
        counted[tuple(tokens_of(events))] += 1
    expected = {tokens: number * share for tokens, share in distribution(ours, sampler, 3).items() if share}
    assert set(counted) <= set(expected)
    rare = [tokens for tokens, often in expected.items() if often < 5]
    cells = [(counted[tokens], often) for tokens, often in expected.items() if often >= 5]
    cells.append((sum(counted[tokens] for tokens in rare), sum(expected[tokens] for tokens in rare)))
    square = sum((seen - often) ** 2 / often for seen, often in cells if often)
    freedom = len(cells) - 1
    assert square < freedom + 3.5 * (2 * freedom) ** 0.5

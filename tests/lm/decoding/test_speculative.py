"""With a draft, samples have the distribution that the model alone has, and greedy ones are the same."""

import functools
import itertools
import random
from collections import Counter

import pytest
import torch

from lm.config.decoding import SamplingConfig
from lm.config.model import ModelConfig
from lm.decoding.batching import Finish, SampleSpec, Token, generate
from lm.decoding.generator import Generator
from lm.decoding.sampling import History, Sampler
from lm.decoding.speculative import (
    AcceptanceStats,
    DraftToken,
    ModelDrafter,
    PromptLookupDrafter,
    generate_speculatively,
)
from lm.errors import UsageError
from lm.model.transformer import DecoderOnly, build_model
from tests.cli.small_runs import make_tokenizer
from tests.lm.decoding.session_driver import session
from tests.tolerances import approx

PROMPT = torch.tensor([[1, 2, 3, 1, 2]])


@functools.cache
def model(seed: int, *, vocab_size: int = 5, n_layers: int = 1, context_length: int = 16) -> DecoderOnly:
    shape = {"context_length": context_length, "d_model": 16, "n_heads": 2, "init_std": 0.6}
    return build_model(ModelConfig(vocab_size=vocab_size, n_layers=n_layers, **shape), seed=seed).eval()


def draft_of(kind: str, sampler: Sampler, **shape):
    return PromptLookupDrafter() if kind == "prompt" else ModelDrafter(session(model(2, **shape)), sampler)


def tokens_of(events) -> list[int]:
    return [event.id for event in events if isinstance(event, Token)]


def plain(one: DecoderOnly, sampler: Sampler, row: SampleSpec, **options) -> list[Token | Finish]:
    return list(generate(session(one), PROMPT, [row], sampler, **options))


@pytest.mark.parametrize("kind", ["model", "prompt", "itself"])
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_greedy_samples_are_the_same(kind, penalty):
    """Beyond the context too, with log-probabilities, stop tokens and alternatives."""
    shape = {"vocab_size": 40, "n_layers": 2}
    sampler = Sampler.from_config(SamplingConfig(greedy=True, repetition_penalty=penalty))
    for seed, stop in itertools.product(range(2), [(), (7,)]):
        ours = model(seed, **shape)
        logits = ours(PROMPT)
        draft = ModelDrafter(session(ours), sampler) if kind == "itself" else draft_of(kind, sampler, **shape)
        agreement, options = AcceptanceStats(), {"stop_ids": stop, "alternatives": 2}
        found = list(
            generate_speculatively(session(ours), draft, PROMPT, SampleSpec(0, 40), sampler, stats=agreement, **options)
        )
        expected = plain(ours, sampler, SampleSpec(0, 40), **options)
        assert tokens_of(found) == tokens_of(expected)
        assert found[-1] == expected[-1]
        for one, other in zip(found[:-1], expected[:-1], strict=True):
            assert one.logprob == approx(other.logprob, model=ours, scale=logits)
            assert [token for token, _ in one.alternatives] == [token for token, _ in other.alternatives]
        if kind == "itself":
            assert agreement.accepted >= agreement.proposed - 15  # those behind a stop token are not asked about
            assert agreement.proposed > 0 or len(found) < 3


@torch.inference_mode()
def distribution(one: DecoderOnly, sampler: Sampler, length: int) -> dict[tuple[int, ...], float]:
    """The probability of each continuation of so many tokens, by the chain rule."""
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        longer = {}
        for past, probability in found.items():
            tokens = torch.cat((PROMPT, torch.tensor([past], dtype=torch.long)), dim=1)
            logits = one(tokens)[:, -1].float()
            for token, share in enumerate(sampler.probabilities(logits, History(tokens, PROMPT.shape[1]))[0].tolist()):
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
    agreement, counted = AcceptanceStats(), Counter()
    for sample in range(number):
        draft = draft_of(kind, sampler)
        events = generate_speculatively(session(ours), draft, PROMPT, SampleSpec(sample, 3), sampler, stats=agreement)
        counted[tuple(tokens_of(events))] += 1
    expected = {tokens: number * share for tokens, share in distribution(ours, sampler, 3).items() if share}
    assert set(counted) <= set(expected)
    rare = [tokens for tokens, often in expected.items() if often < 5]
    cells = [(counted[tokens], often) for tokens, often in expected.items() if often >= 5]
    cells.append((sum(counted[tokens] for tokens in rare), sum(expected[tokens] for tokens in rare)))
    square = sum((seen - often) ** 2 / often for seen, often in cells if often)
    freedom = len(cells) - 1
    assert square < freedom + 3.5 * (2 * freedom) ** 0.5
    assert 0 < agreement.accepted < agreement.proposed


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([5, 1, 2, 3, 4, 1, 2, 3], [4, 1, 2]),
        ([1, 2, 3], []),
        ([7], []),
        ([7, 7], [7]),
        ([2, 3, 8, 9, 9, 3, 6, 9, 2, 3], [8, 9, 9]),  # after two of the same, not after the last one alone
        ([1, 2, 3, 8, 9, 2, 3, 6, 9, 1, 2, 3], [8, 9, 2]),
        ([0, 1, 2, 3, 8, 4, 1, 2, 3, 9, 0, 1, 2, 3], [9, 0, 1]),  # of three the latest, though four occurred before
        ([3, 8, 1, 3, 9, 1, 4, 3], [9, 1, 4]),
    ],
)
def test_prompt_lookup_proposes_what_followed_the_last_three_tokens_or_fewer(tokens, expected):
    draft, history = PromptLookupDrafter(), History(torch.tensor([tokens]), len(tokens))
    assert [guess.token for guess in draft.propose(history, 3, random.Random(0))] == expected


class ScriptedDraft:
    """A draft that is right or wrong; notes after how many tokens it is asked, and for how many."""

    def __init__(self, following: list[int], *, is_right: bool) -> None:
        self.following, self.is_right, self.asked = following, is_right, list[tuple[int, int]]()

    def propose(self, history, count, rng):
        n = history.tokens.shape[1] - PROMPT.shape[1]
        self.asked.append((n, count))
        return [DraftToken(token if self.is_right else (token + 1) % 40) for token in self.following[n : n + count]]


@pytest.mark.parametrize(
    ("is_right", "asked"),
    [
        # two more each time, up to 15; a token of the model follows those of a draft
        (True, [(1, 4), (6, 6), (13, 8), (22, 10), (33, 12), (46, 14), (61, 15), (77, 15), (93, 6)]),
        # one fewer; after three that were all wrong, pauses of 1, 2, 4, 8 and 16 steps
        (False, [(1, 4), (2, 3), (3, 2), (5, 1), (8, 1), (13, 1), (22, 1), (39, 1), (56, 1), (73, 1), (90, 1)]),
    ],
)
def test_a_draft_is_asked_for_more_while_it_is_right_and_seldom_while_it_is_not(is_right, asked):
    ours, sampler, stats = model(3, vocab_size=40, context_length=128), Sampler(greedy=True), AcceptanceStats()
    expected = tokens_of(plain(ours, sampler, SampleSpec(0, 100)))
    draft = ScriptedDraft(expected, is_right=is_right)
    found = generate_speculatively(session(ours), draft, PROMPT, SampleSpec(0, 100), sampler, stats=stats)
    assert tokens_of(found) == expected
    assert draft.asked == asked
    assert (stats.proposed, stats.accepted) == (sum(count for _, count in asked), 90 if is_right else 0)


def test_a_rejected_draft_may_be_accepted_later():
    sampler = Sampler(greedy=True)
    ours = model(3, vocab_size=40, context_length=128)
    draft = ModelDrafter(session(ours), sampler)
    guess, agreement = draft.propose, AcceptanceStats()
    rounds = itertools.count()

    def at_first_wrong(history, count, stream):
        right = guess(history, count, stream)
        return right if next(rounds) >= 6 else [DraftToken((right[0].token + 1) % 40)]

    draft.propose = at_first_wrong
    found = generate_speculatively(session(ours), draft, PROMPT, SampleSpec(0, 100), sampler, stats=agreement)
    assert tokens_of(found) == tokens_of(plain(ours, sampler, SampleSpec(0, 100)))
    assert agreement.accepted > 50


@pytest.mark.parametrize("size", [-5, 5])
def test_a_draft_of_another_vocabulary_is_refused(size):
    """Its tokens would be others, or none of the model's."""
    tokenizer = make_tokenizer("byte")
    shape = {"context_length": 16, "d_model": 8, "n_layers": 1, "n_heads": 1}
    ours = build_model(ModelConfig(vocab_size=tokenizer.vocab_size, **shape))
    other = build_model(ModelConfig(vocab_size=tokenizer.vocab_size + size, **shape))
    with pytest.raises(UsageError, match=rf"the draft model has a vocabulary of {other.config.vocab_size} tokens"):
        Generator(ours, tokenizer, draft=other)

"""The end of a prompt is covered as likely as the model says, and what is shown is the prompt and its continuation."""

import dataclasses
import math
from collections import Counter

import pytest
import tokenizers
import torch

from lm.config.decoding import SamplingConfig
from lm.config.model import ModelConfig
from lm.decoding.generator import PROMPT_LOOKUP, Generator, encode_continuation, encode_prompt
from lm.decoding.sampling import Sampler
from lm.decoding.session import DecodeSession
from lm.decoding.speculative import AcceptanceStats
from lm.decoding.token_healing import HealedPrompt, PromptEnding, choose_healed_prompt, heal_prompts
from lm.errors import UsageError
from lm.model.transformer import build_model
from lm.tokenizer.tokenizer import Tokenizer
from tests.cli.small_runs import TEXT, make_tokenizer
from tests.tolerances import approx

TOKENIZER = make_tokenizer("bpe")
PROMPTS = ("The owl saw the fo", "The owl ", "Über den Bä", "The owl — and", "狐", "The", "saw  ")


def model(seed: int = 3, **fields):
    shape = {"context_length": 32, "d_model": 32, "n_layers": 2, "n_heads": 2, "init_std": 0.3, **fields}
    config = ModelConfig(**{"vocab_size": TOKENIZER.vocab_size, **shape})
    return build_model(config, seed=seed).eval().requires_grad_(False)


def generator(ours=None, tokenizer=TOKENIZER, **settings) -> Generator:
    given = {"seed": 5, "max_tokens": 12, "temperature": 1.5} | settings
    return Generator(ours or model(), tokenizer, SamplingConfig(**given))


def found(ours: Generator, prompt: str) -> list[HealedPrompt]:
    """The covers of a prompt's end."""
    ending = PromptEnding.find(ours.tokenizer, prompt, encode_prompt(ours.tokenizer, prompt))
    assert ending is not None
    return heal_prompts(DecodeSession(ours.plan()), [ending], ours.tokenizer, ours.sampler)[0]


def by_tokens(found: list[HealedPrompt]) -> dict[tuple[int, ...], float]:
    """The score of each cover, by the ids of the prompt that it makes and the token that goes beyond it."""
    scores = {}
    for cover in found:
        lasts = [(token,) for token in cover.tokens.tolist()] or [()]
        scores |= {(*cover.prompt, *last): score for last, score in zip(lasts, cover.scores.tolist(), strict=True)}
    return scores


def spelled(tokens) -> bytes:
    special = TOKENIZER.special_tokens.values()
    return b"".join(TOKENIZER.token_bytes(token) for token in tokens if token not in special)


def by_the_model(ours: Generator, prompt: str, kept: int) -> dict[tuple[int, ...], float]:
    """The same as `by_tokens` from the definition: every spelling of a beginning, every token, no cache."""
    start, last = encode_prompt(TOKENIZER, prompt)[:kept], prompt.encode()
    expected = {}
    beginnings = {tuple(encode_prompt(TOKENIZER, prompt[:n])) for n in range(len(prompt))}
    own = encode_prompt(TOKENIZER, prompt)
    beginnings |= {tuple(own[:n]) for n in range(kept, len(own))}
    for beginning in beginnings:
        if list(beginning[:kept]) != start:
            continue
        logprobs = ours.model(torch.tensor([beginning]))[0].double().log_softmax(-1)
        before = sum(float(logprobs[place - 1, beginning[place]]) for place in range(kept, len(beginning)))
        rest = last[len(spelled(beginning)) :]
        for token in range(TOKENIZER.vocab_size):
            if spelled([token]).startswith(rest) and token not in TOKENIZER.special_tokens.values():
                expected[*beginning, token] = before + float(logprobs[-1, token])
    return expected


@pytest.mark.parametrize("prompt", PROMPTS)
def test_healed_prompts_are_all_retokenisations_with_their_probabilities(prompt):
    ours = generator()
    ending = PromptEnding.find(TOKENIZER, prompt, encode_prompt(TOKENIZER, prompt))
    expected = by_the_model(ours, prompt, len(ending.prefix_ids))
    assert by_tokens(found(ours, prompt)) == approx(expected, depth=8)
    own = tuple(encode_prompt(TOKENIZER, prompt))
    assert own in expected, "the prompt's own tokens cover its end"


def test_healed_prompts_are_sampled_with_their_probabilities():
    class Even:
        """Gives numbers that lie evenly."""

        def __init__(self, number: int) -> None:
            self.number = number

        def random(self) -> float:
            return (self.number + 0.5) / 2000

    ours = generator()
    options = found(ours, PROMPTS[0])
    for temperature in (1.0, 0.5):
        sampler = Sampler.from_config(SamplingConfig(temperature=temperature, seed=0))
        drawn = Counter()
        for number in range(2000):
            cover, token = choose_healed_prompt(options, sampler, Even(number))
            drawn[*cover.prompt, *([] if token is None else [token])] += 1
        weights = {key: math.exp(score / temperature) for key, score in by_tokens(options).items()}
        for key, weight in weights.items():
            assert abs(drawn[key] / 2000 - weight / sum(weights.values())) <= 1 / 2000


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_equals_a_beam_of_one_and_speculative_decoding(prompt):
    ours = generator(temperature=0)
    (expected,) = ours.samples(prompt)
    (found,) = ours.search(prompt, beam_size=1)
    assert found.tokens[: len(expected.tokens)] == expected.tokens
    for draft in (PROMPT_LOOKUP, model(4)):
        (drafted,) = dataclasses.replace(ours, draft=draft, acceptance_stats=AcceptanceStats()).samples(prompt)
        assert (drafted.tokens, drafted.text) == (expected.tokens, expected.text)


@pytest.mark.parametrize("prompt", ["Th", "The owl saw the fo", "The owl ", "The owl saw"])
def test_tokenizers_that_start_a_text_with_a_space_heal_too(prompt):
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = tokenizers.decoders.Metaspace(prepend_scheme="first")
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=200, special_tokens=["<s>", "</s>"], show_progress=False)
    backend.train_from_iterator([TEXT], trainer)
    tokenizer = Tokenizer(backend)
    ours = generator(model(vocab_size=tokenizer.vocab_size), tokenizer)
    options = found(ours, prompt)
    for cover in options:
        for last in [[token] for token in cover.tokens.tolist()] or [[]]:
            assert tokenizer.decode([*cover.prompt, *last]).startswith(prompt)
    ending = PromptEnding.find(tokenizer, prompt, encode_prompt(tokenizer, prompt))
    assert ending.text.decode() == " " + prompt.split(" ")[-1], "the whole word is taken back"
    for sample in [*ours.samples(prompt, n=8), *ours.search(prompt, beam_size=2, n=2)]:
        texts = {tokenizer.decode([*cover.prompt, *sample.tokens]) for cover in options if cover.prompt_bytes}
        assert prompt + sample.text in texts or not sample.prompt_bytes


def test_only_the_text_of_a_prompt_is_retokenised():
    ids = encode_prompt(TOKENIZER, "The owl ")
    off = generator(token_healing=False).samples("The owl ", n=3)
    assert generator().samples(ids, n=3) == off
    assert dataclasses.replace(generator(), follows_examples=True).samples("The owl ", n=3) == off
    assert generator().samples("The owl ", n=3) != off
    assert PromptEnding.find(TOKENIZER, "", ids) is None
    context = [*encode_prompt(TOKENIZER, "saw the fo"), TOKENIZER.end_of_text]
    ending = PromptEnding.find(TOKENIZER, "x", encode_continuation(TOKENIZER, context, "x"))
    assert ending.prefix_ids == context
    assert PromptEnding.find(TOKENIZER, "x", TOKENIZER.encode("x")) is None, "one token has to stay"
    with pytest.raises(UsageError, match="the prompt is empty"):
        generator().samples([])

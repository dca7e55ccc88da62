"""The last token of a prompt is chosen again, from those that start with its text."""

import dataclasses

import pytest
import torch

from lm.config.inference import SamplingConfig
from lm.config.model import ModelConfig
from lm.corpus.encode import encode_prompt
from lm.decoding.generator import PROMPT_LOOKUP, Generator
from lm.model import build_model
from lm.tokenizer import Tokenizer
from tests.cli.small_runs import make_tokenizer

TOKENIZER = make_tokenizer("bpe")
CASED = make_tokenizer("bpe", inline_casing=True)
PROMPTS = ("The owl saw the fo", "The owl ", "Über den Bä", "The owl — and", "saw  ")


def model(seed: int = 3, tokenizer: Tokenizer = TOKENIZER):
    shape = {"context_length": 32, "d_model": 32, "n_layers": 2, "n_heads": 2, "init_std": 0.3}
    return build_model(ModelConfig(vocab_size=tokenizer.vocab_size, **shape), seed=seed).eval().requires_grad_(False)


def generator(tokenizer: Tokenizer = TOKENIZER, **settings) -> Generator:
    config = SamplingConfig(**{"seed": 5, "max_tokens": 12, "temperature": 1.5, **settings})
    return Generator(model(tokenizer=tokenizer), tokenizer, config)


@pytest.mark.parametrize(
    ("tokenizer", "prompt"),
    [*((TOKENIZER, prompt) for prompt in PROMPTS), *((CASED, prompt) for prompt in ("THE OW", "The Fo", "saw TH"))],
)
def test_the_first_token_is_the_most_probable_that_starts_with_the_last_one_of_the_prompt(tokenizer, prompt):
    """With speculative decoding too; what is shown is what it adds, and the prompt's own token is no sample."""
    ours, ids = generator(tokenizer, temperature=0), encode_prompt(prompt, tokenizer)
    end = tokenizer.token_bytes(ids[-1])
    fit = [token for token in range(tokenizer.vocab_size) if tokenizer.token_bytes(token).startswith(end)]
    logits = ours.model(torch.tensor([ids[:-1]]))[0, -1]
    best = max(fit, key=lambda token: float(logits[token]))
    (sample,) = ours.samples(prompt)
    if best != ids[-1]:
        assert sample.tokens[0] == best
        whole = prompt + sample.text
        assert tokenizer.decode([*ids[:-1], *sample.tokens]) in (whole, whole + "\ufffd")
    else:
        (off,) = generator(tokenizer, temperature=0, token_healing=False).samples(prompt)
        assert (sample.tokens, sample.text) == (off.tokens, off.text)
    for draft in (PROMPT_LOOKUP, model(4, tokenizer)):
        (drafted,) = dataclasses.replace(ours, draft=draft).samples(prompt)
        assert (drafted.tokens, drafted.text) == (sample.tokens, sample.text)


def test_the_end_of_a_prompt_is_not_banned_for_repeating_it():
    settings = {"temperature": 0, "no_repeat_ngram_size": 1, "repetition_penalty": 9, "logit_bias": (".=-inf",)}
    (sample,) = generator(**settings).samples("The owl saw. The owl saw.")
    assert len(sample.tokens) == 12


@pytest.mark.parametrize("prompt", ["The owl ", "saw the fo"])
def test_a_bias_chooses_the_healed_token_and_only_its_text_beyond_the_prompt_is_shown(prompt):
    *before, last = encode_prompt(prompt, CASED)
    end, shown = CASED.token_bytes(last), set()
    for token in range(CASED.vocab_size):
        if CASED.token_bytes(token).startswith(end) and token != last:
            settings = {"max_tokens": 1, "temperature": 0, "logit_bias": (f"{token}=100",)}
            (sample,) = generator(CASED, **settings).samples(prompt)
            assert sample.tokens == [token]
            assert CASED.decode([*before, token]).rstrip("\ufffd") == prompt + sample.text
            shown.add(sample.text)
    assert shown


def test_only_the_text_of_a_prompt_is_healed():
    ids, off = encode_prompt("The owl ", TOKENIZER), generator(token_healing=False).samples("The owl ", n=3)
    assert generator().samples(ids, n=3) == off
    assert dataclasses.replace(generator(), follows_examples=True).samples("The owl ", n=3) == off
    assert generator().samples("The owl ", n=3) != off
    assert generator().samples("", n=3) == generator(token_healing=False).samples("", n=3)

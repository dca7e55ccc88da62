import itertools
import random

import numpy as np
import pytest
import torch

from lm.config.inference import SamplingConfig
from lm.config.model import ModelConfig
from lm.decoding.beam_search import beam_search
from lm.decoding.sampling import Sampler
from lm.engine import Output
from lm.model import DecoderOnly, build_model
from tests.lm.decoding.session_driver import session
from tests.lm.model import hugging_face
from tests.tolerances import approx

PROMPT = [3, 1, 4]


def make_model(vocab_size: int = 5, context: int = 32, seed: int = 0) -> DecoderOnly:
    config = ModelConfig(
        vocab_size=vocab_size, context_length=context, d_model=16, n_layers=2, n_heads=2, init_std=0.5,
        positions="learned", norm="layernorm", activation="gelu-tanh", bias=True,
    )  # fmt: skip
    model = build_model(config, seed=seed).eval()
    assert isinstance(model, DecoderOnly)
    return model


def search(model, *, max_tokens, **options):
    return beam_search(session(model), torch.tensor([PROMPT]), max_tokens=[max_tokens], **options)


def every_text(vocab_size, length, end):
    """All continuations: those that end at their first end token, and those of full length without one."""
    others = [token for token in range(vocab_size) if token != end]
    for size in range(length):
        for begin in itertools.product(others, repeat=size):
            yield (*begin, end)
    yield from itertools.product(others, repeat=length)


def test_hypotheses_equal_those_of_hugging_face():
    for seed in range(4):
        model = make_model(40, 32, seed)
        theirs = hugging_face.gpt2(model).generate(
            torch.tensor([PROMPT]), max_new_tokens=10, num_beams=5, num_return_sequences=5, do_sample=False,
            eos_token_id=None, pad_token_id=0, output_scores=True, return_dict_in_generate=True,
        )  # fmt: skip
        (found,) = search(model, beam_size=5, max_tokens=10, n=5)
        assert [one.tokens for one in found] == theirs.sequences[:, len(PROMPT) :].tolist()
        assert [one.score for one in found] == approx(theirs.sequences_scores.tolist(), model=model)


class Table:
    """A session of a model whose logits depend on the last token alone."""

    is_compiled = False

    def __init__(self, logits):
        self.logits, self.tokens = torch.as_tensor(logits), []

    def __len__(self):
        return len(self.tokens)

    def add(self, prompts, sources, output_spec):
        self.tokens = [[] for _ in prompts]
        return self.extend(torch.tensor(prompts), output_spec)

    def extend(self, tokens, output_spec):
        for row, new in zip(self.tokens, tokens.tolist(), strict=True):
            row.extend(new)
        return Output(self.logits[tokens[:, -1:]])

    def select(self, rows):
        self.tokens = [[*self.tokens[row]] for row in rows]


def score_by_hand(table, prompt, text, config, biases, length_penalty):
    """The score of a text by the definitions of the filters, in float64; None if it is ruled out.

    Filters see the text without the prompt.
    """
    total = 0.0
    for place, token in enumerate(text):
        generated = text[:place]
        logits = table[[*prompt, *generated][-1]].astype(np.float64)
        changed = logits.copy()
        for biased, bias in biases.items():
            changed[biased] += bias
        for occurred in set(generated):
            changed[occurred] *= config.repetition_penalty ** (1 if changed[occurred] < 0 else -1)
            changed[occurred] -= config.presence_penalty + config.frequency_penalty * generated.count(occurred)
        size = config.no_repeat_ngram_size
        if size and any(
            (*generated, token)[at : at + size] == (*generated, token)[-size:] for at in range(place + 1 - size)
        ):
            return None
        total += logits[token] - np.logaddexp.reduce(logits) + changed[token] - logits[token]
    return total / len(text) ** length_penalty


SMALL, LIMIT, END = 4, 4, 0


@pytest.mark.parametrize("refill", [False, True])
def test_filters_that_raise_scores_do_not_end_a_search_too_early(refill):
    """Random models of which every text is scored by hand; the beam has room for all of them."""
    every = list(every_text(SMALL, LIMIT, END))
    for seed in range(20):
        draw = random.Random(seed)
        table = np.random.default_rng(seed).normal(0, 2, (SMALL, SMALL)).astype(np.float32)
        biases = {draw.randrange(SMALL): draw.uniform(-2, 5)} if draw.random() < 0.5 else {}
        config = SamplingConfig(
            temperature=0, repetition_penalty=draw.choice([0.5, 1.0, 1.5]),
            presence_penalty=draw.choice([-2.0, 0.0, 1.0]), frequency_penalty=draw.choice([-1.0, 0.0, 1.0]),
            no_repeat_ngram_size=draw.choice([None, 2]),
        )  # fmt: skip
        penalty = draw.choice([0.0, 0.5, 1.0, 2.0])
        sampler, prompt, n = Sampler.from_config(config, biases), [draw.randrange(SMALL)], draw.choice([1, 2, 5])
        scores = {text: score_by_hand(table, prompt, text, config, biases, penalty) for text in every}
        expected = sorted((score for score in scores.values() if score is not None), reverse=True)[:n]
        (found,) = beam_search(
            Table(table), torch.tensor([prompt]), beam_size=len(every), max_tokens=[LIMIT], stop_ids=[END],
            length_penalty=penalty, n=n, refill=refill, sampler=sampler,
        )  # fmt: skip
        # Each of up to 4 tokens has a few roundings in float32, of numbers below 32.
        near = 4 * LIMIT * 32 * torch.finfo(torch.float32).eps
        assert [one.score for one in found] == pytest.approx(expected, abs=near), seed
        assert [scores[tuple(one.tokens)] for one in found] == pytest.approx(expected, abs=near), seed

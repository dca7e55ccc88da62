"""Concurrent samples are those of one at a time, and texts end before the first stop string."""

import random
from collections.abc import Iterable

import pytest
import torch

from lm.config.inference import SamplingConfig
from lm.config.model import ModelConfig
from lm.decoding.batching import Finish, Sample, TextStream, Token, decode
from lm.decoding.sampling import Sampler
from lm.model import DecoderOnly, build_model
from tests.cli.small_runs import make_tokenizer
from tests.lm.decoding.session_driver import session
from tests.lm.model import hugging_face
from tests.tolerances import assert_close

BYTES = make_tokenizer("byte")
PROMPT = [3, 14, 15, 9, 2, 6]


def make_model(context: int = 64, **fields) -> DecoderOnly:
    shape = {"positions": "learned", "norm": "layernorm", "activation": "gelu-tanh", "bias": True, **fields}
    config = ModelConfig(vocab_size=60, context_length=context, d_model=32, n_layers=2, n_heads=4, **shape)
    model = build_model(config, seed=2).eval()
    assert isinstance(model, DecoderOnly)
    hugging_face.randomise(model)
    return model


def make_sample(number: int, sampler: Sampler, max_tokens: int = 20, prompt=PROMPT, **options) -> Sample:
    return Sample(prompt, sampler, sampler.rng(number), max_tokens, number, **options)


def collected(events) -> tuple[dict, dict, dict]:
    """Tokens, log-probabilities and finish reasons by row."""
    tokens, logprobs, reasons = {}, {}, {}
    for event in events:
        if isinstance(event, Token):
            assert event.row not in reasons
            tokens.setdefault(event.row, []).append(event.id)
            logprobs.setdefault(event.row, []).append(event.logprob)
        else:
            assert isinstance(event, Finish)
            reasons[event.row] = event.reason
    return tokens, logprobs, reasons


def test_greedy_generation_with_penalties_agrees_with_hugging_face():
    model = make_model()
    sampler = Sampler.from_config(
        SamplingConfig(temperature=0, repetition_penalty=1.3, no_repeat_ngram_size=3), {7: -4.0}
    )
    theirs = hugging_face.gpt2(model).generate(
        torch.tensor([PROMPT]), max_new_tokens=40, do_sample=False, repetition_penalty=1.3, no_repeat_ngram_size=3,
        sequence_bias={(7,): -4.0}, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    found, *_ = collected(decode(session(model), [make_sample(0, sampler, max_tokens=40)], batch_size=1))
    assert found[0] == theirs[0, len(PROMPT) :].tolist()


STOPS = {1, 2, 5}
SETTINGS = {
    "greedy": {"temperature": 0},
    "drawn": {"temperature": 1.0, "seed": 4},
    "everything": {
        "temperature": 0.9, "top_k": 30, "top_p": 0.95, "min_p": 0.001, "typical_p": 0.98, "repetition_penalty": 1.3,
        "presence_penalty": 0.3, "frequency_penalty": 0.2, "no_repeat_ngram_size": 2, "seed": 9,
    },
}  # fmt: skip

KINDS = {
    "learned": {},
    "rotary": {"positions": "rotary", "n_kv_heads": 2},
    "window": {"attention": "window", "attention_window": 4},
}


def make_samples(n: int, sampler: Sampler, stop_ids: Iterable[int] = ()) -> list[Sample]:
    chance = random.Random(n)
    prompts = [[chance.randrange(60) for _ in range(chance.randint(1, 24))] for _ in range(n)]
    lengths = [chance.randint(1, 20) for _ in range(n)]
    return [
        make_sample(number, sampler, lengths[number], prompt, stop_ids=stop_ids)
        for number, prompt in enumerate(prompts)
    ]


def alone(model, sample: Sample):
    """What follows a prompt that is by itself, all read again each time."""
    return collected(decode(session(model, cached=False), [sample], batch_size=1))


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_continuations_do_not_depend_on_the_batch(settings, kind):
    """Of samplers of two kinds, so that rows are sampled apart."""
    model, sampler = make_model(context=32, **KINDS[kind]), Sampler.from_config(SamplingConfig(**SETTINGS[settings]))

    def asked() -> list[Sample]:
        samples = make_samples(14, sampler, STOPS)
        samples[3].sampler = samples[8].sampler = Sampler(seed=5)
        return samples

    found = collected(decode(session(model), asked(), batch_size=5))
    for number, sample in enumerate(asked()):
        expected = alone(model, sample)
        assert found[0][number] == expected[0][number]
        assert found[2][number] == expected[2][number]
        assert_close(torch.tensor(found[1][number]), torch.tensor(expected[1][number]), model=model)
    assert settings != "drawn" or set(found[2].values()) == {"length", "end_of_text"}


class Pieces(list):
    """A stream whose token i is the i-th piece of a text."""

    feed = list.__getitem__
    finish = list.pop


def test_a_character_that_is_cut_is_not_shown():
    stream = TextStream(BYTES.decode_stream(()))
    assert "".join(map(stream.feed, BYTES.encode("née")[:2])) + stream.finish() == "n"


def test_the_same_text_however_it_is_cut_and_no_part_of_a_stop_string_before_it_is_certain():
    for number in range(2000):
        chance = random.Random(number)
        text = "".join(chance.choices("ab\n", k=chance.randint(0, 12)))
        stops = ["".join(chance.choices("ab\n", k=chance.randint(1, 4))) for _ in range(chance.randint(1, 3))]
        cuts = sorted(chance.choices(range(len(text) + 1), k=4))
        pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        ends = (end for end in range(len(text) + 1) if text[:end].endswith(tuple(stops)))
        end = next(ends, None)  # the first; of stops that end there the longest
        longest = max((len(stop) for stop in stops if end is not None and text[:end].endswith(stop)), default=0)
        expected = text if end is None else text[: end - longest]
        stream, seen = TextStream(Pieces(pieces), stops), ""
        for index in range(4):
            seen += stream.feed(index)
            assert expected.startswith(seen)
            assert stream.stopped or sum(map(len, pieces[: index + 1])) - len(seen) < max(map(len, stops))
        assert (seen + stream.finish(), stream.stopped) == (expected, end is not None), (pieces, stops)

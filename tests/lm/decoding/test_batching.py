"""Concurrent samples are those of one at a time, and texts end before the first stop string."""

import random
import re
from collections.abc import Iterable

import pytest
import torch

from lm.config.decoding import SamplingConfig
from lm.config.model import ModelConfig
from lm.decoding.batching import Batch, Finish, Sample, TextStream, Token, decode
from lm.decoding.sampling import Sampler
from lm.decoding.session import DecodeSession
from lm.engine.kv_cache import PrefixCache
from lm.engine.selection import plan_engines
from lm.model.transformer import DecoderOnly, build_model
from tests.lm.decoding.session_driver import session
from tests.lm.model import hugging_face
from tests.tolerances import assert_close

GREEDY = Sampler.from_config(SamplingConfig(temperature=0))
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


def collect(model, sampler, *, n=1, first=0, cached=True, **options):
    """What is collected of samples of one prompt."""
    samples = [make_sample(first + place, sampler, **options) for place in range(n)]
    return collected(decode(session(model, cached=cached), samples, batch_size=n))


def teacher_forced(model, tokens, prompt=PROMPT):
    """Logits that predict each of the tokens, all read at once in float64."""
    with torch.no_grad():
        logits = model.double()(torch.tensor([prompt + tokens]))[0]
    model.float()
    return logits[len(prompt) - 1 : -1]


def test_sampled_log_probabilities_are_the_unfiltered_models():
    model = make_model()
    tokens, logprobs, _ = collect(model, Sampler.from_config(SamplingConfig(temperature=0.5, top_k=5, seed=1)), n=3)
    for row in range(3):
        expected = teacher_forced(model, tokens[row]).log_softmax(-1).gather(-1, torch.tensor(tokens[row])[:, None])
        assert_close(torch.tensor(logprobs[row]), expected.squeeze(-1), model=model)


class Spelling:
    """A stream that spells token i as the i-th of a few letters."""

    def feed(self, index):
        return "abcdefg"[index % 7]

    def finish(self):
        return ""


def test_samples_end_before_a_stop_string_without_changing_the_others():
    model, sampler = make_model(context=16), Sampler.from_config(SamplingConfig(temperature=1.0, seed=3))
    free, _, _ = collect(model, sampler, n=8, max_tokens=30)
    assert len({tuple(tokens) for tokens in free.values()}) == 8
    samples = [make_sample(row, sampler, 30, text=TextStream(Spelling(), ("ab", "ccd"))) for row in range(8)]
    events = list(decode(session(model), samples, batch_size=8))
    tokens, _, reasons = collected(events)
    assert set(reasons.values()) == {"length", "stop"}
    for row in range(8):
        spelled, seen = "".join(map(Spelling().feed, free[row])), "".join(e.text for e in events if e.row == row)
        found = re.search("ab|ccd", spelled)
        assert seen == (spelled[: found.start()] if found else spelled)
        assert tokens[row] == (free[row][: found.end()] if found else free[row])
        assert reasons[row] == ("stop" if found else "length")


def test_greedy_generation_with_penalties_agrees_with_hugging_face():
    model = make_model()
    sampler = Sampler.from_config(
        SamplingConfig(temperature=0, repetition_penalty=1.3, no_repeat_ngram_size=3), {(7,): -4.0}
    )
    theirs = hugging_face.gpt2(model).generate(
        torch.tensor([PROMPT]), max_new_tokens=40, do_sample=False, repetition_penalty=1.3, no_repeat_ngram_size=3,
        sequence_bias={(7,): -4.0}, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    assert collect(model, sampler, max_tokens=40)[0][0] == theirs[0, len(PROMPT) :].tolist()


STOPS = {1, 2, 5}
SETTINGS = {
    "greedy": {"temperature": 0},
    "drawn": {"temperature": 1.0, "seed": 4},
    "everything": {
        "temperature": 0.9, "top_k": 30, "top_p": 0.95, "min_p": 0.001, "typical_p": 0.98, "repetition_penalty": 1.3,
        "presence_penalty": 0.3, "frequency_penalty": 0.2, "no_repeat_ngram_size": 2, "seed": 9,
    },
    "greedy with penalties": {"temperature": 0, "repetition_penalty": 1.4, "no_repeat_ngram_size": 3},
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


def test_cancelled_samples_leave_and_new_ones_join_without_changing_the_others():
    model, sampler = make_model(context=32), Sampler.from_config(SamplingConfig(temperature=1.0, seed=4))

    def asked() -> list[Sample]:
        return [make_sample(sample.number, sampler, 12, sample.prompt) for sample in make_samples(6, sampler)]

    batch, events, samples = Batch(session(model)), [], asked()
    batch.admit(samples[:4])
    for step in range(20):
        if not len(batch):
            break
        events += batch.sample()
        batch.extend()
        if step == 0:
            batch.cancel([7, 0, 2])
            assert len(batch) == 2
        if step == 1:
            batch.admit(samples[4:])
        if step == 5:
            batch.cancel([5])
    tokens, logprobs, reasons = collected(events)
    assert tokens.keys() - reasons.keys() == {0, 2, 5}
    for number, sample in enumerate(asked()):
        expected, length = alone(model, sample), len(tokens[number])
        assert tokens[number] == expected[0][number][:length]
        assert_close(torch.tensor(logprobs[number]), torch.tensor(expected[1][number][:length]), model=model)
    batch.admit(asked()[:1])
    assert [event.id for event in batch.sample()] == tokens[0][:1]


def test_rows_start_with_a_prefix_that_was_computed_before():
    """In parts, and from what it has in common with another; the least recently used ones are dropped."""
    model, prompt, rest = make_model(context=64), list(range(40)), [30, 31]
    prefixes, read = PrefixCache(model), []
    assert [prefixes.extend(prompt, 25), prefixes.extend(prompt)] == [(0, 25), (25, 15)]
    model.decoder.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0].shape[1]))
    steps = DecodeSession(plan_engines(model), prefixes=prefixes)
    found = steps.add([[*prompt, *rest], rest])
    assert sorted(read) == [2, 2]
    assert_close(found.last_logits, session(model).add([[*prompt, *rest], rest]).last_logits, model=model)
    assert prefixes.extend([*prompt[:35], *rest]) == (35, 2)
    assert prefixes.extend([*prompt[:20], *rest]) == (0, 22)
    for first in range(5):
        assert prefixes.extend([first] * 60) == (0, 60)
    assert prefixes.extend(prompt) == (0, 40)


class Pieces:
    """A stream whose token i is the i-th piece of a text."""

    def __init__(self, pieces, rest=""):
        self.pieces, self.rest = pieces, rest

    def feed(self, index):
        return self.pieces[index]

    def finish(self):
        return self.rest


def shown(pieces, stops, rest=""):
    """What a reader sees after each token, and whether a stop string was found."""
    text = TextStream(Pieces(pieces, rest), stops)
    parts = []
    for index in range(len(pieces)):
        if not text.stopped:
            parts.append(text.feed(index))
    parts.append(text.finish())
    return parts, text.stopped


def cut_by_hand(text, stops):
    """Reads one character after another until the text ends with a stop string; takes the longest such."""
    for end in range(len(text) + 1):
        if ending := [stop for stop in stops if text[:end].endswith(stop)]:
            return text[: end - len(max(ending, key=len))], True
    return text, False


def test_the_same_text_however_it_is_cut_and_no_part_of_a_stop_string_before_it_is_certain():
    for number in range(2000):
        chance = random.Random(number)
        text = "".join(chance.choices("ab\n", k=chance.randint(0, 12)))
        stops = ["".join(chance.choices("ab\n", k=chance.randint(1, 4))) for _ in range(chance.randint(1, 3))]
        cuts = sorted(chance.choices(range(len(text) + 1), k=4))
        pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        expected, stopped = cut_by_hand(text, stops)
        parts, found = shown(pieces[:-1], stops, rest=pieces[-1])
        assert ("".join(parts), found) == (expected, stopped), (pieces, stops)
        for count in range(len(pieces)):
            seen, read = "".join(parts[:count]), "".join(pieces[:count])
            assert expected.startswith(seen)
            for stop in stops:  # what may be the beginning of a stop string is held back, and no more
                assert not any(seen.endswith(stop[:size]) and read == seen for size in range(1, len(stop)))
            assert len(read) - len(seen) < max(map(len, stops)) or found

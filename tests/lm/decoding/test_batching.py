"""Concurrent samples are those of one at a time, and texts end before the first stop string."""

import gc
import random
import re
import weakref

import pytest
import torch

from lm.config.decoding import SamplingConfig
from lm.config.model import ModelConfig
from lm.decoding.batching import (
    ContinuousBatch,
    Finish,
    Request,
    SampleSpec,
    StopStringStream,
    Token,
    generate,
    generate_with_continuous_batching,
)
from lm.decoding.sampling import Sampler
from lm.engine.pytorch import SharedPrefix
from lm.model.transformer import DecoderOnly, build_model
from tests.lm.decoding.session_driver import SessionDriver, session
from tests.lm.model import hugging_face
from tests.tolerances import assert_close, rounding_error

GREEDY = Sampler.from_config(SamplingConfig(temperature=0))
PROMPT = [3, 14, 15, 9, 2, 6]


def make_model(context: int = 64, **fields) -> DecoderOnly:
    shape = {"positions": "learned", "norm": "layernorm", "activation": "gelu-tanh", "bias": True, **fields}
    config = ModelConfig(vocab_size=60, context_length=context, d_model=32, n_layers=2, n_heads=4, **shape)
    model = build_model(config, seed=2).eval()
    assert isinstance(model, DecoderOnly)
    hugging_face.randomise(model)
    return model


def events_of(model, sampler, *, cached=True, prompt=PROMPT, n=1, first=0, max_tokens=20, texts=None, **options):
    """The events of `n` samples of one prompt."""
    rows = [SampleSpec(first + place, max_tokens, texts[place] if texts else None) for place in range(n)]
    return generate(session(model, cached=cached), torch.tensor([prompt]), rows, sampler, **options)


def test_a_session_is_freed_with_its_last_reference():
    """So the next one can have its memory before garbage is collected."""
    gc.disable()
    try:
        opened = session(make_model())
        held = weakref.ref(opened)
        list(generate(opened, torch.tensor([PROMPT]), [SampleSpec(0, 3)], GREEDY))
        del opened
        assert held() is None
    finally:
        gc.enable()


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


def collect(model, sampler, **options):
    return collected(events_of(model, sampler, **options))


def teacher_forced(model, tokens, prompt=PROMPT):
    """Logits that predict each of the tokens, all read at once in float64."""
    with torch.no_grad():
        logits = model.double()(torch.tensor([prompt + tokens]))[0]
    model.float()
    return logits[len(prompt) - 1 : -1]


def test_greedy_tokens_and_log_probabilities_are_those_of_teacher_forcing():
    model = make_model()
    tokens, logprobs, reasons = collect(model, GREEDY)
    logits = teacher_forced(model, tokens[0])
    assert tokens[0] == logits.argmax(-1).tolist()
    expected = logits.log_softmax(-1).gather(-1, torch.tensor(tokens[0])[:, None]).squeeze(-1)
    assert_close(torch.tensor(logprobs[0]), expected, model=model, scale=logits)
    assert reasons == {0: "length"}


def test_sampled_log_probabilities_are_the_unfiltered_models():
    model = make_model()
    tokens, logprobs, _ = collect(model, Sampler.from_config(SamplingConfig(temperature=0.5, top_k=5, seed=1)), n=3)
    for row in range(3):
        expected = teacher_forced(model, tokens[row]).log_softmax(-1).gather(-1, torch.tensor(tokens[row])[:, None])
        assert_close(torch.tensor(logprobs[row]), expected.squeeze(-1), model=model)


def test_greedy_generation_agrees_with_hugging_face():
    model = make_model()
    tokens, logprobs, _ = collect(model, GREEDY, max_tokens=40)
    theirs = hugging_face.gpt2(model).generate(
        torch.tensor([PROMPT]), max_new_tokens=40, do_sample=False, output_logits=True, return_dict_in_generate=True,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    assert tokens[0] == theirs.sequences[0, len(PROMPT) :].tolist()
    expected = torch.cat(theirs.logits).log_softmax(-1).max(-1).values
    assert_close(torch.tensor(logprobs[0]), expected, model=model)


@pytest.mark.parametrize("context", [8, 64])
@pytest.mark.parametrize("fields", [{}, {"positions": "rotary", "n_kv_heads": 2}], ids=str)
def test_cached_greedy_tokens_equal_uncached_ones_except_for_ties(context, fields):
    model = make_model(context, **fields)
    for start in range(4):
        prompt = [start, start + 1, start + 2]
        cached, _, _ = collect(model, GREEDY, prompt=prompt, max_tokens=50)
        uncached, _, _ = collect(model, GREEDY, prompt=prompt, max_tokens=50, cached=False)
        for index, (ours, reference) in enumerate(zip(cached[0], uncached[0], strict=True)):
            if ours != reference:
                logits = SessionDriver(model, cached=False).feed(torch.tensor([prompt + uncached[0][:index]]))
                best, second = logits[0, -1].topk(2).values.tolist()
                assert best - second <= 2 * rounding_error(logits, model=model)
                break


def test_samples_do_not_depend_on_the_batch():
    model, sampler = make_model(), Sampler.from_config(SamplingConfig(temperature=1.0, seed=7))
    together, _, _ = collect(model, sampler, n=6)
    for row in range(6):
        alone, _, _ = collect(model, sampler, n=1, first=row)
        assert alone == {row: together[row]}
    assert len({tuple(sample) for sample in together.values()}) == 6
    assert collect(model, sampler, n=6)[0] == together


class Spelling:
    """A stream that spells token i as the i-th of a few letters."""

    def feed(self, index):
        return "abcdefg"[index % 7]

    def finish(self):
        return ""


def until(*stops):
    return StopStringStream(Spelling(), stops)


def test_samples_end_before_a_stop_string_without_changing_the_others():
    model, sampler = make_model(context=16), Sampler.from_config(SamplingConfig(temperature=1.0, seed=3))
    free, _, _ = collect(model, sampler, n=8, max_tokens=30)
    spelled = {row: "".join(map(Spelling().feed, tokens)) for row, tokens in free.items()}
    texts, seen = [until("ab", "ccd") for _ in range(8)], dict.fromkeys(range(8), "")
    tokens, reasons = {row: [] for row in range(8)}, {}
    for event in events_of(model, sampler, max_tokens=30, n=8, texts=texts):
        seen[event.row] += event.text
        if isinstance(event, Token):
            tokens[event.row].append(event.id)
        else:
            reasons[event.row] = event.reason
    assert set(reasons.values()) == {"length", "stop"}
    for row in range(8):
        found = re.search("ab|ccd", spelled[row])
        assert seen[row] == (spelled[row][: found.start()] if found else spelled[row])
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


def make_requests(n: int, *, longest: int = 24, most: int = 20) -> list[Request]:
    chance = random.Random(n)
    prompts = [[chance.randrange(60) for _ in range(chance.randint(1, longest))] for _ in range(n)]
    return [Request(prompt, SampleSpec(number, chance.randint(1, most))) for number, prompt in enumerate(prompts)]


def alone(model, request: Request, sampler: Sampler):
    """What follows a prompt that is by itself, all read again each time."""
    steps = session(model, cached=False)
    return collected(generate(steps, torch.tensor([request.prompt]), [request.spec], sampler, stop_ids=STOPS))


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_continuations_do_not_depend_on_the_batch(settings, kind):
    model, sampler = make_model(context=32, **KINDS[kind]), Sampler.from_config(SamplingConfig(**SETTINGS[settings]))
    asked = make_requests(14)
    found = collected(generate_with_continuous_batching(session(model), asked, sampler, batch_size=5, stop_ids=STOPS))
    for request in asked:
        expected = alone(model, request, sampler)
        number = request.spec.number
        assert found[0][number] == expected[0][number]
        assert found[2][number] == expected[2][number]
        assert_close(torch.tensor(found[1][number]), torch.tensor(expected[1][number]), model=model)
    assert settings != "drawn" or set(found[2].values()) == {"length", "end_of_text"}


def test_cancelled_samples_leave_and_new_ones_join_without_changing_the_others():
    model, sampler = make_model(context=32), Sampler.from_config(SamplingConfig(temperature=1.0, seed=4))
    asked = [Request(request.prompt, SampleSpec(number, 12)) for number, request in enumerate(make_requests(6))]
    batch = ContinuousBatch(session(model), sampler, stop_ids=(), alternatives=0)
    events = []

    def step() -> None:
        events.extend(batch.sample())
        batch.extend()

    batch.admit(asked[:4])
    step()
    batch.cancel([7, 8])
    assert len(batch) == 4
    batch.cancel([0, 2])
    assert len(batch) == 2
    step()
    batch.admit(asked[4:])
    while len(batch):
        step()
        if len(events) > 25:
            batch.cancel([5])
    tokens, logprobs, reasons = collected(events)
    assert {number: len(each) for number, each in tokens.items() if number not in reasons}.keys() == {0, 2, 5}
    for request in asked:
        expected = collected(
            generate(session(model, cached=False), torch.tensor([request.prompt]), [request.spec], sampler)
        )
        number, length = request.spec.number, len(tokens[request.spec.number])
        assert tokens[number] == expected[0][number][:length]
        assert_close(torch.tensor(logprobs[number]), torch.tensor(expected[1][number][:length]), model=model)
    batch.admit([])
    batch.admit(asked[:1])
    batch.cancel([0])
    assert not len(batch)
    batch.admit(asked[:1])
    assert [event.id for event in batch.sample()] == tokens[0][:1]


def test_rows_start_with_a_prefix_that_was_computed_before():
    model, prompt, rest = make_model(context=32), list(range(9)), [30, 31]
    prefix = SharedPrefix(model)
    for part in (prompt[:4], prompt[4:]):
        prefix.extend(part)
    steps, plain, read = session(model), session(model), []
    steps.share_prefix(prefix)
    model.decoder.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0].shape[1]))
    found = steps.add([[*prompt, *rest], rest])
    assert sorted(read) == [2, 2]
    assert_close(found.last_logits, plain.add([[*prompt, *rest], rest]).last_logits, model=model)
    steps.share_prefix(None)
    steps.add([[*prompt, *rest]])
    assert read[-1] == 11


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
    text = StopStringStream(Pieces(pieces, rest), stops)
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

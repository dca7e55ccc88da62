import dataclasses

import pytest
import torch

from lm.config.decoding import SamplingConfig
from lm.config.model import ModelConfig
from lm.decoding.batching import Token
from lm.decoding.beam_search import beam_search
from lm.decoding.candidates import top_k_tokens
from lm.decoding.generator import Generator, encode_continuation, encode_prompt
from lm.model.transformer import DecoderOnly, build_model
from lm.text.prompts import Prompt
from lm.tokenizer.chat_template import END_OF_TURN
from tests.cli.small_runs import make_tokenizer
from tests.lm.decoding.session_driver import session
from tests.tolerances import approx, assert_close

PROMPT = "The owl"


def generator(kind="bpe", *, tokenizer=None, use_cache=True, batch_size=16, **settings) -> Generator:
    tokenizer = tokenizer or make_tokenizer(kind)
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, context_length=32, d_model=32, n_layers=2, n_heads=2, init_std=0.3
    )
    model = build_model(config, seed=3).eval()
    assert isinstance(model, DecoderOnly)
    settings = {"seed": 5, "max_tokens": 20, "temperature": 1.5, "token_healing": False, **settings}
    return Generator(model, tokenizer, SamplingConfig(**settings), use_cache=use_cache, batch_size=batch_size)


def test_a_sample_is_the_same_whatever_the_batch_the_cache_and_the_first_one():
    reference = generator().samples(PROMPT, n=5)
    assert len({tuple(sample.tokens) for sample in reference}) == 5
    for other in (generator(batch_size=2), generator(batch_size=1), generator(use_cache=False)):
        assert [sample.tokens for sample in other.samples(PROMPT, n=5)] == [sample.tokens for sample in reference]
    events = generator(batch_size=2).generate(PROMPT, first=3, n=2)
    drawn = {3: [], 4: []}
    for event in events:
        if isinstance(event, Token):
            drawn[event.row].append(event.id)
    assert drawn == {number: reference[number].tokens for number in (3, 4)}


@pytest.mark.parametrize("kind", ["bpe", "byte", "char"])
def test_the_text_is_that_of_the_tokens_up_to_a_stop_string(kind):
    for sample in generator(kind).samples(PROMPT, n=10):
        assert sample.text == make_tokenizer(kind).decode(sample.tokens)
    stopped = generator(kind, stop=("o",), max_tokens=100).samples(PROMPT, n=10)
    assert {sample.finish_reason for sample in stopped} >= {"stop"}
    for sample in stopped:
        whole = make_tokenizer(kind).decode(sample.tokens)
        assert sample.text == (whole[: whole.index("o")] if sample.finish_reason == "stop" else whole)


def test_a_search_is_that_of_the_ids():
    ours = generator()
    (expected,) = beam_search(
        session(ours.model), torch.tensor([encode_prompt(ours.tokenizer, PROMPT)]), beam_size=4, max_tokens=20,
        stop_ids=[ours.tokenizer.end_of_text], length_penalty=0.5, n=3,
    )  # fmt: skip
    found = ours.search(PROMPT, beam_size=4, length_penalty=0.5, n=3)
    assert [tuple(one.tokens) for one in found] == [one.tokens for one in expected]
    assert [one.score for one in found] == [one.score for one in expected]
    assert [one.text for one in found] == [ours.tokenizer.decode(one.tokens) for one in expected]
    assert [one.finish_reason for one in found] == [one.finish_reason for one in expected]


TEXTS = ["The owl", "", "The owl saw the fox by the mill. " * 3, "The fox", "Über den Bäumen", "The owl"]


def asked(texts=TEXTS, **fields):
    return [
        Prompt(number, text, f"file: line {number + 1}", repeat=texts[:number].count(text), **fields)
        for number, text in enumerate(texts)
    ]


@pytest.mark.parametrize("settings", [{}, {"stop": ("e ", "a")}, {"temperature": 0}], ids=str)
def test_many_prompts_have_the_texts_that_each_has_alone(settings):
    ours = generator(batch_size=4, **settings)
    found = {prompt.number: samples for prompt, samples in ours.continue_prompts(asked(), n=2, alternatives=2)}
    for number, text in enumerate(TEXTS[:-1]):
        for sample, alone in zip(found[number], ours.samples(text, n=2, alternatives=2), strict=True):
            assert (sample.text, sample.tokens, sample.finish_reason) == (alone.text, alone.tokens, alone.finish_reason)
            assert sample.logprobs == approx(alone.logprobs, model=ours.model)
            assert len(sample.alternatives) == len(sample.tokens)
    assert TEXTS[-1] == TEXTS[0]
    assert (found[len(TEXTS) - 1][0].tokens == found[0][0].tokens) == (ours.config.temperature == 0)


def likely_to_end(**settings) -> Generator:
    """A generator whose samples end early, unless that is forbidden."""
    ours = generator(**{"max_tokens": 12, **settings})
    return dataclasses.replace(ours, config=ours.config.replace(logit_bias=(f"{ours.tokenizer.end_of_text}=7",)))


def outputs(ours: Generator, way: str, texts=("The owl", "saw", "fox ran")) -> list:
    """Continuations of a few prompts, in one of the ways to generate them."""
    if way == "beam":
        return [ours.search(text, beam_size=3, n=3) for text in texts]
    if way == "prompts":
        prompts = [Prompt(number, text, f"line {number}") for number, text in enumerate(texts)]
        return [samples for _, samples in ours.continue_prompts(prompts, n=4)]
    return [ours.samples(text, n=4) for text in texts]


WAYS = ("one", "prompts", "speculative", "beam")


@pytest.mark.parametrize("way", WAYS)
def test_no_sample_ends_with_fewer_than_min_tokens(way):
    settings, draft = {"token_healing": True, "batch_size": 3}, "prompt" if way == "speculative" else None
    early = outputs(dataclasses.replace(likely_to_end(**settings), draft=draft), way)
    late = outputs(dataclasses.replace(likely_to_end(**settings, min_tokens=6), draft=draft), way)
    end = generator().tokenizer.end_of_text
    if way != "beam":  # which biases don't change
        assert min(len(sample.tokens) for samples in early for sample in samples) < 6
    for samples in late:
        assert samples
        for sample in samples:
            assert len(sample.tokens) >= 6
            assert end not in sample.tokens[:5]
            assert (sample.tokens[-1] == end) == (sample.finish_reason == "end_of_text")


@pytest.mark.parametrize("way", WAYS)
def test_prompt_and_text_are_the_text_of_all_tokens(elsewhere, way):
    """Decoders of many tokenizers remove the space before the first token, which is that of the prompt."""
    prompt, ids = "the cat", elsewhere.encode("the cat sat")
    prompt_ids = encode_prompt(elsewhere, prompt)
    bias = f"{ids[len(elsewhere.encode(prompt))]}=30"
    ours = generator(tokenizer=elsewhere, logit_bias=(bias,))
    ours = dataclasses.replace(ours, draft="prompt" if way == "speculative" else None)
    for sample in (sample for each in outputs(ours, way, [prompt]) for sample in each):
        text = sample.text
        assert prompt + text == elsewhere.decode([*prompt_ids, *sample.tokens])
        ours.interrupt(sample, prompt_ids)
        assert sample.text == text
    if way != "beam":  # which biases don't change
        assert text.startswith(" ")
        stopped = dataclasses.replace(ours, config=ours.config.replace(stop=(" ",)))
        ((sample, *_),) = outputs(stopped, way, [prompt])
        assert (sample.text, sample.finish_reason) == ("", "stop")


def test_a_completion_is_decoded_as_it_was_encoded(elsewhere):
    """Prompts and completions of examples are separate texts."""
    ours = dataclasses.replace(generator(tokenizer=elsewhere), follows_examples=True)
    for sample in ours.samples("the cat", n=4):
        assert sample.text == elsewhere.decode(sample.tokens)


def test_with_a_chat_template_a_sample_ends_at_the_end_of_turn_unless_it_is_ignored():
    tokenizer = make_tokenizer("bpe").with_chat_template()
    end = tokenizer.added_tokens[END_OF_TURN]
    ours = generator(tokenizer=tokenizer, max_tokens=12, logit_bias=(f"{end}=7",))
    samples = ours.samples(PROMPT, n=4)
    assert any(sample.tokens[-1] == end for sample in samples)
    for sample in samples:
        assert end not in sample.tokens[:-1]
        assert (sample.finish_reason == "end_of_text") == (sample.tokens[-1] in (end, tokenizer.end_of_text))
    ignoring = dataclasses.replace(ours, config=ours.config.replace(ignore_eos=True))
    assert all(len(sample.tokens) == 12 for sample in ignoring.samples(PROMPT, n=4))


@pytest.mark.parametrize("tokenizer", [make_tokenizer("bpe"), make_tokenizer("char")])
def test_a_text_is_added_to_a_context_or_starts_a_document(tokenizer):
    text, end = tokenizer.encode("owl"), tokenizer.end_of_text
    start = [] if tokenizer.start_of_text is None else [tokenizer.start_of_text]
    assert encode_prompt(tokenizer, "owl") == [*start, *text]
    assert encode_continuation(tokenizer, [5], "owl") == [5, *text]
    assert encode_continuation(tokenizer, [5, end], "owl") == [5, end, *(id_ for id_ in start if id_ != end), *text]


def random_logits(rows: int, size: int, values: int) -> torch.Tensor:
    """Of so many different values, so that some may be equal."""
    generator = torch.Generator().manual_seed(size)
    return torch.randint(values, (rows, size), generator=generator) * (10.0 / values)


@pytest.mark.parametrize("size", [7, 64, 2000, 64 * 40, 64 * 40 + 17])
@pytest.mark.parametrize("values", [3, 1000, 10**9], ids=["many equal", "some equal", "none equal"])
def test_top_k_equals_a_stable_sort(size, values):
    logits = random_logits(70, size, values)
    found, expected = top_k_tokens(logits, logits, 5), logits.sort(stable=True, descending=True).indices[:, :5]
    assert found.indices.tolist() == expected.tolist()
    assert_close(found.logprobs, logits.log_softmax(-1).gather(1, expected), terms=size, scale=logits)

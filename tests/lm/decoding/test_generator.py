import dataclasses

import pytest

from lm.config.inference import SamplingConfig
from lm.config.model import ModelConfig
from lm.corpus.encode import encode_prompt
from lm.decoding.generator import Generator
from lm.model import DecoderOnly, build_model
from lm.text.text_file import Prompt
from tests.cli.small_runs import make_tokenizer
from tests.tolerances import approx

PROMPT = "The owl"


def generator(kind="bpe", *, tokenizer=None, batch_size=16, draft=None, **settings) -> Generator:
    tokenizer = tokenizer or make_tokenizer(kind)
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, context_length=32, d_model=32, n_layers=2, n_heads=2, init_std=0.3
    )
    model = build_model(config, seed=3).eval()
    assert isinstance(model, DecoderOnly)
    settings = {"seed": 5, "max_tokens": 20, "temperature": 1.5, "token_healing": False, **settings}
    return Generator(model, tokenizer, SamplingConfig(**settings), batch_size=batch_size, draft=draft)


def is_but_for_a_cut(text: str, whole: str, *, most: int = 1) -> bool:
    """Whether a text is the whole, but for a character that is cut off at its end, or several bytes that are none."""
    return whole in [text + "\ufffd" * count for count in range(most + 1)]


@pytest.mark.parametrize("kind", ["bpe", "byte", "char"])
def test_the_text_is_that_of_the_tokens_up_to_a_stop_string(kind):
    for sample in generator(kind).samples(PROMPT, n=4):
        assert is_but_for_a_cut(sample.text, make_tokenizer(kind).decode(sample.tokens))
    stopped = generator(kind, stop=("o",), max_tokens=40).samples(PROMPT, n=8)
    assert {sample.finish_reason for sample in stopped} >= {"stop"}
    for sample in stopped:
        whole = make_tokenizer(kind).decode(sample.tokens)
        expected = whole[: whole.index("o")] if sample.finish_reason == "stop" else whole
        assert is_but_for_a_cut(sample.text, expected)


TEXTS = ["The owl", "", "The owl saw the fox by the mill. " * 3, "The fox", "Über den Bäumen", "The owl"]


@pytest.mark.parametrize("settings", [{}, {"stop": ("e ", "a"), "token_healing": True}, {"temperature": 0}], ids=str)
def test_many_prompts_have_the_texts_that_each_has_alone(settings):
    ours = generator(batch_size=4, **settings)
    prompts = [
        Prompt(number, text, f"file: line {number + 1}", repeat=TEXTS[:number].count(text))
        for number, text in enumerate(TEXTS)
    ]
    found = {prompt.number: samples for prompt, samples in ours.continue_prompts(prompts, n=2, alternatives=2)}
    for number, text in enumerate(TEXTS[:-1]):
        for sample, alone in zip(found[number], ours.samples(text, n=2), strict=True):
            assert (sample.text, sample.tokens, sample.finish_reason) == (alone.text, alone.tokens, alone.finish_reason)
            assert sample.logprobs == approx(alone.logprobs, model=ours.model)
            assert len(sample.alternatives) == len(sample.tokens)
    assert (found[len(TEXTS) - 1][0].tokens == found[0][0].tokens) == (ours.config.temperature == 0)


WAYS = ("one", "prompts", "speculative", "beam")


def outputs(ours: Generator, way: str, texts=("The owl", "saw", "fox ran")) -> list:
    """Continuations of a few prompts, in one of the ways to generate them."""
    if way == "beam":
        return [ours.search(text, beam_size=3, n=3) for text in texts]
    if way == "prompts":
        prompts = [Prompt(number, text, f"line {number}") for number, text in enumerate(texts)]
        return [samples for _, samples in ours.continue_prompts(prompts, n=4)]
    return [
        dataclasses.replace(ours, draft="prompt" * (way == "speculative") or None).samples(each, n=4) for each in texts
    ]


@pytest.mark.parametrize("way", WAYS)
def test_prompt_and_text_are_the_text_of_all_tokens(elsewhere, way):
    """Decoders of many tokenizers remove the space before the first token, which is that of the prompt."""
    prompt, ids = "the cat", elsewhere.encode("the cat sat")
    prompt_ids = encode_prompt(prompt, elsewhere)
    settings = {"tokenizer": elsewhere, "logit_bias": (f"{ids[len(elsewhere.encode(prompt))]}=30",)}
    for sample in (sample for each in outputs(generator(**settings), way, [prompt]) for sample in each):
        assert is_but_for_a_cut(prompt + sample.text, elsewhere.decode([*prompt_ids, *sample.tokens]), most=4)
    if way != "beam":  # which biases don't change
        assert sample.text.startswith(" ")
        ((sample, *_),) = outputs(generator(stop=(" ",), **settings), way, [prompt])
        assert (sample.text, sample.finish_reason) == ("", "stop")


def test_a_completion_is_decoded_as_it_was_encoded(elsewhere):
    """Prompts and completions of examples are separate texts."""
    ours = dataclasses.replace(generator(tokenizer=elsewhere), follows_examples=True)
    for sample in ours.samples("the cat", n=4):
        assert is_but_for_a_cut(sample.text, elsewhere.decode(sample.tokens), most=20)

"""The completions API, as the official client of OpenAI and curl use it."""

import pytest

from lm.config.inference import SamplingConfig
from lm.config.run_config import HardwareConfig
from lm.decoding.generator import Generator
from lm.engine import load_for_decoding
from tests.lm.serving.conftest import RUNS, served

openai = pytest.importorskip("openai")
pytest.importorskip("uvicorn")


@pytest.fixture(scope="module")
def server():
    with served(RUNS / "gpt", f"second={RUNS / 'llama'}") as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def loaded():
    return load_for_decoding(RUNS / "gpt", HardwareConfig(threads=1))


def alone(loaded, prompt, *, n=1, **settings):
    """What `lm generate` samples."""
    config = SamplingConfig(**settings)
    return Generator(loaded.model, loaded.tokenizer, config).samples(prompt, n=n, alternatives=3)


def test_completions_equal_those_of_lm_generate_with_the_same_seed(client, loaded):
    given = client.completions.create(
        model="gpt", prompt="one two", n=3, seed=5, max_tokens=30, temperature=1.5, top_p=0.9,
        frequency_penalty=0.1, logprobs=3, extra_body={"top_k": 12, "min_p": 0.001},
    )  # fmt: skip
    expected = alone(loaded, "one two", n=3, seed=5, max_tokens=30, temperature=1.5, top_p=0.9, frequency_penalty=0.1,
                     top_k=12, min_p=0.001)  # fmt: skip
    assert [choice.text for choice in given.choices] == [sample.text for sample in expected]
    for choice, sample in zip(given.choices, expected, strict=True):
        assert choice.logprobs.token_logprobs == pytest.approx(sample.logprobs, abs=1e-4)
        assert [len(best) for best in choice.logprobs.top_logprobs] == [3] * len(sample.tokens)
    assert given.usage.completion_tokens == sum(len(sample.tokens) for sample in expected)
    assert given.usage.prompt_tokens == len(loaded.tokenizer.encode("one two"))


def test_a_stream_has_the_same_text_and_ends_with_the_usage(client):
    settings = {"model": "gpt", "prompt": "one two", "n": 2, "seed": 3, "max_tokens": 25, "temperature": 1.2}
    whole = client.completions.create(**settings)
    texts, reasons, usage = ["", ""], {}, None
    for part in client.completions.create(**settings, stream=True, stream_options={"include_usage": True}):
        for choice in part.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason or reasons.get(choice.index)
        usage = part.usage
    assert texts == [choice.text for choice in whole.choices]
    assert reasons == {0: "length", 1: "length"}
    assert usage == whole.usage


def test_echo_scores_the_prompt(client):
    given = client.completions.create(model="gpt", prompt="one two", max_tokens=0, echo=True, logprobs=1)
    (choice,) = given.choices
    assert choice.text == "".join(choice.logprobs.tokens) == "one two"
    assert choice.logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in choice.logprobs.token_logprobs[1:])
    assert choice.logprobs.text_offset == list(range(7))


def test_errors_are_the_exceptions_of_the_client(client):
    with pytest.raises(openai.NotFoundError, match="there is no model 'gbt'"):
        client.completions.create(model="gbt", prompt="one")
    wrong = {"suffix": "two", "response_format": {"type": "json_object"}, "promt": "two", "top_p": 2}
    wrong |= {"logit_bias": {"99999": 1}, "stream_options": {"foo": 1}, "prompt": []}
    for field in ({name: value} for name, value in wrong.items()):
        with pytest.raises(openai.BadRequestError, match=next(iter(field))) as refused:
            client.completions.create(model="gpt", prompt="one", extra_body=field)
        assert refused.value.param in (*field, None)
    neutral = {"suffix": "", "tools": [], "store": True, "metadata": {"a": "b"}, "top_k": -1, "seed": -1, "best_of": 1}
    assert client.completions.create(model="gpt", prompt="one", max_tokens=1, user="me", extra_body=neutral).choices
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="gpt", input="one")

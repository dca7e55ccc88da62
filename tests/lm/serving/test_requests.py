"""What a request asks for, and which error one has that cannot be: read in this process."""

from __future__ import annotations

import asyncio
import json

import pytest
from starlette.requests import Request

from lm.config.decoding import SamplingConfig
from lm.config.hardware import HardwareConfig
from lm.config.serving import ServerConfig
from lm.serving.api_errors import ApiError
from lm.serving.fields import check_known
from lm.serving.http import read_object
from lm.serving.models import ServedModel, load_models
from lm.serving.requests import build_completions, parse_chat, parse_completion
from lm.text.conversations import Message
from tests.cli.small_runs import make_run, make_tokenizer

CONFIG = ServerConfig(max_samples=8, max_length=40)
USER = {"role": "user", "content": "The owl?"}


def completion(**fields):
    return parse_completion({"prompt": "one", **fields}, CONFIG)


def chat(**fields):
    return parse_chat({"messages": [USER], **fields}, CONFIG)


def test_without_further_fields_defaults_hold():
    found = completion()
    assert found.prompts == ["one"]
    assert found.config == SamplingConfig()
    assert (found.has_max_tokens, found.max_tokens, found.n, found.best_of) == (False, 200, 1, 1)
    assert (found.echo, found.logprobs, found.is_stream, found.include_usage) == (False, None, False, False)
    messages, asked = chat()
    assert messages == (Message("user", "The owl?"),)
    assert asked.config == SamplingConfig(token_healing=False)
    assert (asked.prompts, asked.has_max_tokens, asked.max_tokens, asked.n, asked.best_of) == ([], False, 200, 1, 1)
    assert (asked.echo, asked.logprobs, asked.is_stream, asked.truncates) == (False, None, False, False)
    filled = asked.with_prompt([3, 4], 2)
    assert (filled.prompts, filled.dropped_turns, filled.config) == ([[3, 4]], 2, asked.config)


def read(**fields):
    """The body of a request with some fields, as the server reads it."""

    async def receive():
        return {"type": "http.request", "body": json.dumps(fields).encode()}

    return asyncio.run(read_object(Request({"type": "http", "headers": []}, receive), 1000))


def test_null_is_the_same_as_no_field():
    names = ("n", "best_of", "stream", "echo", "max_tokens", "logprobs", "stop", "temperature", "suffix", "unknown")
    assert completion(**read(**dict.fromkeys(names), logit_bias={"5": None})) == completion(logit_bias={})
    names = ("n", "stream", "max_tokens", "max_completion_tokens", "logprobs", "top_logprobs", "truncation", "tools")
    assert chat(**read(**dict.fromkeys(names), messages=[USER | {"name": None}])) == chat()
    for limit, other in (("max_tokens", "max_completion_tokens"), ("max_completion_tokens", "max_tokens")):
        assert chat(**read(**{limit: 2, other: None})) == chat(**{limit: 2})
    check_known(read(text="one", top=None, unknown=None), ("text",))


@pytest.mark.parametrize(
    ("fields", "attributes"),
    [
        ({"n": 8}, {"n": 8, "best_of": 8}),
        ({"n": 2, "best_of": 8}, {"n": 2, "best_of": 8}),
        ({"prompt": ["a", "b"], "n": 4}, {"prompts": ["a", "b"], "n": 4}),
        ({"prompt": [3, 4]}, {"prompts": [[3, 4]]}),
        ({"prompt": [[3, 4], [5]]}, {"prompts": [[3, 4], [5]]}),
        ({"logprobs": 0}, {"logprobs": 0}),
        ({"logprobs": 20}, {"logprobs": 20}),
        ({"max_tokens": 7}, {"max_tokens": 7, "has_max_tokens": True}),
        ({"max_tokens": 0, "echo": True}, {"max_tokens": 0, "has_max_tokens": True, "echo": True}),
        ({"stream": True}, {"is_stream": True, "include_usage": False}),
        ({"stream": True, "stream_options": {"include_usage": True}}, {"include_usage": True}),
        ({"stop": "x"}, {"config": SamplingConfig(stop=("x",))}),
        ({"stop": [*"abcdefghijklmnop"]}, {"config": SamplingConfig(stop=(*"abcdefghijklmnop",))}),
        ({"logit_bias": {"5": 2, "ab": -1.5}}, {"config": SamplingConfig(logit_bias=("5=2", "ab=-1.5"))}),
        ({"top_k": 3, "token_healing": False}, {"config": SamplingConfig(top_k=3, token_healing=False)}),
    ],
)
def test_a_completion_is_as_its_fields_say(fields, attributes):
    found = completion(**fields)
    assert {name: getattr(found, name) for name in attributes} == attributes


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"n": 9}, "n", "n must be at most 8, not 9"),
        ({"n": True}, "n", "n must be an integer"),
        ({"best_of": 9}, "best_of", "best_of must be at most 8"),
        ({"n": 3, "best_of": 2}, "best_of", "best_of is 2, less than n, 3"),
        ({"prompt": [*"abc"], "n": 3}, "prompt", "3 prompts with 3 samples each are more than 8 samples"),
        ({"logprobs": 21}, "logprobs", "logprobs must be at most 20"),
        ({"logprobs": -1}, "logprobs", "logprobs must be at least 0"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens must be at least 1, or 0 with echo"),
        ({"max_tokens": False}, "max_tokens", "max_tokens must be an integer"),
        ({"stream": 1}, "stream", "stream must be true or false"),
        ({"stream": True, "stream_options": 3}, "stream_options", "stream_options must be an object"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options", "unknown field 'stream_options.x'"),
        ({"stream": False, "stream_options": {}}, "stream_options", "stream_options needs stream"),
        ({"stop": [*"abcdefghijklmnopq"]}, "stop", "there are 17 stop strings; at most 16"),
        ({"stop": ["a", 3]}, "stop", "stop must be a text"),
        ({"logit_bias": {"5": True}}, "logit_bias", "logit_bias must be an object"),
        ({"logit_bias": [5]}, "logit_bias", "logit_bias must be an object"),
        ({"top_p": 2}, "top_p", "top_p must be"),
        ({"prompt": [True]}, "prompt", "prompt must be a text"),
        ({"prompt": [[3], []]}, "prompt", "prompt must be a text"),
        ({"prompt": None}, "prompt", "prompt is missing"),
        ({"prompt": "\ud800"}, "prompt", "prompt"),
        ({"best_of": 2, "stream": True}, "best_of", "best_of > n cannot be streamed"),
    ],
)
def test_a_completion_that_cannot_be_names_its_field(fields, param, message):
    with pytest.raises(ApiError) as raised:
        completion(**fields)
    assert (raised.value.status, raised.value.param) == (400, param)
    assert message in raised.value.message


@pytest.mark.parametrize(
    ("fields", "attributes"),
    [
        ({"max_tokens": 5}, {"max_tokens": 5, "has_max_tokens": True}),
        ({"max_completion_tokens": 5}, {"max_tokens": 5, "has_max_tokens": True}),
        ({"max_completion_tokens": 5, "max_tokens": 5}, {"max_tokens": 5}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 20}, {"logprobs": 20}),
        ({"logprobs": False}, {"logprobs": None}),
        ({"truncation": "auto"}, {"truncates": True}),
        ({"truncation": "disabled"}, {"truncates": False}),
        ({"n": 8}, {"n": 8, "best_of": 8}),
        ({"tools": []}, {"n": 1}),
    ],
)
def test_a_chat_is_as_its_fields_say(fields, attributes):
    _, found = chat(**fields)
    assert {name: getattr(found, name) for name in attributes} == attributes


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"max_completion_tokens": 5, "max_tokens": 6}, "max_completion_tokens", "differ; give one of them"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens must be at least 1"),
        ({"top_logprobs": 3}, "top_logprobs", "top_logprobs needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "at most 20"),
        ({"truncation": "some"}, "truncation", "truncation must be auto or disabled"),
        ({"n": 9}, "n", "n must be at most 8"),
        ({"tools": [{}]}, "tools", "tools is not supported"),
        ({"messages": None}, "messages", "messages is missing"),
        ({"messages": [USER, {"role": "assistant", "content": "a"}]}, "messages", "end with one of the user"),
        ({"messages": [{**USER, "tool_calls": [{}]}]}, "messages", "messages.tool_calls is not supported"),
        ({"messages": [{**USER, "nam": "x"}]}, "messages", "unknown field 'messages.nam'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "txt": "x"}]}]},
            "messages.content", "unknown field 'messages.content.txt'",
        ),
    ],
)  # fmt: skip
def test_a_chat_that_cannot_be_names_its_field(fields, param, message):
    with pytest.raises(ApiError) as raised:
        chat(**fields)
    assert (raised.value.status, raised.value.param) == (400, param)
    assert message in raised.value.message


def test_a_developer_is_the_system_and_a_text_may_come_in_parts():
    parts = [{"type": "text", "text": "The "}, {"type": "text", "text": "owl?"}]
    messages, _ = chat(messages=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}])
    assert [message.role for message in messages] == ["system", "user"]
    assert messages[0].content == "Be brief."
    assert "owl?" in messages[1].content


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> ServedModel:
    run = make_run(tmp_path_factory.mktemp("runs") / "owl", tokenizer=make_tokenizer("bpe").with_chat_template())
    (served,) = load_models({"owl": run}, HardwareConfig(threads=1), CONFIG, lambda *_: None)
    return served


def build(model: ServedModel, **fields):
    return build_completions(model, completion(**fields), CONFIG)


def test_equal_prompts_are_counted_and_share_a_sampler(model):
    built = build(model, prompt=[[5], [3, 4], [3, 4]], seed=5, max_tokens=2)
    drawn = [each.start_samples(1, lambda sample: sample)[0].spec.rng.random() for each in built[1:]]
    assert drawn[0] != drawn[1]
    assert {each.seed for each in built} == {5}
    assert {id(each.sampler) for each in built} == {id(built[0].sampler)}
    (other,) = build(model, stop="x", max_tokens=3, token_healing=False)
    assert other.sampler is built[0].sampler
    (warmer,) = build(model, temperature=1.5)
    assert warmer.sampler is not built[0].sampler
    assert warmer.generator.config.temperature == 1.5


def test_a_default_length_is_shortened_to_the_limit_of_the_server_and_a_given_one_refused(model):
    length = 30
    (shortened,) = build(model, prompt=[3] * length, min_tokens=50)
    assert (shortened.generator.config.max_tokens, shortened.generator.config.min_tokens) == (10, 10)
    (exact,) = build(model, prompt=[3] * length, max_tokens=10)
    assert exact.generator.config.max_tokens == 10
    for prompt, asked, param, message in (
        (length, 11, "max_tokens", "30 tokens of the prompt and 11 of its completion are more than the server allows"),
        (40, None, "prompt", "40 tokens of the prompt are more than the server allows, 40"),
        (39, None, None, ""),
        (41, 1, "prompt", "41 tokens of the prompt and 1 of its completion are more"),
    ):
        fields = {} if asked is None else {"max_tokens": asked}
        if param is None:
            (last,) = build(model, prompt=[3] * prompt, **fields)
            assert last.generator.config.max_tokens == 1
            continue
        with pytest.raises(ApiError) as raised:
            build(model, prompt=[3] * prompt, **fields)
        assert (raised.value.param, raised.value.code) == (param, "context_length_exceeded")
        assert message in raised.value.message


def test_the_end_of_a_prompt_is_retokenised_unless_its_own_tokens_are_scored(model):
    (plain,), (scored,), (echoed,) = (build(model, prompt="The owl", **fields) for fields in (
        {}, {"echo": True, "logprobs": 1}, {"echo": True}))  # fmt: skip
    assert [each.ending is not None for each in (plain, scored, echoed)] == [True, False, True]


def test_an_error_of_the_library_is_one_of_the_request(model):
    with pytest.raises(ApiError, match="no token 9999") as raised:
        build(model, logit_bias={"9999": 1})
    assert (raised.value.status, raised.value.param) == (400, "logit_bias")


def test_messages_fill_the_context_but_for_one_token_or_the_oldest_are_left_out(model):
    context = model.decoder.config.context_length
    assert model.encode_chat([Message("user", "a")], max_tokens=5, truncates=False)[1] == 0
    long = [Message("user", "owl " * 20), Message("assistant", "no"), Message("user", "a")]
    with pytest.raises(ApiError, match=f"the model's context is {context}; leave out the oldest") as raised:
        model.encode_chat(long, max_tokens=5, truncates=False)
    assert (raised.value.param, raised.value.code) == ("messages", "context_length_exceeded")
    ids, dropped = model.encode_chat(long, max_tokens=5, truncates=True)
    assert dropped == 1
    assert ids == model.encode_chat(long[2:], max_tokens=5, truncates=False)[0]
    with pytest.raises(ApiError) as raised:
        model.encode_chat([Message("user", "owl " * 40)], max_tokens=5, truncates=True)
    assert raised.value.code == "context_length_exceeded"

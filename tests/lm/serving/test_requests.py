"""What a request asks for, and which error one has that cannot be: read in this process."""

from __future__ import annotations

import asyncio
import json

import pytest
from starlette.requests import Request

from lm.config.hardware import HardwareConfig
from lm.config.serving import ServerConfig
from lm.serving.api_errors import ApiError
from lm.serving.http import read_object
from lm.serving.models import ServedModel, load_models
from lm.text.records import Part
from tests.cli.small_runs import make_run, make_tokenizer

CONFIG = ServerConfig(max_samples=8, max_length=40)


def read(**fields):
    """The body of a request with some fields, as the server reads it."""

    async def receive():
        return {"type": "http.request", "body": json.dumps(fields).encode()}

    return asyncio.run(read_object(Request({"type": "http", "headers": []}, receive), 1000))


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> ServedModel:
    run = make_run(tmp_path_factory.mktemp("runs") / "owl", tokenizer=make_tokenizer("bpe").with_chat_template())
    (served,) = load_models({"owl": run}, HardwareConfig(threads=1), CONFIG, lambda *_: None)
    return served


def test_messages_fill_the_context_but_for_one_token_or_the_oldest_are_left_out(model):
    context = model.decoder.config.context_length
    assert model.encode_chat([Part("user", "a")], max_tokens=5, truncates=False)[1] == 0
    long = [Part("user", "owl " * 20), Part("assistant", "no"), Part("user", "a")]
    with pytest.raises(ApiError, match=f"the model's context is {context}; leave out the oldest") as raised:
        model.encode_chat(long, max_tokens=5, truncates=False)
    assert (raised.value.param, raised.value.code) == ("messages", "context_length_exceeded")
    ids, dropped = model.encode_chat(long, max_tokens=5, truncates=True)
    assert dropped == 1
    assert ids == model.encode_chat(long[2:], max_tokens=5, truncates=False)[0]
    with pytest.raises(ApiError) as raised:
        model.encode_chat([Part("user", "owl " * 40)], max_tokens=5, truncates=True)
    assert raised.value.code == "context_length_exceeded"

"""Requests with one mistake each, in JSON or encoding: none makes the server fail, hang or log a traceback."""

from __future__ import annotations

import contextlib
import copy
import json
import random
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cli.small_runs import make_run, make_tokenizer
from tests.lm.serving.conftest import RUNS, served
from tests.waiting import SECONDS

pytest.importorskip("uvicorn")

TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "The owl?"},
    {"role": "assistant", "content": "It sat."},
    {"role": "user", "content": "And then?"},
]
SAMPLING = {
    "max_tokens": 3, "temperature": 0.9, "top_k": 5, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.9,
    "repetition_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.1, "no_repeat_ngram_size": 2,
    "min_tokens": 1,
    "ignore_eos": False, "stop": ["x"], "seed": 1, "logit_bias": {"5": 1.5},
}  # fmt: skip
VALID: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"model": "chat", "prompt": "The owl", "n": 2, "echo": True, "logprobs": 2,
                         "token_healing": True, **SAMPLING}),
    ("/v1/completions", {"model": "chat", "prompt": [[5, 6], [7]], "stream": True, "user": "me",
                         "stream_options": {"include_usage": True}, **SAMPLING}),
    ("/v1/chat/completions", {"model": "chat", "messages": TURNS, "n": 2, "logprobs": True, "top_logprobs": 2,
                              "stream": True, "response_format": {"type": "text"}, **SAMPLING}),
    ("/v1/chat/completions", {"model": "chat", "messages": [{"role": "user", "content": [{"type": "text",
                              "text": "The owl"}]}], "max_completion_tokens": 2}),
    ("/score", {"model": "chat", "text": "The owl 狐 saw.", "top": 3}),
    ("/next", {"model": "chat", "prompt": "The owl ", "top": 4, **SAMPLING}),
    ("/attention", {"model": "chat", "text": "The owl saw."}),
    ("/attention", {"model": "translation", "text": "the owl", "target": "the fox", "to": None}),
    ("/translate", {"model": "translation", "text": ["the owl", ""], "alignments": True, "n_best": 2, "beam": 2}),
]  # fmt: skip

VALUES: list[Any] = [
    None, True, -1, 0, 2**31, -(2**63) - 1, 10**400, 0.5, 1e-320, 1e308, "", "one", "\0", "\n", "\ud800", "[MASK]",
    "<|endoftext|>", "x" * 3000, "-inf", "nan", [], [None], [-1], [10**30], ["\ud800"], [[]], [[1], ["a"]], {},
    {"\ud800": 1}, {"5": 10**400}, {"role": "user", "content": "one"}, ["one"] * 40, [1] * 3000, [[5]] * 40,
]  # fmt: skip
TOKENS = [b"NaN", b"1e999", b"9" * 5000, b"01", b"[" * 100_000, b'{"a":' * 50_000, b"\xff", b'"\xed\xa0\x80"',
          b'"\\ud800"', b"'one'", b"", b"\0"]  # fmt: skip
"""What JSON lacks, or what its parsers stumble over."""


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the places in a JSON value, each as a container and a key."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


def change_value(draw: random.Random, body: dict[str, Any]) -> bytes:
    container, key = draw.choice(list(places(body)))
    container[key] = draw.choice(VALUES)
    return json.dumps(body).encode()


def remove_field(draw: random.Random, body: dict[str, Any]) -> bytes:
    container, key = draw.choice(list(places(body)))
    del container[key]
    return json.dumps(body).encode()


def add_field(draw: random.Random, body: dict[str, Any]) -> bytes:
    container = draw.choice([body, *(container[key] for container, key in places(body))])
    if isinstance(container, dict):
        container[draw.choice(["unknown", "", "\ud800", "x" * 3000, "suffix", "tools"])] = draw.choice(VALUES)
    return json.dumps(body, ensure_ascii=draw.random() < 0.5).encode(errors="surrogatepass")


def change_token(draw: random.Random, body: dict[str, Any]) -> bytes:
    container, key = draw.choice(list(places(body)))
    container[key] = "@"
    return json.dumps(body).encode().replace(b'"@"', draw.choice(TOKENS))


def change_bytes(draw: random.Random, body: dict[str, Any]) -> bytes:
    content = json.dumps(body, ensure_ascii=False).encode()
    first = draw.randrange(len(content) + 1)
    kinds = [content[:first], content[:first] + draw.randbytes(3) + content[first:], b"\xef\xbb\xbf" + content,
             content.decode().encode("utf-16"), content + content, json.dumps([body]).encode()]  # fmt: skip
    return draw.choice(kinds)


BODIES: list[Callable[[random.Random, dict[str, Any]], bytes]] = [
    change_value, change_value, remove_field, add_field, change_token, change_bytes,
]  # fmt: skip


def head(method: bytes, path: bytes, *fields: bytes) -> bytes:
    return b"\r\n".join([method + b" " + path + b" HTTP/1.1", b"Host: localhost", *fields, b"", b""])


def post(path: str, content: bytes) -> bytes:
    return head(b"POST", path.encode(), b"Connection: close", b"Content-Length: %d" % len(content)) + content


def exchange(port: int, request: bytes) -> bytes:
    """Send a request, and return the answer once the connection is closed."""
    answer = b""
    with (
        contextlib.suppress(ConnectionError),  # refused before it was read
        socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection,
    ):
        connection.sendall(request)
        while part := connection.recv(65536):
            answer += part
    return answer


def statuses_of(answer: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"^HTTP/1\.1 (\d{3})", answer, re.MULTILINE)]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    make_run(runs / "chat", tokenizer=make_tokenizer("bpe").with_chat_template(), context_length=64)
    limits = "--max-length", 200, "--set", "server.max_body=200000"
    with served(runs / "chat", RUNS / "translation", *limits) as running:
        yield running


@pytest.mark.parametrize(("path", "body"), VALID, ids=[f"{path} {number}" for number, (path, _) in enumerate(VALID)])
def test_the_requests_are_right_before_they_are_changed(server, path, body):
    answer = exchange(server.port, post(path, json.dumps(body).encode()))
    assert statuses_of(answer) == [200], answer
    assert b'"error"' not in answer


@pytest.mark.parametrize("count", [80, pytest.param(10_000, marks=pytest.mark.slow)])
def test_changed_requests_are_answered_or_refused(server, count):
    draw, seen = random.Random(count), Counter[int]()
    for _ in range(count):
        path, valid = draw.choice(VALID)
        request = post(path, draw.choice(BODIES)(draw, copy.deepcopy(valid)))
        answer = exchange(server.port, request)
        found = statuses_of(answer)
        seen.update(found or [0])
        assert all(status < 500 or status == 503 for status in found), (request[:2000], answer[:2000])
        assert b"Traceback" not in answer, request[:2000]
        traced = [line for line in server.log if "Traceback" in line]
        assert not traced, (request[:2000], "".join(server.log))
    assert statuses_of(exchange(server.port, head(b"GET", b"/health", b"Connection: close"))) == [200]
    assert min(seen[200], seen[400]) > 8

"""What becomes of requests: those that wait, that are cancelled, and that run while the server ends."""

import json
import re
import socket
import threading

import pytest

from tests.cli.small_runs import make_run
from tests.lm.serving.conftest import request, served
from tests.waiting import wait_until

httpx, openai = pytest.importorskip("httpx"), pytest.importorskip("openai")
pytest.importorskip("uvicorn")

LONG = {"prompt": "The owl", "max_tokens": 8000, "ignore_eos": True, "stream": True}
"""A request that runs for many seconds."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "owl", context_length=64)


@pytest.fixture(scope="module")
def server(run):
    with served(run, "--max-requests", 3, "--batch-size", 4) as running:
        yield running


def metric(server, name: str) -> int:
    text = request("GET", f"{server.url}/metrics").text
    return int(re.search(rf"^{name}\{{.*\}} (\d+)$", text, re.MULTILINE)[1])


def open_stream(server, **fields) -> socket.socket:
    """Send a request, and read the beginning of its stream."""
    body = json.dumps(LONG | fields).encode()
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    received = b""
    while b"data: " not in received:
        received += connection.recv(4096)
        assert received.startswith(b"HTTP/1.1 200"[: len(received)]), received
    return connection


def is_idle(server) -> bool:
    return not any(metric(server, name) for name in ("lm_running", "lm_waiting"))


def test_a_client_that_leaves_frees_its_rows(server):
    connections = [open_stream(server) for _ in range(4)]
    wait_until(lambda: metric(server, "lm_running") == 4)
    for connection in connections:
        connection.close()
    wait_until(lambda: is_idle(server))


def test_more_requests_than_may_wait_are_refused_at_once(server):
    running = [open_stream(server) for _ in range(4)]
    wait_until(lambda: metric(server, "lm_running") == 4)
    waiting = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
    body = json.dumps(LONG).encode()
    for number, connection in enumerate(waiting, 1):
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        wait_until(lambda number=number: metric(server, "lm_waiting") == number)
    refused = request("POST", f"{server.url}/v1/completions", json=LONG)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    with client, pytest.raises(openai.RateLimitError, match="3 requests are waiting"):
        client.completions.create(model="owl", prompt="The owl")
    for connection in (*running, *waiting):
        connection.close()
    wait_until(lambda: is_idle(server))


def test_a_slow_client_slows_nobody_down(server):
    """One reads nothing."""
    with open_stream(server, max_tokens=6000, logprobs=5):
        quick = {"model": "owl", "prompt": "The owl", "max_tokens": 50, "seed": 1}
        for _ in range(3):
            assert request("POST", f"{server.url}/v1/completions", json=quick).status_code == 200
    wait_until(lambda: is_idle(server))


@pytest.mark.medium
def test_a_request_that_takes_too_long_is_ended(run):
    with served(run, "--timeout", 0.5) as server:
        answer = request("POST", f"{server.url}/v1/completions", json=LONG | {"stream": False})
        assert answer.status_code == 503
        assert "took too long" in answer.json()["error"]["message"]
        assert answer.headers["x-should-retry"] == "false"
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        with client, pytest.raises(openai.APIError, match="took too long"):
            for _ in client.completions.create(model="owl", prompt="The owl", max_tokens=8000, stream=True,
                                               extra_body={"ignore_eos": True}):  # fmt: skip
                pass
        wait_until(lambda: is_idle(server))
        assert server.stop() == 143


@pytest.mark.medium
def test_a_server_that_is_told_to_end_finishes_what_runs(run):
    with served(run) as server:
        texts = []

        def complete() -> None:
            body = LONG | {"stream": False, "max_tokens": 400, "seed": 1}
            texts.append(request("POST", f"{server.url}/v1/completions", json=body).json()["choices"][0]["text"])

        threads = [threading.Thread(target=complete) for _ in range(3)]
        for thread in threads:
            thread.start()
        wait_until(lambda: metric(server, "lm_running") == 3)
        assert server.stop() == 143
        for thread in threads:
            thread.join()
    assert len(texts) == 3
    assert len(set(texts)) == 1
    assert texts[0]
    assert not any("Traceback" in line for line in server.log), "".join(server.log)

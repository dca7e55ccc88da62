"""Who may call the server, and what it does with requests that are not meant well."""

import socket

import pytest

from lm.config.inference import ServerConfig
from tests.forked import lm
from tests.lm.serving.conftest import RUNS, request, served
from tests.waiting import SECONDS

pytest.importorskip("httpx")
pytest.importorskip("uvicorn")

from lm.serving.app import bind

TOKEN = "a-long-token"


@pytest.fixture(scope="module")
def server():
    with served(RUNS / "gpt", "--cors", "https://friend.example", "--set", "server.max_body=2048") as running:
        yield running


@pytest.fixture(scope="module")
def guarded():
    with served(RUNS / "gpt", "--host", "0.0.0.0", LM_TOKEN=TOKEN) as running:
        running.url = f"http://127.0.0.1:{running.port}"
        yield running


def test_other_machines_need_a_token():
    found = lm("serve", RUNS / "gpt", "--host", "0.0.0.0")
    assert found.returncode == 2
    assert found.stderr.count("\n") == 1
    assert "set a token" in found.stderr


def test_a_port_is_free_again_as_soon_as_its_server_has_ended():
    """Though the system still waits for late packets of a connection that the server has closed."""
    with bind(ServerConfig(port=0)) as listener:
        listener.listen()
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            listener.accept()[0].close()
            assert client.recv(1) == b""
    bind(ServerConfig(port=port)).close()


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {TOKEN}"},
                                     {"authorization": f"Bearer {TOKEN}x"},
                                     {"authorization": b"Bearer \xff"},
                                     {"access-control-request-method": "GET"}])  # fmt: skip
def test_without_the_token_nothing_is_answered(guarded, headers):
    for path in ("/v1/models", "/metrics", "/runs", "/nothing"):
        answer = request("GET", guarded.url + path, headers=headers)
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "invalid_api_key"
    assert request("GET", f"{guarded.url}/health", headers=headers).status_code == 200
    assert request("GET", f"{guarded.url}/", headers=headers).status_code == 200


def test_with_the_token_requests_are_answered_under_any_name(guarded):
    headers = {"authorization": f"Bearer {TOKEN}", "host": "models.example"}
    assert request("GET", f"{guarded.url}/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("localhost:1234", 200), ("127.0.0.1:80", 200), ("[::1]:80", 200),
        ("evil.example", 403), ("localhost.evil.example", 403), ("", 403), ("[", 403), ("127.0.0.1.evil.example", 403),
    ],
)  # fmt: skip
def test_a_name_that_points_here_reaches_nothing(server, host, status):
    """DNS rebinding."""
    assert request("GET", f"{server.url}/v1/models", headers={"host": host}).status_code == status


def test_pages_of_other_origins_are_refused_unless_allowed(server):
    url = f"{server.url}/v1/models"
    refused = request("GET", url, headers={"origin": "https://evil.example"})
    assert refused.status_code == 403
    assert "access-control-allow-origin" not in refused.headers
    allowed = request("GET", url, headers={"origin": "https://friend.example"})
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == "https://friend.example"
    own = request("GET", url, headers={"origin": server.url})
    assert own.status_code == 200
    preflight = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,x-stainless"}
    asked = request("OPTIONS", url, headers={"origin": "https://friend.example"} | preflight)
    assert asked.status_code == 200
    assert asked.headers["access-control-allow-headers"] == "authorization,x-stainless"


@pytest.mark.parametrize("path", ["/../app.py", "/%2e%2e/app.py", "/web/index.html", "/index.html/..", "//etc/passwd"])
def test_files_outside_the_page_are_not_served(server, path):
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 404")


@pytest.mark.parametrize("raw", [
    b"\x00\x01\x02\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"POST /score HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Length: -5\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
    b"POST /score HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
])  # fmt: skip
def test_what_is_no_http_is_refused_and_the_server_continues(server, raw):
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.settimeout(SECONDS)
        try:
            connection.sendall(raw)
            answer = connection.recv(65536)
        except OSError:
            answer = b""
    assert not answer or b" 4" in answer.partition(b"\r\n")[0]
    assert b"Traceback" not in answer
    assert request("GET", f"{server.url}/health").status_code == 200

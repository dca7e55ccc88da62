"""Models by name, from a server on this machine that answers as the Hub does: downloaded once, each failure a line."""

import contextlib
import hashlib
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import PIPE

import pytest

from lm.api import export
from tests.cli.small_runs import make_tokenizer
from tests.forked import Forked, lm, run_each
from tests.lm.interop.hugging_face.models import random_config, random_run

pytest.importorskip("huggingface_hub")

COMMITS = {"main": "1" * 40, "v1": "2" * 40}
ERRORS = {"gated": (403, "GatedRepo"), "private": (401, "RepoNotFound"), "missing": (404, "RepoNotFound")}


class _Hub(BaseHTTPRequestHandler):
    """The Hub's answers that huggingface_hub asks for: revision, tree and files of one model."""

    folder: Path
    asked: list[str]

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self._answer()

    def do_GET(self):
        self._answer()

    def _answer(self):
        path = self.path.partition("?")[0]
        type(self).asked.append(path)
        name = path.removeprefix("/api/models/").lstrip("/").split("/")[1]
        if name in ERRORS:
            code, error = ERRORS[name]
            self._send(code, b"{}", {"X-Error-Code": error, "X-Error-Message": "no"})
        elif name == "broken":
            self._send(500, b"{}")
        elif path.startswith("/api/models/org/") and "/revision/" in path:
            revision = path.rpartition("/")[2]
            commit = COMMITS.get(revision)
            if commit is None:
                self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            else:
                files = [{"rfilename": file.name} for file in self.folder.iterdir()]
                self._json({"id": "org/tiny", "sha": commit, "siblings": files})
        elif path.startswith("/api/models/org/") and "/tree/" in path:
            self._json(
                [
                    {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": _hash(file)}
                    for file in sorted(self.folder.iterdir())
                ]
            )
        elif "/resolve/" in path:
            _, _, _, _, commit, file = path.split("/")
            self._send(200, self._read(name, file), {"ETag": f'"{_hash(self.folder / file)}"', "X-Repo-Commit": commit})
        else:
            self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})

    def _read(self, name, file):
        data = (self.folder / file).read_bytes()
        if name == "other" and file == "config.json":
            return data.replace(b'"llama"', b'"mamba"')
        return data

    def _json(self, value):
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, code, body, headers=None):
        self.send_response(code)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            with contextlib.suppress(BrokenPipeError):
                self.wfile.write(body)


def _hash(file):
    return hashlib.sha1(file.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder as of a model on the Hub, with files that are not to be downloaded."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = make_tokenizer("bpe").with_chat_template()
    export(random_run(folder / "run", random_config("llama", 0), tokenizer=tokenizer), folder / "hub")
    (folder / "hub" / "pytorch_model.bin").write_bytes(b"a pickle")
    (folder / "hub" / "modeling_evil.py").write_text("raise SystemExit")
    return folder / "hub"


@pytest.fixture
def hub(model, tmp_path):
    """Runs commands against the server; `asked` are the paths that were asked for."""
    handler = type("Handler", (_Hub,), {"folder": model, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def environment(**given):
        set_here = {
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_address[1]}",
            "HF_HOME": str(tmp_path / "hf"),
            "LM_CACHE": str(tmp_path / "cache"),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        return {**kept, **set_here, **given}

    def command(*arguments, stdin="", **given):
        return lm(*arguments, stdin=stdin, env=environment(**given))

    command.asked, command.folder, command.environment = handler.asked, tmp_path, environment
    yield command
    server.shutdown()
    server.server_close()


@pytest.mark.medium
def test_a_name_is_used_as_a_run_and_downloaded_once(hub):
    first = hub("generate", "hf:org/tiny", "The owl", "--temperature", "0", "--max-tokens", 5)
    assert first.returncode == 0, first.stderr
    files = {path.rpartition("/")[2] for path in hub.asked if "/resolve/" in path}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= files
    assert not files & {"pytorch_model.bin", "modeling_evil.py", "README.md"}
    hub.asked.clear()
    chat = hub("chat", "hf:org/tiny", "--temperature", "0", "--max-tokens", 5, stdin="The owl\n")
    assert chat.returncode == 0, chat.stderr
    assert "was not trained on conversations" not in chat.stderr  # the template came along
    assert not any("/resolve/" in path for path in hub.asked)
    hub.asked.clear()
    offline = hub("generate", "hf:org/tiny", "The owl", "--temperature", "0", "--max-tokens", 5, HF_HUB_OFFLINE="1")
    assert (offline.returncode, offline.stdout) == (0, first.stdout)
    assert hub.asked == []
    unreachable = hub(
        "generate", "hf:org/tiny", "The owl", "--temperature", "0", "--max-tokens", 5, HF_ENDPOINT="http://127.0.0.1:9"
    )
    assert (unreachable.returncode, unreachable.stdout) == (0, first.stdout)
    (run,) = (hub.folder / "cache" / "models").iterdir()
    assert run.name == f"org--tiny-{'1' * 12}"


def test_a_revision_is_imported_into_a_folder(hub):
    imported = hub("import", "hf:org/tiny@v1", "-o", hub.folder / "run")
    assert imported.returncode == 0, imported.stderr
    assert (hub.folder / "run" / "best").is_file()
    assert any(f"/resolve/{COMMITS['v1']}/" in path for path in hub.asked)
    cached = hub("import", "hf:org/tiny@v1")
    assert cached.returncode == 0, cached.stderr
    assert f"org--tiny-{'2' * 12}" in cached.stderr + cached.stdout


FAILURES = {
    "org/gated": "", "org/private": "", "org/missing": "", "org/tiny@v9": "", "org/broken": "500",
    "org/other": "model_type 'mamba'", "org/name/more": "Repo id",
}  # fmt: skip


def test_a_failure_is_one_line(hub):
    commands = [f"chat hf:{name}" for name in FAILURES]
    with Forked(run_each, *commands, stdout=PIPE, stderr=PIPE, env=hub.environment()) as process:
        codes, lines = process.stdout.read().split(), process.stderr.read().splitlines()
    assert codes == ["1"] * len(FAILURES)
    for line, (name, message) in zip(filter(str.strip, lines), FAILURES.items(), strict=True):
        assert line.startswith(f"lm: hf:{name}")
        assert message in line
    assert not any("safetensors" in path for path in hub.asked if "/resolve/" in path)


@pytest.mark.parametrize("environment", [{"HF_ENDPOINT": "http://127.0.0.1:9"}, {"HF_HUB_OFFLINE": "1"}])
def test_without_the_hub_there_is_one_line(hub, environment):
    failed = hub("generate", "hf:org/tiny", "The owl", **environment)
    assert failed.returncode == 1
    (line,) = [line for line in failed.stderr.splitlines() if line.strip()]
    assert line.startswith("lm: hf:org/tiny: ")

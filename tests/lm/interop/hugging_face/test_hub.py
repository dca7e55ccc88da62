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

from lm.errors import InputError, UsageError
from lm.interop.hugging_face.exporting import export_hugging_face
from lm.interop.hugging_face.hub import HubName, parse_hub_name
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
    export_hugging_face(random_run(folder / "run", random_config("llama", 0), tokenizer=tokenizer), folder / "hub")
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


@pytest.mark.medium
def test_training_and_perplexity_take_names(hub):
    text = hub.folder / "text.txt"
    text.write_text("The owl saw the fox by the mill. " * 50)
    scored = hub("perplexity", "hf:org/tiny", text, "--json")
    assert scored.returncode == 0, scored.stderr
    trained = hub("train", text, "--from", "hf:org/tiny", "--steps", 1, "-o", hub.folder / "run", "--evaluate-every", 0)
    assert trained.returncode == 0, trained.stderr
    assert len(list((hub.folder / "cache" / "models").iterdir())) == 1


def test_a_revision_is_imported_into_a_folder(hub):
    imported = hub("import", "hf:org/tiny@v1", "-o", hub.folder / "run")
    assert imported.returncode == 0, imported.stderr
    assert (hub.folder / "run" / "best").is_file()
    assert any(f"/resolve/{COMMITS['v1']}/" in path for path in hub.asked)
    cached = hub("import", "hf:org/tiny@v1")
    assert cached.returncode == 0, cached.stderr
    assert f"org--tiny-{'2' * 12}" in cached.stderr + cached.stdout


FAILURES = {
    "org/gated": "needs an agreement: accept it at http://127.0.0.1",
    "org/private": "no such model, or a private one",
    "org/missing": "no such model, or a private one",
    "org/tiny@v9": "the model has no revision 'v9'",
    "org/broken": "answers with HTTP 500",
    "org/other": "model_type 'mamba' is not one of gpt2, gpt_neox, ",
    "org/name/more": "not the name of a model",
    "org/tiny@": "not the name of a model",
}


def test_a_failure_is_one_line(hub):
    commands = [f"chat hf:{name}" for name in FAILURES]
    with Forked(run_each, *commands, stdout=PIPE, stderr=PIPE, env=hub.environment()) as process:
        codes, lines = process.stdout.read().split(), process.stderr.read().splitlines()
    assert len(codes) == len(FAILURES)
    assert set(codes) <= {"1", "2"}
    for line, message in zip(filter(str.strip, lines), FAILURES.values(), strict=True):
        assert line.startswith("lm: ")
        assert message in line
    assert not any("safetensors" in path for path in hub.asked if "/resolve/" in path)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "http://127.0.0.1:9 cannot be reached, and no copy is in the cache"),
        ({"HF_HUB_OFFLINE": "1"}, "not in the cache of huggingface_hub, and HF_HUB_OFFLINE forbids downloading it"),
    ],
)
def test_without_the_hub_there_is_one_line(hub, environment, message):
    failed = hub("generate", "hf:org/tiny", "The owl", **environment)
    assert failed.returncode == 1
    (line,) = [line for line in failed.stderr.splitlines() if line.strip()]
    assert message in line


def test_names_are_parsed():
    assert parse_hub_name("hf:org/name@v1") == HubName("org/name", "v1")
    assert str(parse_hub_name("hf:gpt2")) == "hf:gpt2"
    for wrong in ("hf:", "hf:a/b/c", "hf:../x", "hf:a b"):
        with pytest.raises((UsageError, InputError)):
            parse_hub_name(wrong)

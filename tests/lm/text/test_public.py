"""Public corpora: an interrupted download continues, is verified, and becomes text."""

import fcntl
import hashlib
import io
import random
import re
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lm.errors import InputError, UsageError
from lm.text import public
from lm.text.public import CORPORA, PublicFile, fetch, find_corpus

DATA = random.Random(1).randbytes(1_000_000)
DIGEST = hashlib.sha256(DATA).hexdigest()


class FileServer(ThreadingHTTPServer):
    """Serves bytes by path; misbehaves as asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = {"/a.txt": DATA}
        self.cut_after: int | None = None
        self.knows_ranges = True
        self.failures: list[int] = []
        self.ranges: list[str] = []

    def file(self, name: str = "a.txt", sha256: str | None = DIGEST, text: str | None = None) -> PublicFile:
        return PublicFile(f"http://127.0.0.1:{self.server_address[1]}/{name}", sha256, text)


class _Handler(BaseHTTPRequestHandler):
    server: FileServer

    def do_GET(self) -> None:
        self.server.ranges.append(self.headers["Range"])
        data = self.server.files.get(self.path)
        start = int(re.findall(r"\d+", self.headers["Range"])[0]) if self.server.knows_ranges else 0
        if self.server.failures:
            self.send_error(self.server.failures.pop(0))
        elif data is None:
            self.send_error(404)
        elif start >= len(data):
            self.send_error(416)
        else:
            self.send_response(206 if self.server.knows_ranges else 200)
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            self.wfile.write(data[start:][: self.server.cut_after])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch) -> Iterator[FileServer]:
    monkeypatch.setattr(public, "PAUSE", 0.0)
    monkeypatch.setenv("no_proxy", "*")
    with FileServer() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_a_cut_connection_is_continued_where_it_ended(server, tmp_path):
    server.cut_after, seen = 400_000, []
    path = fetch(server.file(), tmp_path / "new", progress=lambda *now: seen.append(now))
    assert path == tmp_path / "new" / "a.txt"
    assert path.read_bytes() == DATA
    assert server.ranges == ["bytes=0-", "bytes=400000-", "bytes=800000-"]
    assert seen == sorted(seen)
    assert seen[-1] == (len(DATA), len(DATA))
    server.files.clear()
    assert fetch(server.file(), path.parent) == path


@pytest.mark.parametrize("knows_ranges", [True, False])
@pytest.mark.parametrize("part", [DATA[:100], DATA, DATA + b"and more"])
def test_a_later_call_continues_a_part(server, tmp_path, part, knows_ranges):
    server.knows_ranges, server.failures = knows_ranges, [503]
    (tmp_path / "a.txt.part").write_bytes(part)
    assert fetch(server.file(), tmp_path).read_bytes() == DATA
    assert not list(tmp_path.glob("*.part"))


def test_a_failed_download_keeps_its_part(server, tmp_path):
    server.knows_ranges, server.cut_after = False, 1000
    with pytest.raises(InputError, match=r"a\.txt: the connection was cut; the same command continues"):
        fetch(server.file(), tmp_path)
    assert (tmp_path / "a.txt.part").read_bytes() == DATA[:1000]
    server.ranges.clear()
    with pytest.raises(InputError, match=r"b\.txt: the server answers 404 Not Found"):
        fetch(server.file("b.txt"), tmp_path)
    assert len(server.ranges) == 1
    server.server_close()
    with pytest.raises(InputError, match=r"a\.txt: .*refused"):
        fetch(server.file(), tmp_path)


def test_two_processes_do_not_mix(server, tmp_path):
    with (tmp_path / ".lock").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another process is downloading"):
            fetch(server.file(), tmp_path)


def test_another_file_than_published_is_refused(server, tmp_path):
    server.files["/a.txt"] = DATA[:-1]
    for _ in range(2):
        with pytest.raises(InputError, match=r"a\.txt: not the published file"):
            fetch(server.file(), tmp_path)
    assert fetch(server.file(sha256=None), tmp_path).read_bytes() == DATA[:-1]


def test_only_the_text_of_an_archive_stays(server, tmp_path):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("inside", DATA)
    server.files["/a.zip"] = stream.getvalue()
    assert fetch(server.file("a.zip", None, "inside.txt"), tmp_path).read_bytes() == DATA
    assert {path.name for path in tmp_path.iterdir()} == {"inside.txt", ".lock"}
    server.files["/a.zip"] = stream.getvalue()[:-100]
    with pytest.raises(InputError, match=r"a\.zip: a damaged zip file"):
        fetch(server.file("a.zip", None, "a.txt"), tmp_path)
    assert not (tmp_path / "a.txt").exists()


def test_a_table_becomes_the_lines_of_the_original(server, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    lines = ["", " = Title = \n", "", " Text here .\n"]
    parquet.write_table(pyarrow.table({"text": lines}), tmp_path / "a.parquet")
    path = fetch(server.file("a.parquet", None, "a.txt"), tmp_path)  # one that is there already
    assert path.read_text() == " \n = Title = \n \n Text here .\n"
    assert not server.ranges


def test_every_corpus_names_files_that_it_has(tmp_path):
    for corpus in CORPORA:
        made = [file.text or file.url.rpartition("/")[2] for file in corpus.files]
        assert len(set(made)) == len(made)
        named = re.findall(r"{folder}/(\S+)", corpus.train)
        assert set() < set(named) <= set(made)
        for file in corpus.files:
            assert file.url.startswith("https://") or fetch(file, tmp_path / corpus.name).stat().st_size


def test_an_unknown_name_suggests_one():
    assert find_corpus("TinyStories").name == "tinystories"
    with pytest.raises(UsageError, match=r"did you mean 'enwik8'\?"):
        find_corpus("enwiki8")

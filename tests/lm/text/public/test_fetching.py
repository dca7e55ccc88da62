"""Public corpora: a download continues where it was cut, is checked, and becomes text."""

import fcntl
import hashlib
import io
import random
import socket
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lm.errors import InputError, UsageError
from lm.text.public import download, fetching
from lm.text.public.catalogue import CORPORA, PublicFile, find_corpus
from lm.text.public.fetching import FetchedFile, fetch_file
from tests.lm.text.public.file_server import FileServer, serving


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(download, "PAUSES", (0.0, 0.0))
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serving() as running:
        running.files["a.txt"] = DATA
        yield running


DATA = random.Random(1).randbytes(3_000_000)

DIGEST = hashlib.sha256(DATA).hexdigest()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def get(server: FileServer, folder: Path, sha256: str | None = DIGEST) -> FetchedFile:
    return fetch_file(PublicFile(server.url("a.txt"), len(DATA), sha256), folder)


def test_a_cut_connection_is_taken_up_where_it_ended(server, tmp_path):
    server.cut_after = 1_000_000
    assert get(server, tmp_path).path.read_bytes() == DATA
    assert server.asked == ["", "bytes=1000000-", "bytes=2000000-"]


def test_a_later_call_continues_too(server, tmp_path):
    (tmp_path / "a.txt.part").write_bytes(DATA[:2_500_000])
    assert get(server, tmp_path).path.read_bytes() == DATA
    assert server.asked == ["bytes=2500000-"]


def test_a_server_without_ranges_sends_all_again(server, tmp_path):
    server.knows_ranges = False
    (tmp_path / "a.txt.part").write_bytes(DATA[:100])
    assert get(server, tmp_path).path.read_bytes() == DATA


@pytest.mark.parametrize("part", [DATA, DATA + b"and more"])
def test_a_part_that_is_whole_or_too_long(part, server, tmp_path):
    (tmp_path / "a.txt.part").write_bytes(part)
    assert get(server, tmp_path).path.read_bytes() == DATA


def test_a_busy_server_is_asked_again(server, tmp_path):
    server.failures = [503, 429]
    assert get(server, tmp_path).path.read_bytes() == DATA


def test_a_server_that_stays_cut_ends_it_and_the_part_is_kept(server, tmp_path):
    server.knows_ranges, server.cut_after = False, 1000
    with pytest.raises(InputError, match=r"a\.txt: the connection was cut, 1,000 bytes are there; the same command"):
        get(server, tmp_path)
    assert (tmp_path / "a.txt.part").read_bytes() == DATA[:1000]


def test_a_file_that_is_gone(server, tmp_path):
    with pytest.raises(InputError, match=r"b\.txt: the server answers 404 Not Found; it may have moved"):
        fetch_file(PublicFile(server.url("b.txt"), 1), tmp_path)
    assert names(tmp_path) == set()
    assert server.asked == [""]


def test_no_network(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/a.txt"
        with pytest.raises(InputError, match=r"127\.0\.0\.1 cannot be reached: .*; is there a network\?"):
            fetch_file(PublicFile(url, 1), tmp_path)
    assert names(tmp_path) == set()


def test_two_processes_do_not_mix(server, tmp_path):
    with (tmp_path / "a.txt.part").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another process is fetching"):
            get(server, tmp_path)


def test_a_file_arrives_whole_and_is_checked(server, tmp_path):
    seen: list[tuple[int, int | None]] = []
    file = PublicFile(server.url("a.txt"), len(DATA), DIGEST)
    fetched = fetch_file(file, tmp_path / "new", progress=lambda *now: seen.append(now))
    assert fetched == FetchedFile(tmp_path / "new" / "a.txt", len(DATA), DIGEST, "published", reused=False)
    assert fetched.path.read_bytes() == DATA
    assert names(fetched.path.parent) == {"a.txt", "SHA256SUMS"}
    assert seen == sorted(seen)
    assert seen[-1] == (len(DATA), len(DATA))


def test_what_is_there_is_not_fetched_again(server, tmp_path):
    get(server, tmp_path)
    server.asked.clear()
    assert get(server, tmp_path).reused
    assert server.asked == []


class TestHashes:
    def test_another_file_than_expected_is_thrown_away(self, server, tmp_path):
        with pytest.raises(InputError, match=f"not the expected file .sha256 {DIGEST}, not 00"):
            get(server, tmp_path, "00" * 32)
        assert names(tmp_path) == set()

    def test_an_unknown_hash_is_recorded_and_checked_from_then_on(self, server, tmp_path):
        first, again = get(server, tmp_path, None), get(server, tmp_path, None)
        assert (first.check, again.check) == ("first", "recorded")
        assert (tmp_path / fetching.CHECKSUMS_FILE).read_text() == f"{DIGEST}  a.txt\n"
        first.path.unlink()
        server.files["a.txt"] = b"changed at the source"
        with pytest.raises(InputError, match=f"not the expected file .*, not {DIGEST}"):
            get(server, tmp_path, None)

    @pytest.mark.parametrize("sha256", [DIGEST, None])
    def test_a_file_that_was_changed_on_the_disk(self, sha256, server, tmp_path):
        get(server, tmp_path, sha256).path.write_text("changed")
        with pytest.raises(InputError, match=r"a\.txt: not the expected file .*remove it"):
            get(server, tmp_path, sha256)

    def test_a_file_put_there_by_hand(self, server, tmp_path):
        (tmp_path / "a.txt").write_bytes(DATA)
        assert get(server, tmp_path).reused
        assert server.asked == []


class TestUnpacking:
    def zipped(self, data: bytes) -> bytes:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("inside", data)
        return stream.getvalue()

    def test_only_the_text_stays_and_the_archive_s_hash(self, server, tmp_path):
        server.files["a.zip"] = self.zipped(b"text " * 1000)
        file = PublicFile(server.url("a.zip"), 1, text="inside.txt")
        first, again = fetch_file(file, tmp_path), fetch_file(file, tmp_path)
        assert first.path.read_bytes() == b"text " * 1000
        assert (first.reused, again.reused, first.check, again.check) == (False, True, "first", "recorded")
        assert names(tmp_path) == {"inside.txt", "SHA256SUMS"}
        recorded = (tmp_path / fetching.CHECKSUMS_FILE).read_text()
        assert f"{hashlib.sha256(server.files['a.zip']).hexdigest()}  a.zip\n" in recorded

    def test_an_archive_put_there_by_hand_is_unpacked(self, server, tmp_path):
        (tmp_path / "a.zip").write_bytes(self.zipped(b"text"))
        assert fetch_file(PublicFile(server.url("a.zip"), 1, text="a.txt"), tmp_path).path.read_text() == "text"
        assert server.asked == []

    def test_a_damaged_archive_is_named(self, tmp_path):
        (tmp_path / "a.zip").write_bytes(self.zipped(DATA)[:-100])
        with pytest.raises(InputError, match=r"a\.zip: a damaged zip file"):
            fetch_file(PublicFile("http://127.0.0.1/a.zip", 1, text="a.txt"), tmp_path)
        assert not (tmp_path / "a.txt").exists()

    def test_without_pyarrow_it_is_said_before_the_download(self, server, tmp_path, monkeypatch):
        monkeypatch.setattr(fetching.importlib.util, "find_spec", lambda _: None)
        with pytest.raises(InputError, match=r"a\.parquet: .*pip install pyarrow"):
            fetch_file(PublicFile(server.url("a.parquet"), 1, text="a.txt"), tmp_path)
        assert server.asked == []


def test_a_table_becomes_the_lines_of_the_original(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    lines = ["", " = Title = \n", "", " Text here .\n"]
    parquet.write_table(pyarrow.table({"text": lines}), tmp_path / "a.parquet")
    fetching.unpack(tmp_path / "a.parquet", tmp_path / "a.txt")
    assert (tmp_path / "a.txt").read_text() == " \n = Title = \n \n Text here .\n"
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-9])
    with pytest.raises(InputError, match=r"b\.parquet: a damaged Parquet file"):
        fetching.unpack(tmp_path / "b.parquet", tmp_path / "b.txt")


def test_lines_without_text_have_a_space():
    assert fetching.restore_wikitext(["", " = A = \n", ""]) == " \n = A = \n \n"


def test_every_corpus_can_be_had_in_one_way():
    assert len({corpus.name for corpus in CORPORA}) == len(CORPORA)
    for corpus in CORPORA:
        made = [file.text or file.name for file in corpus.files] or [Path(name).name for name in corpus.shipped]
        assert len(set(made)) == len(made) > 0
        assert bool(corpus.files) != bool(corpus.shipped)
        named = (*corpus.train, corpus.validation or "")
        used = [word.removeprefix("{folder}/") for word in named if word.startswith("{folder}/")]
        assert used
        assert set(used) <= set(made)
        for file in corpus.files:
            assert file.url.startswith("https://")
            assert file.size > 0
            assert file.sha256 is None or len(bytes.fromhex(file.sha256)) == 32


def test_an_unknown_name_suggests_one():
    assert find_corpus("TinyStories").name == "tinystories"
    with pytest.raises(UsageError, match=r"did you mean 'enwik8'\?"):
        find_corpus("enwiki8")

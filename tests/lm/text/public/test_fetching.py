"""What is there is checked and not fetched again; archives become texts."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import pytest

from lm.errors import InputError
from lm.text.public import fetching, unpacking
from lm.text.public.catalogue import PublicFile
from lm.text.public.fetching import FetchedFile, fetch_file
from tests.lm.text.public.fetched import DATA, DIGEST, get, names
from tests.lm.text.public.file_server import FileServer


def test_a_file_arrives_whole_and_is_checked(server: FileServer, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    file = PublicFile(server.url("a.txt"), len(DATA), DIGEST)
    fetched = fetch_file(file, tmp_path / "new", progress=lambda *now: seen.append(now))
    assert fetched == FetchedFile(tmp_path / "new" / "a.txt", len(DATA), DIGEST, "published", reused=False)
    assert fetched.path.read_bytes() == DATA
    assert names(fetched.path.parent) == {"a.txt", "SHA256SUMS"}
    assert seen == sorted(seen)
    assert seen[-1] == (len(DATA), len(DATA))


def test_what_is_there_is_not_fetched_again(server: FileServer, tmp_path: Path) -> None:
    get(server, tmp_path)
    server.asked.clear()
    assert get(server, tmp_path).reused
    assert server.asked == []


class TestHashes:
    def test_another_file_than_expected_is_thrown_away(self, server: FileServer, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=f"a.txt: not what was expected .sha256 {DIGEST}, not 00"):
            get(server, tmp_path, "00" * 32)
        assert names(tmp_path) == set()

    def test_an_unknown_hash_is_recorded_and_checked_from_then_on(self, server: FileServer, tmp_path: Path) -> None:
        first, again = get(server, tmp_path, None), get(server, tmp_path, None)
        assert (first.check, again.check) == ("first", "recorded")
        assert (tmp_path / fetching.CHECKSUMS_FILE).read_text() == f"{DIGEST}  a.txt\n"
        first.path.unlink()
        server.files["a.txt"] = b"changed at the source"
        with pytest.raises(InputError, match=f"not what was expected .*, not {DIGEST}"):
            get(server, tmp_path, None)

    @pytest.mark.parametrize("sha256", [DIGEST, None])
    def test_a_file_that_was_changed_on_the_disk(self, sha256: str | None, server: FileServer, tmp_path: Path) -> None:
        get(server, tmp_path, sha256).path.write_text("changed")
        with pytest.raises(InputError, match=r"a\.txt: not the file that was fetched .*remove it"):
            get(server, tmp_path, sha256)

    def test_a_file_put_there_by_hand(self, server: FileServer, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_bytes(DATA)
        assert get(server, tmp_path).reused
        assert server.asked == []


class TestUnpacking:
    def zipped(self, data: bytes) -> bytes:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("inside", data)
        return stream.getvalue()

    def test_only_the_text_stays_and_the_archive_s_hash(self, server: FileServer, tmp_path: Path) -> None:
        server.files["a.zip"] = self.zipped(b"text " * 1000)
        file = PublicFile(server.url("a.zip"), 1, text="inside.txt")
        first, again = fetch_file(file, tmp_path), fetch_file(file, tmp_path)
        assert first.path.read_bytes() == b"text " * 1000
        assert (first.reused, again.reused, first.check, again.check) == (False, True, "first", "recorded")
        assert names(tmp_path) == {"inside.txt", "SHA256SUMS"}
        recorded = (tmp_path / fetching.CHECKSUMS_FILE).read_text()
        assert f"{hashlib.sha256(server.files['a.zip']).hexdigest()}  a.zip\n" in recorded

    def test_an_archive_put_there_by_hand_is_unpacked(self, server: FileServer, tmp_path: Path) -> None:
        (tmp_path / "a.zip").write_bytes(self.zipped(b"text"))
        assert fetch_file(PublicFile(server.url("a.zip"), 1, text="a.txt"), tmp_path).path.read_text() == "text"
        assert server.asked == []

    def test_a_damaged_archive_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "a.zip").write_bytes(self.zipped(DATA)[:-100])
        with pytest.raises(InputError, match=r"a\.zip: a damaged zip file"):
            fetch_file(PublicFile("http://127.0.0.1/a.zip", 1, text="a.txt"), tmp_path)
        assert not (tmp_path / "a.txt").exists()

    def test_without_pyarrow_it_is_said_before_the_download(
        self, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(unpacking.importlib.util, "find_spec", lambda _: None)
        with pytest.raises(InputError, match=r"a\.parquet: .*pip install pyarrow"):
            fetch_file(PublicFile(server.url("a.parquet"), 1, text="a.txt"), tmp_path)
        assert server.asked == []

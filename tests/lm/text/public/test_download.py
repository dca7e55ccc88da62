"""A download continues where it was cut."""

from __future__ import annotations

import fcntl
import socket
from pathlib import Path

import pytest

from lm.errors import InputError
from lm.text.public.catalogue import PublicFile
from lm.text.public.fetching import fetch_file
from tests.lm.text.public.fetched import DATA, get, names
from tests.lm.text.public.file_server import FileServer


def test_a_cut_connection_is_taken_up_where_it_ended(server: FileServer, tmp_path: Path) -> None:
    server.cut_after = 1_000_000
    assert get(server, tmp_path).path.read_bytes() == DATA
    assert server.asked == ["", "bytes=1000000-", "bytes=2000000-"]


def test_a_later_call_goes_on_too(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "a.txt.part").write_bytes(DATA[:2_500_000])
    assert get(server, tmp_path).path.read_bytes() == DATA
    assert server.asked == ["bytes=2500000-"]


def test_a_server_without_ranges_sends_all_again(server: FileServer, tmp_path: Path) -> None:
    server.knows_ranges = False
    (tmp_path / "a.txt.part").write_bytes(DATA[:100])
    assert get(server, tmp_path).path.read_bytes() == DATA


@pytest.mark.parametrize("part", [DATA, DATA + b"and more"])
def test_a_part_that_is_whole_or_too_long(part: bytes, server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "a.txt.part").write_bytes(part)
    assert get(server, tmp_path).path.read_bytes() == DATA


def test_a_busy_server_is_asked_again(server: FileServer, tmp_path: Path) -> None:
    server.failures = [503, 429]
    assert get(server, tmp_path).path.read_bytes() == DATA


def test_a_server_that_stays_cut_ends_it_and_the_part_is_kept(server: FileServer, tmp_path: Path) -> None:
    server.knows_ranges, server.cut_after = False, 1000
    with pytest.raises(InputError, match=r"a\.txt: the connection was cut, 1,000 bytes are there; the same command"):
        get(server, tmp_path)
    assert (tmp_path / "a.txt.part").read_bytes() == DATA[:1000]


def test_a_file_that_is_gone(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"b\.txt: the server answers 404 Not Found; it may have moved"):
        fetch_file(PublicFile(server.url("b.txt"), 1), tmp_path)
    assert names(tmp_path) == set()
    assert server.asked == [""]


def test_no_network(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/a.txt"
        with pytest.raises(InputError, match=r"127\.0\.0\.1 cannot be reached: .*; is there a network\?"):
            fetch_file(PublicFile(url, 1), tmp_path)
    assert names(tmp_path) == set()


def test_two_processes_do_not_mix(server: FileServer, tmp_path: Path) -> None:
    with (tmp_path / "a.txt.part").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another process is fetching"):
            get(server, tmp_path)

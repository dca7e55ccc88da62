"""Files are replaced whole, and what is no plain file stays what it is."""

import errno
import os
import shutil
import stat
import threading

import pytest

from lm import files
from lm.errors import InputError
from tests.lm.full_disk import full_disk


def test_a_link_stays_one_and_what_it_leads_to_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to(tmp_path / "there" / "real.txt")
    (tmp_path / "dangling.txt").symlink_to(tmp_path / "there" / "new.txt")
    for name, real in (("link.txt", "real.txt"), ("dangling.txt", "new.txt")):
        files.replace_text(tmp_path / name, "new")
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "there" / real).read_text() == "new"
    assert {path.name for path in (tmp_path / "there").iterdir()} == {"real.txt", "new.txt"}


def test_a_pipe_is_written_to(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    files.replace_text(pipe, "text")
    reader.join(timeout=900)
    assert read == ["text"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_file_keeps_its_permissions(tmp_path):
    path = tmp_path / "secret.txt"
    path.write_text("old")
    path.chmod(0o600)
    files.replace_text(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("old")
    with full_disk(after=100), pytest.raises(OSError, match=r"File too large: '.*config\.json'"):
        files.replace_text(path, "new" * 1000)
    assert path.read_text() == "old"
    assert [found.name for found in tmp_path.iterdir()] == ["config.json"]


def test_a_file_is_on_the_disk_before_it_is_renamed_and_its_folder_after(tmp_path, disk):
    folder = tmp_path / "of results"
    files.replace_text(folder / "a.txt", "whole\n")
    assert (folder / "a.txt").read_text() == "whole\n"
    fresh = disk.entries[0][1]
    assert fresh != "a.txt"
    assert disk.entries == [("sync", fresh), ("rename", f"{fresh} -> a.txt"), ("sync", "of results")]


def test_a_new_file_takes_its_name_once_it_is_whole(tmp_path):
    place = tmp_path / "below" / "new.bin"
    place.parent.mkdir()
    with files.atomic_new(place) as fresh:
        fresh.write_bytes(b"text")
        assert not place.exists()
    assert place.read_bytes() == b"text"
    assert [path.name for path in place.parent.iterdir()] == ["new.bin"]
    with pytest.raises(InputError, match="already exists"), files.atomic_new(place):
        pass


def test_a_new_folder_takes_its_name_once_it_is_whole(tmp_path):
    place = tmp_path / "below" / "new"
    place.mkdir(parents=True)  # an empty one may stand there
    with files.atomic_new(place) as fresh:
        fresh.mkdir()
        (fresh / "a").write_text("text")
        assert not any(place.iterdir())
    assert (place / "a").read_text() == "text"
    with pytest.raises(InputError, match="already exists"), files.atomic_new(place):
        pass
    with (
        full_disk(after=1),
        pytest.raises(OSError, match="File too large"),
        files.atomic_new(place.with_name("other")) as fresh,
    ):
        shutil.copytree(place, fresh)
    assert [path.name for path in place.parent.iterdir()] == ["new"]


def test_a_file_has_a_second_name_or_a_copy(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("new")
    for name in ("linked", "copied"):
        (tmp_path / name).write_text("old")
        files.link_or_copy(tmp_path / "a", tmp_path / name)
        files.link_or_copy(tmp_path / "a", tmp_path / name)  # of which POSIX leaves both names where they are
        assert (tmp_path / name).read_text() == "new"
        assert (tmp_path / name).samefile(tmp_path / "a") is (name == "linked")
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(errno.EPERM, "no links")))
    with full_disk(after=1), pytest.raises(OSError, match="File too large"):
        files.link_or_copy(tmp_path / "linked", tmp_path / "copied")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "linked", "copied"}

"""Files are replaced whole, and what is no plain file stays what it is."""

import errno
import json
import math
import os
import pwd
import re
import stat
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lm import files
from lm.corpus.shards import ArrayWriter
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


def test_numbers_that_json_does_not_have_are_null(tmp_path):
    values = {"a": math.nan, "b": [math.inf, 1.5, (-math.inf, "x")], "c": {"d": math.nan, "ü": None}, "e": True}
    expected = {"a": None, "b": [None, 1.5, [None, "x"]], "c": {"d": None, "ü": None}, "e": True}
    files.write_json(tmp_path / "values.json", values)
    for text in (files.to_json(values), (tmp_path / "values.json").read_text(encoding="utf-8")):
        assert json.loads(text, parse_constant=pytest.fail) == expected
        assert "ü" in text
    assert files.to_json({"a": [1.5, 2, "ü"]}) == json.dumps({"a": [1.5, 2, "ü"]}, ensure_ascii=False)


def test_a_device_stays_one(tmp_path):
    """By way of a link, since a test that fails as root must not destroy the machine's own."""
    (tmp_path / "null").symlink_to(os.devnull)
    files.replace_text(tmp_path / "null", "text")
    assert (tmp_path / "null").is_symlink()
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)


def test_a_pipe_is_written_to(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    files.replace_text(pipe, "text")
    reader.join(timeout=900)
    assert read == ["text"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="this system has no /dev/stdout")
@pytest.mark.parametrize("into", ["pipe", "file"])
def test_standard_output_is_written_to_in_order(tmp_path, into):
    link = tmp_path / "stdout"  # as with the device above
    link.symlink_to("/dev/stdout")
    code = (
        "from pathlib import Path; from lm import files\n"
        f"print('before'); files.replace_text(Path({str(link)!r}), 'text\\n'); print('after')"
    )
    with (tmp_path / "out").open("w+") as file:
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE if into == "pipe" else file,
                              check=True, timeout=900, text=True)  # fmt: skip
        file.seek(0)
        assert (done.stdout if into == "pipe" else file.read()) == "before\ntext\nafter\n"
    assert link.is_symlink()


def test_a_file_keeps_its_permissions(tmp_path):
    path = tmp_path / "secret.txt"
    path.write_text("old")
    path.chmod(0o600)
    files.replace_text(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("write", [files.replace_text, lambda path, text: files.write_json(path, {"text": text})])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, write):
    path = tmp_path / "config.json"
    path.write_text("old")
    with full_disk(after=100), pytest.raises(OSError, match=r"File too large: '.*config\.json'"):
        write(path, "new" * 1000)
    assert path.read_text() == "old"
    assert [found.name for found in tmp_path.iterdir()] == ["config.json"]


def test_a_file_is_on_the_disk_before_it_is_renamed_and_its_folder_after(tmp_path, disk):
    folder = tmp_path / "of results"
    files.replace_text(folder / "a.txt", "whole\n")
    assert (folder / "a.txt").read_text() == "whole\n"
    fresh = disk.entries[0][1]
    assert fresh != "a.txt"
    assert disk.entries == [("sync", fresh), ("rename", f"{fresh} -> a.txt"), ("sync", "of results")]


def test_json_is_waited_for(tmp_path, disk):
    files.write_json(tmp_path / "a.json", {"ü": 1})
    assert [what for what, _ in disk.entries] == ["sync", "rename", "sync"]
    assert files.read_json(tmp_path / "a.json") == {"ü": 1}
    assert "ü" in (tmp_path / "a.json").read_text(encoding="utf-8")


def test_what_fails_on_the_way_leaves_the_old_file_alone(tmp_path, disk):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), files.atomic_write_text(path) as file:
        file.write("half of the new" + "!" * (1 // 0))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    assert disk.entries == []


def test_bytes_are_replaced_as_text_is(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(b"old")
    with full_disk(after=100), pytest.raises(OSError, match=r"File too large: '.*a\.png'"):  # noqa: SIM117
        with files.atomic_write_bytes(path) as file:
            file.write(b"new" * 1000)
    assert path.read_bytes() == b"old"
    with files.atomic_write_bytes(path) as file:
        file.write(b"\xffnew\r\n")
    assert path.read_bytes() == b"\xffnew\r\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_needs_a_place(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "new", tmp_path / "of" / "new" / "folders", tmp_path / "file", Path(os.devnull)):
        files.check_writable(path)
    with pytest.raises(InputError, match="is a folder; name a file to write"):
        files.replace_text(tmp_path, "text")
    with pytest.raises(InputError, match=r"file: is a file, not a folder; choose another place"):
        files.replace_text(tmp_path / "file" / "new", "text")
    with pytest.raises(InputError, match=r"file/of: cannot be made, since .*/file is a file; choose another place"):
        files.make_folder(tmp_path / "file" / "of")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_of_somebody_else_is_no_place(tmp_path):
    """In a process of its own, whose rights to write are taken from it."""
    (tmp_path / "theirs").mkdir(mode=0o555)
    code = (
        "import os, pathlib\nfrom lm import files\nfrom lm.errors import InputError\n"
        "if os.getuid() == 0:\n    os.setgroups([])\n    os.setuid(65534)\n"
        "for name in ('', 'new'):\n    try:\n        files.check_folder(pathlib.Path('theirs') / name)\n"
        "    except InputError as error:\n        print(error)\n"
    )
    tmp_path.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, stdout=subprocess.PIPE,
                          check=True, timeout=900, text=True)  # fmt: skip
    here, new = done.stdout.splitlines()
    assert here == "theirs: cannot be written to; choose another place"
    assert re.fullmatch(r"theirs/new: cannot be made, since theirs cannot be written to; choose another place", new)


def test_json_too_deep_to_read_is_told_of(tmp_path):
    (tmp_path / "a.json").write_text("[" * 200_000)
    with pytest.raises(InputError, match=r"a\.json: not JSON"):
        files.read_json(tmp_path / "a.json")


def test_what_is_waited_for_does_not_stay_open(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    opened = len(os.listdir("/dev/fd"))  # noqa: PTH208 (names alone)
    for path in (tmp_path / "a.txt", tmp_path):
        files.sync(path)
    assert len(os.listdir("/dev/fd")) == opened  # noqa: PTH208


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({"LM_CACHE": "/a"}, "/a"), ({"XDG_CACHE_HOME": "/b"}, "/b/lm"), ({"HOME": "/c"}, "/c/.cache/lm")],
)
def test_the_cache_is_where_the_environment_says(variables, expected, monkeypatch):
    for name in ("LM_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert files.cache_root() == Path(expected)


def test_a_user_without_a_home_is_told_to_choose_a_cache(monkeypatch):
    """As in a container whose user has no entry in the system's list."""

    def nobody(_uid):
        raise KeyError

    for name in ("LM_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    for asked in (files.cache_root, files.check_cache):
        with pytest.raises(InputError, match=r"^this user has no home folder for the cache: set LM_CACHE to another"):
            asked()


def test_a_cache_that_cannot_be_is_told_with_the_variable_that_moves_it(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(InputError, match=r"below: cannot be made, .* choose another place \(LM_CACHE\)$"):
        files.check_cache()
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "new" / "below"))
    files.check_cache()
    assert (tmp_path / "new" / "below").is_dir()


def test_a_folder_that_the_system_will_not_make_is_told(tmp_path, monkeypatch):
    def full(*_args, **_flags):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(InputError, match="new: cannot be made: No space left on device; choose another place$"):
        files.make_folder(tmp_path / "new")


def test_a_new_file_takes_its_name_once_it_is_whole(tmp_path):
    place = tmp_path / "below" / "new.bin"
    with files.atomic_new_file(place) as fresh:
        fresh.write_bytes(b"text")
        assert not place.exists()
    assert place.read_bytes() == b"text"
    assert [path.name for path in place.parent.iterdir()] == ["new.bin"]
    with pytest.raises(InputError, match="new.bin: already exists; choose a new file"), files.atomic_new_file(place):
        pass


def test_a_new_folder_takes_its_name_once_it_is_whole(tmp_path):
    place = tmp_path / "below" / "new"
    place.mkdir(parents=True)  # an empty one may stand there
    with files.atomic_new_folder(place) as fresh:
        (fresh / "a").write_text("text")
        assert not any(place.iterdir())
    assert (place / "a").read_text() == "text"
    assert [path.name for path in place.parent.iterdir()] == ["new"]
    with (
        pytest.raises(InputError, match="new: is not empty; choose an empty or a new folder"),
        files.atomic_new_folder(place),
    ):
        pass


@pytest.mark.parametrize("kind", ["atomic_new_file", "atomic_new_folder"])
def test_what_fails_leaves_nothing_behind(kind, tmp_path):
    def fail() -> None:
        with getattr(files, kind)(tmp_path / "new") as fresh:
            path = fresh if kind == "atomic_new_file" else fresh / "a"
            path.write_text("a beginning")
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 (its own)
        fail()
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("is_known", [True, False])
def test_macos_waits_for_the_disk_and_not_only_for_its_cache(tmp_path, monkeypatch, is_known):
    """Where the file system cannot do that, as one over a network, `fsync` has to do."""
    asked, synced = [], []

    def control(descriptor: int, command: int) -> None:
        asked.append(command)
        if not is_known:
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(files, "fcntl", SimpleNamespace(fcntl=control, F_FULLFSYNC=51))
    monkeypatch.setattr(os, "fsync", synced.append)
    files.replace_text(tmp_path / "a.txt", "whole\n")
    writer = ArrayWriter(tmp_path / "a.npy", dtype=np.uint16)
    writer.append(np.arange(3))
    writer.close()
    assert asked == [51] * 3
    assert len(synced) == (0 if is_known else 3)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system does not say what is open")
def test_no_descriptor_is_left_open(tmp_path):
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        files.replace_text(tmp_path / "a.txt", "whole\n")
        files.link_or_copy(tmp_path / "a.txt", tmp_path / "b.txt")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_file_has_a_second_name_or_a_copy(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("new")
    for name in ("linked", "copied"):
        (tmp_path / name).write_text("old")
        files.link_or_copy(tmp_path / "a", tmp_path / name)
        files.link_or_copy(tmp_path / "a", tmp_path / name)  # of which POSIX leaves both names where they are
        assert (tmp_path / name).read_text() == "new"
        assert (tmp_path / name).samefile(tmp_path / "a") is (name == "linked")
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(errno.EPERM, "no links")))
    with full_disk(after=1), pytest.raises(OSError, match=r"File too large: '.*copied'"):
        files.link_or_copy(tmp_path / "linked", tmp_path / "copied")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "linked", "copied"}

"""A lock keeps other processes out, and ends with the process that holds it."""

import subprocess
import sys
from pathlib import Path

import pytest

from lm import locks
from lm.locks import LockFile
from tests.lm.windows import as_on_windows

HOLD = (
    "import sys; from pathlib import Path; from lm.locks import LockFile\n"
    "lock = LockFile(Path(sys.argv[1])); lock.acquire(); print('held', flush=True); sys.stdin.read()"
)


@pytest.fixture
def holder(tmp_path):
    """Another process, which holds the lock until it is killed."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_dead_holder_blocks_nobody(tmp_path, holder):
    lock = LockFile(tmp_path / ".lock")
    with pytest.raises(BlockingIOError):
        lock.acquire()
    holder.kill()
    holder.wait()
    lock.acquire()


def test_it_is_released_once_and_held_once(tmp_path):
    mine, other = LockFile(tmp_path / "folder" / ".lock"), LockFile(tmp_path / "folder" / ".lock")
    mine.acquire()
    mine.acquire()
    with pytest.raises(BlockingIOError):
        other.acquire()
    mine.release()
    mine.release()
    other.acquire()
    del other
    mine.acquire()


def test_a_system_without_locks_continues(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "fcntl", None)
    LockFile(tmp_path / ".lock").acquire()
    with Path(tmp_path / ".lock").open() as file:
        assert not locks.try_lock(file.fileno())
    LockFile(tmp_path / ".lock").acquire()


def test_windows_locks_files_too(tmp_path, monkeypatch):
    """Far behind the end, since nobody else can read or write what is locked; the file stays where it was."""
    of_windows = as_on_windows(monkeypatch, locks)
    mine, other = LockFile(tmp_path / ".lock"), LockFile(tmp_path / ".lock")
    mine.acquire()
    with pytest.raises(BlockingIOError):
        other.acquire()
    mine.release()
    other.acquire()
    with (tmp_path / "part").open("ab") as file:
        file.write(b"abc")
        file.flush()
        assert locks.try_lock(file.fileno())
        assert file.tell() == 3
        file.write(b"def")
    assert (tmp_path / "part").read_bytes() == b"abcdef"
    assert of_windows.places == {2**31 - 2}

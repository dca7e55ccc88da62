"""A lock keeps other processes out, and ends with the process that holds it."""

import subprocess
import sys

import pytest

from lm.locks import LockFile

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

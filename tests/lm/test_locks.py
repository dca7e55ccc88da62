"""A lock keeps other processes out, and ends with the process that holds it."""

import subprocess
import sys

import pytest

from lm.errors import InputError
from lm.run_folder import RunLock

HOLD = (
    "import sys; from pathlib import Path; from lm.run_folder import RunLock\n"
    "lock = RunLock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
)


def test_a_dead_holder_blocks_nobody(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(InputError, match="another process is training"):
            RunLock(tmp_path)
        process.kill()
    RunLock(tmp_path).close()


def test_it_is_held_until_it_is_closed_or_forgotten(tmp_path):
    lock = RunLock(tmp_path / "folder")
    with pytest.raises(InputError):
        RunLock(tmp_path / "folder")
    lock.close()
    again = RunLock(tmp_path / "folder")
    del again
    with RunLock(tmp_path / "folder"):
        pass

"""Training continues whatever becomes of its log."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lm.run_folder import find_checkpoint, load_state
from tests.forked import start
from tests.system.conftest import SMALL
from tests.waiting import SECONDS

LM = [sys.executable, "-m", "cli"]
FEW = ["--steps", "12", "--evaluate-every", "0"]


@pytest.fixture
def arguments(place, tmp_path) -> list[str]:
    return ["train", str(place / "text.txt"), "-o", str(tmp_path / "run"), *SMALL]


@contextlib.contextmanager
def started(arguments: list[str], **how) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a session of its own, which is killed if it is still there in the end."""
    with subprocess.Popen([*LM, *arguments], start_new_session=True, **how) as process:
        try:
            yield process
        finally:
            process.kill()


def saved_step(folder: Path) -> int:
    return load_state(find_checkpoint(folder, which="last")).step


def test_a_reader_that_ends_does_not_end_training(arguments, tmp_path):
    """As in `lm train … 2>&1 | head -1`."""
    reading, writing = os.pipe()
    with start(*arguments, *FEW, stdout=writing, stderr=writing) as process:
        os.close(writing)
        with os.fdopen(reading, "rb") as lines:
            assert lines.readline()
        assert process.wait() == 0
    assert saved_step(tmp_path / "run") == 12


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_disk_under_the_log_does_not_end_training(arguments, tmp_path):
    with Path("/dev/full").open("wb") as full, started([*arguments, *FEW], stderr=full) as process:
        assert process.wait(SECONDS) == 0
    assert saved_step(tmp_path / "run") == 12


@pytest.mark.slow
def test_a_summary_that_nobody_reads_is_an_error_after_the_run_is_saved(arguments, tmp_path):
    with started([*arguments, *FEW, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read().decode()
        assert process.wait(SECONDS) == 1
    assert "Traceback" not in said
    assert saved_step(tmp_path / "run") == 12

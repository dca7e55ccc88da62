"""Training continues, or stops saved, whatever becomes of its terminal and of its log."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lm.run_folder import find_checkpoint, load_state
from tests.forked import Forked, run_main, start
from tests.system.conftest import SMALL
from tests.waiting import SECONDS, logged, wait_for_steps, wait_until

pytestmark = pytest.mark.usefixtures("default_hang_up")

LM = [sys.executable, "-m", "cli"]
FEW, MANY = ["--steps", "12", "--evaluate-every", "0"], ["--steps", "1000000", "--evaluate-every", "0"]


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


def test_a_terminal_that_is_closed_stops_training_saved(arguments, tmp_path):
    import pty

    ours, theirs = pty.openpty()
    with Forked(run_on_terminal, *arguments, *MANY, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        _read_until_step(ours, tmp_path / "run")
        os.close(ours)
        assert process.wait() == 129
    assert saved_step(tmp_path / "run") == logged(tmp_path / "run")


def run_on_terminal(*arguments: str) -> None:
    """Run `lm …` as the leader of a session whose terminal is stdin."""
    import fcntl
    import termios

    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    run_main(*arguments)


def _read_until_step(terminal: int, folder: Path) -> None:
    """Read what is drawn, so that the drawing never waits, until some steps have been taken."""
    os.set_blocking(terminal, False)

    def has_steps() -> bool:
        with contextlib.suppress(BlockingIOError):
            os.read(terminal, 1 << 16)
        return logged(folder) >= 3

    wait_until(has_steps)


@pytest.mark.slow
@pytest.mark.parametrize("number", ["SIGHUP", "SIGTERM"])
def test_a_signal_stops_training_saved_though_a_hang_up_follows(arguments, tmp_path, number):
    """A shell and the system may both send SIGHUP, and service managers send one right after SIGTERM."""
    with started([*arguments, *MANY], stderr=subprocess.DEVNULL) as process:
        wait_for_steps(tmp_path / "run", 3)
        for each in (number, "SIGHUP"):
            process.send_signal(getattr(signal, each))
        assert process.wait(SECONDS) == 128 + getattr(signal, number)
    assert saved_step(tmp_path / "run") >= 3


@pytest.mark.slow
def test_nohup_trains_on(arguments, tmp_path):
    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with started([*arguments, *MANY], stderr=subprocess.DEVNULL, preexec_fn=ignore) as process:
        wait_for_steps(tmp_path / "run", 3)
        process.send_signal(signal.SIGHUP)
        wait_for_steps(tmp_path / "run", logged(tmp_path / "run") + 20)
        process.terminate()
        assert process.wait(SECONDS) == 143


@pytest.mark.slow
def test_a_hang_up_before_the_first_step_ends_the_command(place, tmp_path):
    """While it waits for its text."""
    with started(["train", "-", "-o", str(tmp_path / "run"), *SMALL], stdin=subprocess.PIPE,
                 stderr=subprocess.PIPE) as process:  # fmt: skip
        time.sleep(0.01)
        wait_until(lambda: not _ignores_or_dies_of_a_hang_up(process.pid))
        process.send_signal(signal.SIGHUP)
        assert process.wait(SECONDS) == 129
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert not (tmp_path / "run").exists()


def _ignores_or_dies_of_a_hang_up(pid: int) -> bool:
    caught = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt:"))
    return not int(caught.split()[1], 16) >> (signal.SIGHUP - 1) & 1


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

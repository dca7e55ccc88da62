"""Work shared out among processes comes back in order, and an end of any of them is noticed by the others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lm.errors import InputError
from lm.processes import cores, in_order


def test_results_are_in_the_order_of_the_items_whatever_each_takes() -> None:
    found = list(in_order(map_slowly, [0.2, 0.0, 0.1], processes=2))
    assert [seconds for seconds, _, _ in found] == [0.2, 0.0, 0.1]
    processes = {process for _, process, _ in found}
    assert len(processes) == 2
    assert os.getpid() not in processes
    assert not any(torch for _, _, torch in found)


def map_slowly(seconds: float) -> tuple[float, int, bool]:
    """What was asked for, by which process, and whether it has loaded what its caller has."""
    time.sleep(seconds)
    return seconds, os.getpid(), "torch" in sys.modules


def test_one_process_is_this_one() -> None:
    assert [process for _, process, _ in in_order(map_slowly, [0.0], processes=1)] == [os.getpid()]


def test_variables_are_set_and_what_is_printed_is_no_result(capfd: pytest.CaptureFixture[str]) -> None:
    assert list(in_order(os.getenv, ["PIECES"], processes=2, environment={"PIECES": "7"})) == ["7"]
    assert list(in_order(print, ["loud"], processes=2)) == [None]
    out, err = capfd.readouterr()
    assert (out, err) == ("", "loud\n")


def test_an_error_is_raised_as_it_is() -> None:
    with pytest.raises(InputError, match="no such thing"):
        list(in_order(refuse, ["no such thing"], processes=2))


def refuse(message: str) -> None:
    raise InputError(message)


def test_a_killed_process_is_told_of() -> None:
    with pytest.raises(InputError, match=r"has ended \(exit code -9\), perhaps because memory ran out; .*--processes"):
        list(in_order(kill_oneself, [signal.SIGKILL], processes=2))


def kill_oneself(number: int) -> None:
    os.kill(os.getpid(), number)


def test_who_stops_asking_ends_them_at_once() -> None:
    began = time.monotonic()
    found = in_order(map_slowly, [0.0, 60.0, 60.0], processes=2)
    process = next(found)[1]
    found.close()
    assert time.monotonic() - began < 30
    assert not is_alive(process)


PARENT = """
import sys
from lm.processes import in_order
from tests.lm.test_processes import map_slowly
for seconds, process, _ in in_order(map_slowly, [0.0, 0.0, 60.0, 60.0], processes=2):
    print(process, flush=True)
"""


def test_they_end_with_their_parent_however_that_ends() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        processes = [int(parent.stdout.readline()) for _ in range(2)]
        parent.kill()
    deadline = time.monotonic() + 30
    while any(map(is_alive, processes)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{process}/stat")  # of one that nobody has waited for, where the system tells
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_there_is_a_processor() -> None:
    assert cores() >= 1

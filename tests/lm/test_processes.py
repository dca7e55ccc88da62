"""Work shared out among processes comes back in order, and an end of any of them is noticed by the others."""

import os
import signal
import subprocess
import sys

import pytest

from lm.errors import InputError
from lm.processes import map_in_processes
from tests.lm.worker_functions import kill_oneself, map_slowly, refuse
from tests.waiting import is_alive, wait_until


def test_results_are_in_the_order_of_the_items_whatever_each_takes():
    found = list(map_in_processes(map_slowly, [0.2, 0.0, 0.1], processes=2))
    assert [seconds for seconds, _, _ in found] == [0.2, 0.0, 0.1]
    assert os.getpid() not in {process for _, process, _ in found}
    assert not any(torch for _, _, torch in found)


def test_variables_are_set_and_what_is_printed_is_no_result(capfd, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    assert list(map_in_processes(os.getenv, ["PIECES"], processes=2, environment={"PIECES": "7"})) == ["7"]
    assert list(map_in_processes(print, ["loud"], processes=2)) == [None]
    out, err = capfd.readouterr()
    assert (out, err) == ("", "loud\n")


def test_an_error_is_raised_as_it_is():
    with pytest.raises(InputError, match="no such thing"):
        list(map_in_processes(refuse, ["no such thing"], processes=2))


def test_a_killed_process_is_told_of():
    with pytest.raises(InputError, match="has ended, perhaps because memory ran out"):
        list(map_in_processes(kill_oneself, [signal.SIGKILL], processes=2))


def test_who_stops_asking_ends_them_at_once():
    found = map_in_processes(map_slowly, [0.0, 1e6, 1e6], processes=2)
    process = next(found)[1]
    found.close()
    assert not is_alive(process)


PARENT = """
import sys
from lm.processes import map_in_processes
from tests.lm.worker_functions import map_slowly
for seconds, process, _ in map_in_processes(map_slowly, [0.0, 0.0, 1e6, 1e6], processes=2):
    print(process, flush=True)
"""


def test_they_end_with_their_parent_however_that_ends():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        processes = [int(parent.stdout.readline()) for _ in range(2)]
        parent.kill()
    wait_until(lambda: not any(map(is_alive, processes)))

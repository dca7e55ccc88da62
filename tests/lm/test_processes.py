import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import pytest

from lm.errors import InputError, LMError
from lm.processes import Workers, in_order, mapped, numbered


def double(number: int) -> int:
    time.sleep(0.002 * (number % 3))
    return 2 * number


def doubling():
    return numbered(double)


def pairing(items):
    """Two items make a result, and the last may be alone."""
    held = []
    for item in items:
        held.append(item)
        if len(held) == 2:
            yield tuple(held)
            held = []
    if held:
        yield tuple(held)


def made_pairing():
    return pairing


def failing(kind: str):
    def work(items):
        for item in items:
            if item == 3:
                if kind == "input":
                    raise InputError("corpus.txt: line 4 is wrong")
                if kind == "bug":
                    raise ValueError("no good", lambda: None)
                os.kill(os.getpid(), signal.SIGKILL)
            yield item

    return work


def unprepared():
    raise InputError("runs/novel: no such run")


def test_results_come_in_the_order_of_the_items_and_workers_work_again():
    with Workers(doubling, 3) as workers:
        double_all = mapped(workers)
        assert list(double_all(range(50))) == list(range(0, 100, 2))
        assert list(double_all([])) == []
        assert list(double_all(range(3))) == [0, 2, 4]


def test_a_worker_may_make_as_many_results_of_items_as_it_likes():
    with Workers(made_pairing, 2) as workers:
        results = list(workers.share(range(11)))
    assert sorted(number for result in results for number in result) == list(range(11))


def test_items_are_read_only_as_they_are_wanted():
    read = []
    with Workers(doubling, 2) as workers:
        next(workers.share((number, read.append(number) or number) for number in range(1000)))
        assert len(read) <= 6


def test_the_error_of_a_worker_is_raised_as_it_is():
    with (
        pytest.raises(InputError, match=r"^corpus.txt: line 4 is wrong$"),
        Workers(partial(failing, "input"), 2) as workers,
    ):
        list(workers.share(range(10)))
    with pytest.raises(InputError, match="no such run"), Workers(unprepared, 2) as workers:
        list(workers.share(range(10)))
    with (
        pytest.raises(LMError, match="a worker process failed: ValueError: .*no good"),
        Workers(partial(failing, "bug"), 1) as workers,
    ):
        list(workers.share(range(10)))


def test_the_death_of_a_worker_is_an_error_and_ends_the_others():
    with Workers(partial(failing, "death"), 2) as workers:
        processes = list(workers._workers.values())
        with pytest.raises(LMError, match=r"a worker process has ended .*\(killed by signal 9\)"):
            list(workers.share(range(10)))
    assert not any(process.is_alive() for process in processes)


def test_order_is_kept_by_waiting():
    assert list(in_order([(2, "c"), (0, "a"), (1, "b"), (3, "d")])) == ["a", "b", "c", "d"]


_ALONE = """
import os, sys
from lm.processes import Workers
from tests.lm.test_processes import doubling
if __name__ == "__main__":
    with Workers(doubling, 2) as workers:
        print(*[process.pid for process in workers._workers.values()], flush=True)
        for _ in workers.share((number, number) for number in range(10**9)):
            pass
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_is_left_behind(sent, tmp_path):
    script = tmp_path / "alone.py"
    script.write_text(_ALONE)
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:  # fmt: skip
        pids = list(map(int, process.stdout.readline().split()))
        assert len(pids) == 2
        timer = threading.Timer(60, process.kill)
        timer.start()
        process.send_signal(sent)
        process.wait()
        timer.cancel()
    for pid in pids:
        until = time.monotonic() + 30
        while _is_there(pid):
            assert time.monotonic() < until
            time.sleep(0.05)


def _is_there(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False

"""Time of a call."""

import time
from collections.abc import Callable


def timer(work: Callable[[], object], *, clock: Callable[[], float] = time.perf_counter) -> Callable[[], float]:
    """Return a function that does some work, and returns the seconds it took by a clock [default: wall time]."""

    def run() -> float:
        began = clock()
        work()
        return clock() - began

    return run

"""Time of a call."""

import time
from collections.abc import Callable


def timer(work: Callable[[], object]) -> Callable[[], float]:
    """Return a function that does some work, and returns the seconds it took."""

    def run() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return run

"""A budget counts from when the command began, or from when its process did."""

from __future__ import annotations

import time

from cli.training import clock


def test_the_clock_starts_with_the_command_or_with_its_process():
    clock.begin()
    assert 0 <= clock.elapsed() < 60
    began = clock.elapsed()
    time.sleep(0.01)
    assert clock.elapsed() >= began + 0.01
    clock.begin(with_process=True)
    assert clock.elapsed() >= began
    clock.begin()
    assert clock.elapsed() < 60

"""Signals that stop training, and interrupts that are delayed."""

import os
import signal

import pytest

from lm.processes import delayed_interrupt
from lm.training.multiprocess import StopSignals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_asks_and_a_second_ends(number):
    before = signal.getsignal(number)
    told: list[int] = []
    signals = StopSignals(on_first=lambda: told.append(1))
    with signals.handling():
        assert not signals.received()
        os.kill(os.getpid(), number)
        assert signals.received()
        assert signals.number == number
        assert told == [1]
        with pytest.raises(SystemExit) as ended:
            os.kill(os.getpid(), number)
        assert ended.value.code == 128 + number
    assert signal.getsignal(number) is before


def test_an_interrupt_is_delayed_to_the_end_of_a_context():
    before, done = signal.getsignal(signal.SIGINT), []

    @delayed_interrupt()
    def interrupt_twice():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        done.append("all")

    with pytest.raises(KeyboardInterrupt):
        interrupt_twice()
    assert done == ["all"]
    assert signal.getsignal(signal.SIGINT) is before

"""The first signal asks training to stop, the second ends it at once, and afterwards all is as before."""

import os
import signal

import pytest

from lm.signals import StopSignals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_asks_and_a_second_ends(number):
    before = signal.getsignal(number)
    told: list[int] = []
    with StopSignals(on_first=lambda: told.append(1)) as signals:
        assert not signals.received()
        os.kill(os.getpid(), number)
        assert signals.received()
        assert signals.number == number
        assert told == [1]
        with pytest.raises(SystemExit) as ended:
            os.kill(os.getpid(), number)
        assert ended.value.code == 128 + number
    assert signal.getsignal(number) is before


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="not on Windows")
def test_a_hang_up_asks_however_often_it_comes(default_hang_up):
    with StopSignals() as signals:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGHUP)
        assert signals.number == signal.SIGHUP
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.number == signal.SIGTERM
        os.kill(os.getpid(), signal.SIGHUP)
        assert signals.number == signal.SIGTERM


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="not on Windows")
def test_an_ignored_hang_up_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not signals.received()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_system_without_hang_ups_has_the_other_signals(monkeypatch):
    """As Windows."""
    monkeypatch.delattr(signal, "SIGHUP", raising=False)
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.number == signal.SIGTERM

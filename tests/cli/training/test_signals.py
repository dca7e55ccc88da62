"""The first signal asks training to stop, the second ends it at once, and afterwards all is as before."""

from __future__ import annotations

import os
import signal

import pytest

from cli.training.signals import StopSignals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_asks_and_a_second_ends(number, capsys):
    before = signal.getsignal(number)
    with StopSignals() as signals:
        assert not signals.received()
        os.kill(os.getpid(), number)
        assert signals.received()
        assert signals.number == number
        assert "stopping after this step" in capsys.readouterr().err
        with pytest.raises(SystemExit) as ended:
            os.kill(os.getpid(), number)
        assert ended.value.code == 128 + number
    assert signal.getsignal(number) is before

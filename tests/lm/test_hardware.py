"""What the machine is measured by, with a clock and counters that say what they are told."""

import pytest
import torch

from lm import hardware
from lm.config.run_config import HardwareConfig
from lm.errors import UsageError
from lm.hardware import (
    Hardware,
    select_device,
    select_hardware,
)


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_what_is_asked_for_is_what_a_model_runs_on(monkeypatch):
    monkeypatch.setattr(hardware, "MAX_THREADS", 2)
    assert select_hardware(HardwareConfig(device="cpu")) == Hardware("cpu", "float32", 2)
    assert torch.get_num_threads() == 2
    assert select_hardware(HardwareConfig(device="cpu"), auto="int8").dtype == "int8"
    asked = HardwareConfig(device="cpu", dtype="bfloat16", threads=1)
    assert select_hardware(asked, auto="int8") == Hardware("cpu", "bfloat16", 1)
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize(
    ("cuda", "mps", "found"), [(True, True, "cuda"), (True, False, "cuda"), (False, True, "mps"), (False, False, "cpu")]
)
def test_the_best_device_there_is(monkeypatch, cuda, mps, found):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert select_device(HardwareConfig()) == found
    assert select_device(HardwareConfig(device="cpu")) == "cpu"
    for name, is_there in (("cuda", cuda), ("mps", mps)):
        if is_there:
            assert select_device(HardwareConfig(device=name)) == name
        else:
            with pytest.raises(UsageError, match=f"no {name} device"):
                select_device(HardwareConfig(device=name))

"""The device that is asked for, or a word on why there is none."""

import pytest

from lm.config.run_config import HardwareConfig
from lm.errors import UsageError
from lm.hardware import select_hardware
from tests.lm.training.conftest import byte_tokenizer, shards

__all__ = ["byte_tokenizer", "shards"]


@pytest.fixture
def device(request) -> str:
    asked: str = request.config.getoption("--device")
    try:
        return select_hardware(HardwareConfig(device=asked)).device
    except UsageError as error:
        pytest.skip(str(error))


@pytest.fixture
def gpu(device) -> str:
    """The device, unless it is the CPU that it is compared with."""
    if device == "cpu":
        pytest.skip("a CPU is what others are compared with")
    return device

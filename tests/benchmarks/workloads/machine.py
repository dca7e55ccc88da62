"""The machine as torch sees it."""

import torch

from lm.hardware import native_dtypes


def describe() -> dict[str, str]:
    """Return the dtype to train in (float32 where bfloat16 is emulated), and the instructions that torch uses."""
    return {"training_dtype": native_dtypes("cpu")[-1], "instructions": torch.backends.cpu.get_cpu_capability()}

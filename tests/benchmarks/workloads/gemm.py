"""The speed of a matmul, which FLOP/s are compared with."""

from collections.abc import Callable

import torch

from lm.hardware import Hardware, time_work
from lm.model.layers import linear

SIZE, TRIALS = 1024, 10


def timer(dtype: str, threads: int) -> Callable[[], float]:
    """Return a function that measures the FLOP/s of a 1024³ matmul, the best of several.

    The matmul is in float32 where that is faster: on processors on which PyTorch emulates the dtype.
    """
    hardware = Hardware("cpu", "float32", threads)

    @torch.inference_mode()
    def seconds(matmul: Callable[[], object], trials: int) -> float:
        return min(time_work(matmul, hardware) for _ in range(trials))

    fastest = min((_matmul(each, threads) for each in (dtype, "float32")), key=lambda matmul: seconds(matmul, 2))
    return lambda: 2 * SIZE**3 / seconds(fastest, TRIALS)


def _matmul(dtype: str, threads: int) -> Callable[[], object]:
    if dtype == "int8":
        matrix, multiply = torch.randint(-127, 128, (SIZE, SIZE), dtype=torch.int8), torch._int_mm
    else:
        matrix, multiply = torch.arange(SIZE * SIZE).sin().view(SIZE, SIZE).to(getattr(torch, dtype)), linear
    return lambda: multiply(matrix, matrix)

"""The speed of a matmul, which FLOP/s are compared with."""

from collections.abc import Callable

import torch

from lm.hardware import Hardware, random_like_matrix, time_launches
from lm.model.layers import linear

SIZE, TRIALS = 1024, 10


def timer(dtype: str, threads: int) -> Callable[[], float]:
    """Return a function that measures the FLOP/s of a 1024³ matmul, the best of several."""
    hardware = Hardware("cpu", dtype, threads)
    if dtype == "int8":
        matrix, multiply = torch.randint(-127, 128, (SIZE, SIZE), dtype=torch.int8), torch._int_mm
    else:
        matrix, multiply = random_like_matrix(SIZE, hardware), linear

    @torch.inference_mode()
    def rate() -> float:
        return 2 * SIZE**3 / min(time_launches(lambda: multiply(matrix, matrix), hardware) for _ in range(TRIALS))

    return rate

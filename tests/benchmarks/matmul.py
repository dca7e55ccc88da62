"""Matmuls of compiled code, of MKL and of oneDNN, interleaved in one process, on one thread.

    python -m tests.benchmarks.matmul [--rows 1 16 100 320] [--seconds 0.1]

Prints, for some shapes of models, the median GMAC per CPU second with int8 and float32 weights, and of MKL and oneDNN
in float32.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from lm.kernels.torch_ops import initialise_numba
from lm.model.cpu_kernels import onednn_linear
from lm.training.step_timing import time_interleaved

SHAPES = ((192, 192), (768, 192), (192, 768), (8000, 192), (1024, 256), (1536, 384), (384, 1536), (2304, 768))
"""(outputs, inputs)."""
AT_LEAST = 0.01
"""Seconds that one timing takes."""


def ways(rows: int, outputs: int, inputs: int) -> dict[str, Callable[[], object]]:
    """Return functions that compute the same matmul."""
    from lm.kernels.matmul import matmul

    weights, x = torch.randn(outputs, inputs), torch.randn(rows, inputs)
    whole = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8).numpy()
    scales, nothing, out = np.ones(outputs, np.float32), np.empty(0, np.float32), np.empty((rows, outputs), np.float32)
    return {
        "int8": partial(matmul, whole, scales, nothing, x.numpy(), out, False, 1),
        "float32": partial(matmul, weights.numpy(), nothing, nothing, x.numpy(), out, False, 1),
        "MKL": partial(F.linear, x, weights),
        "oneDNN": partial(onednn_linear, x, weights, None),
    }


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of one call, from enough calls."""
    began, times = time.process_time(), 0
    while time.process_time() - began < AT_LEAST:
        work()
        times += 1
    return (time.process_time() - began) / times


def main() -> None:
    """A line for each shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 100, 320])
    parser.add_argument("--seconds", type=float, default=0.1, help="for each matmul")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    initialise_numba()
    for rows in arguments.rows:
        for outputs, inputs in SHAPES:
            found = ways(rows, outputs, inputs)
            rounds = time_interleaved([partial(seconds, work) for work in found.values()], seconds=arguments.seconds)
            speeds = (rows * outputs * inputs / statistics.median(each) / 1e9 for each in zip(*rounds, strict=True))
            line = "  ".join(f"{name} {speed:4.0f}" for name, speed in zip(found, speeds, strict=True))
            print(f"{rows:4} rows, {outputs:5} x {inputs:4}: {line}", flush=True)


if __name__ == "__main__":
    with torch.inference_mode():
        main()

"""The limits of the hardware: matmul FLOP/s and memory bandwidth."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from lm.config.hardware import HardwareConfig
from lm.hardware import (
    Hardware,
    matmul_size,
    native_dtypes,
    random_like_matrix,
    select_inference_hardware,
    time_launches,
    time_work,
)
from lm.model.layers import linear

_VALUES_ON_CPU, _VALUES_ON_GPU = 1 << 26, 1 << 28  # float32, far more than fit into CPU caches
_TRIES = 30
_SECONDS = 1.0


@dataclass(frozen=True)
class HardwareLimits:
    """The best of several trials, as other load only makes it slower.

    Attributes:
        matrix_size: rows and columns of the multiplied matrices.
        flops: matmul FLOP/s by dtype ("float32", "bfloat16").
        memory_bandwidth: bytes read per second.
    """

    matrix_size: int
    flops: Mapping[str, float]
    memory_bandwidth: float


def measure_hardware_limits(config: HardwareConfig) -> HardwareLimits:
    """Measure the limits in each natively supported dtype and the configured one."""
    hardware = select_inference_hardware(config)
    size = matmul_size(hardware.device)
    names = dict.fromkeys((*native_dtypes(hardware.device), hardware.matmul_dtype))
    flops = {name: _measure_matmul_rate(dataclasses.replace(hardware, dtype=name), size) for name in names}
    return HardwareLimits(size, flops, _measure_memory_bandwidth(hardware))


@torch.inference_mode()
def _measure_matmul_rate(hardware: Hardware, size: int) -> float:
    """With the library that `linear` uses: on some CPUs the one behind `@` is half as fast, and no limit."""
    matrix = random_like_matrix(size, hardware)
    return _best_rate(lambda: 2 * size**3 / time_launches(lambda: linear(matrix, matrix), hardware))


def _measure_memory_bandwidth(hardware: Hardware) -> float:
    """Bytes per second read by a sum over more numbers than caches hold."""
    count = _VALUES_ON_CPU if hardware.device == "cpu" else _VALUES_ON_GPU
    values = torch.ones(count, device=hardware.torch_device)
    return _best_rate(lambda: values.nbytes / time_work(values.sum, hardware))


def _best_rate(rate: Callable[[], float]) -> float:
    """The highest rate of several trials, fewer if they take long."""
    start, best = time.perf_counter(), rate()
    for _ in range(_TRIES - 1):
        if time.perf_counter() - start > _SECONDS:
            break
        best = max(best, rate())
    return best

"""The machine: which device, how many threads, which arithmetic."""

from __future__ import annotations

import contextlib
import ctypes
import platform
import statistics
import sys
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache

import torch

from lm.config import HardwareConfig
from lm.errors import UsageError

_WIDTH_FOR_BFLOAT16_ON_CPU = 128
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX of glibc's malloc.h


@dataclass(frozen=True)
class Hardware:
    """What was found and decided: plain values that a run writes down before its first step."""

    device: str
    dtype: str
    threads: int

    @property
    def torch_device(self) -> torch.device:
        """The device as torch names it."""
        return torch.device(self.device)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The arithmetic as torch names it."""
        return getattr(torch, self.dtype)

    def autocast(self) -> AbstractContextManager[object]:
        """Matrix products in `dtype`, weights and sums in float32."""
        if self.dtype == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.device, dtype=self.torch_dtype)


def inference_hardware(config: HardwareConfig) -> Hardware:
    """The device asked for or found; float32 unless another type is asked for. Sets the number of threads."""
    return _hardware(config, config.dtype if config.dtype != "auto" else "float32")


def training_hardware(config: HardwareConfig, *, d_model: int) -> Hardware:
    """The device asked for or found; bfloat16 where that is faster at this width. Sets the number of threads."""
    return _hardware(config, config.dtype if config.dtype != "auto" else _training_dtype(_device(config), d_model))


def _hardware(config: HardwareConfig, dtype: str) -> Hardware:
    threads = config.threads or torch.get_num_threads()
    torch.set_num_threads(threads)
    _keep_freed_memory()
    return Hardware(device=_device(config), dtype=dtype, threads=threads)


@cache
def _keep_freed_memory() -> None:
    """Have glibc keep the memory of freed tensors for the next ones.

    It gives blocks of megabytes back to the system at once, and each new one is then faulted in page by page: a
    training step of GPT-2 (124 M parameters, one row of 512) takes 2.8 s in fresh memory and 1.3 s in kept memory.
    """
    if platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_MAX, 0)
        library.mallopt(_TRIM_THRESHOLD, -1)


def _device(config: HardwareConfig) -> str:
    found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if config.device == "auto":
        return next(name for name, is_there in found.items() if is_there)
    if not found[config.device]:
        raise UsageError(f"no {config.device} device on this machine (--device {config.device})")
    return config.device


def _training_dtype(device: str, d_model: int) -> str:
    """bfloat16 on GPUs and CPUs that multiply it natively, but on a CPU only where products outweigh the casts."""
    if device == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    capabilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    native = device == "cpu" and capabilities.get("avx512_bf16", False)
    return "bfloat16" if native and d_model >= _WIDTH_FOR_BFLOAT16_ON_CPU else "float32"


def matrix_rate(hardware: Hardware, *, size: int = 1024, repeats: int = 7) -> float:
    """FLOP/s of a square matrix product in the arithmetic of a run; the measure of model-FLOPs utilisation."""
    matrix = torch.ones(size, size, dtype=hardware.torch_dtype, device=hardware.torch_device)
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        product = matrix @ matrix
        float(product[0, 0])  # waits until it is done
        seconds.append(time.perf_counter() - began)
    return 2 * size**3 / statistics.median(seconds)


def peak_memory() -> int:
    """The most bytes this process has held so far: on the GPU if it used one, else resident."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    import resource  # noqa: PLC0415 (not on every system)

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

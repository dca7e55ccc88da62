"""Hardware: device, threads, dtypes, timing and memory."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import torch
from numpy.typing import NDArray

from lm.config.run_config import HardwareConfig
from lm.errors import UsageError

_DTYPES = ("float32", "bfloat16")
_MATMUL_SIZE, _MATMUL_REPEATS = 256, 3
_EMULATED_RATIO = 4.0  # slower than float32: emulated
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX of glibc's malloc.h

Timer = Callable[[], float]
MAX_THREADS = torch.get_num_threads()
"""Default threads of torch: one per core, or as the environment says."""


@dataclass(frozen=True)
class Hardware:
    """Hardware settings of a run or of inference.

    Attributes:
        device: "cpu", "cuda" or "mps".
    """

    device: str
    dtype: str
    threads: int

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self.device)

    @property
    def torch_dtype(self) -> torch.dtype:
        """Dtype of the matmuls: int8 weights are multiplied by float32 activations."""
        return getattr(torch, "float32" if self.dtype == "int8" else self.dtype)

    def autocast(self) -> AbstractContextManager[object]:
        """Context in which matmuls are in `dtype`, and weights and sums in float32."""
        dtype = self.torch_dtype
        return torch.autocast(self.device, dtype=dtype, enabled=dtype is not torch.float32)


def select_hardware(config: HardwareConfig, *, auto: str = "float32") -> Hardware:
    """Select device and dtype (`auto` unless one is configured), and configure torch for them."""
    dtype = config.dtype if config.dtype != "auto" else auto
    hardware = Hardware(device=select_device(config), dtype=dtype, threads=config.threads or MAX_THREADS)
    configure_torch(hardware)
    return hardware


def configure_torch(hardware: Hardware, *, trains: bool = False) -> None:
    """Set torch's number of threads, how it keeps memory, and its kernels on an NVIDIA GPU.

    Training in bfloat16 has TF32 where autocast leaves float32: it has more mantissa bits than bfloat16, and is about
    eight times as fast as float32. Attention is not cuDNN's, which plans for 30 to 60 ms at each new shape (H200, torch
    2.11), where flash attention takes 0.04 ms: a text grows by a shape per token.
    """
    torch.set_num_threads(hardware.threads)
    _configure_memory()
    if hardware.device == "cuda":
        is_tf32 = trains and hardware.torch_dtype is not torch.float32
        torch.set_float32_matmul_precision("high" if is_tf32 else "highest")
        torch.backends.cuda.enable_cudnn_sdp(False)


@cache
def _configure_memory() -> None:
    """Let glibc keep the memory of freed tensors, and oneDNN fewer kernels.

    By default glibc returns blocks of megabytes to the system, and new ones page-fault: a training step of GPT-2 (124 M
    parameters, one row of 512) takes 2.8 s in fresh memory and 1.3 s in kept memory. oneDNN keeps 1,024 kernels, each
    for a shape; translation in bfloat16 has more, and took 3.9 GB for 60 batches with them, 2.9 GB in the same time
    with 128.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_MMAP_MAX, 0)
        library.mallopt(_TRIM_THRESHOLD, -1)


def trim_malloc_memory() -> None:
    """Return the kept memory of freed tensors to the system."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


@cache
def native_dtypes(device: str) -> tuple[str, ...]:
    """Return float32, and the dtypes that a device multiplies natively, fastest last on a GPU.

    A GPU reports whether it supports bfloat16. Elsewhere a dtype is timed: much slower ones are emulated.
    """
    if device == "cuda":
        return _DTYPES if torch.cuda.is_bf16_supported(including_emulation=False) else _DTYPES[:1]
    seconds = []
    with single_threaded():
        for hardware in (Hardware(device, dtype, threads=1) for dtype in _DTYPES):
            matrix = torch.ones(_MATMUL_SIZE, _MATMUL_SIZE, dtype=hardware.torch_dtype, device=device)
            times = [time_work(partial(torch.matmul, matrix, matrix), hardware) for _ in range(1 + _MATMUL_REPEATS)]
            seconds.append(min(times[1:]))  # after a warm-up
    return tuple(name for name, took in zip(_DTYPES, seconds, strict=True) if took <= _EMULATED_RATIO * seconds[0])


def inference_dtypes(device: str) -> tuple[str, ...]:
    """Return the dtypes that are sensible for inference on a device, float32 first."""
    return (*native_dtypes(device), *(["float16"] if device == "cuda" else []), "int8")


@contextmanager
def single_threaded() -> Iterator[None]:
    """Within the context, torch uses one thread, for comparisons while other processes run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def synchronized_time(hardware: Hardware) -> float:
    """Synchronise the device, and return seconds of a monotonic clock."""
    if hardware.device != "cpu":
        getattr(torch, hardware.device).synchronize()
    return time.perf_counter()


def time_work(work: Callable[[], object], hardware: Hardware) -> float:
    """Return the seconds of some work, including device synchronisation."""
    start = synchronized_time(hardware)
    work()
    return synchronized_time(hardware) - start


def time_interleaved(timers: Sequence[Timer], *, seconds: float) -> NDArray[np.float64]:
    """Time functions in interleaved rounds, so that other load slows all of them.

    Args:
        timers: what is compared, or one alone.
        seconds: per side, approximately; at least one round follows a warm-up.

    Returns:
        (rounds, timers) seconds.
    """
    for timer in timers:
        timer()
    rounds: list[list[float]] = []
    start = time.perf_counter()
    while not rounds or time.perf_counter() - start < seconds * len(timers):
        rounds.append([timer() for timer in timers])
    return np.array(rounds)


def select_device(config: HardwareConfig) -> str:
    """Return the configured device, or the best available; UsageError if it isn't available."""
    exists = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    available = [name for name in exists if exists[name]]
    if config.device == "auto":
        return available[0]
    if config.device not in available:
        raise UsageError(f"no {config.device} device on this machine")
    return config.device

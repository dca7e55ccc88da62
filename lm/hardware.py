"""The machine: which device, how many threads, which arithmetic."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from lm.config.hardware import HardwareConfig
from lm.errors import UsageError

_TYPES = ("float32", "bfloat16")
_PRODUCT, _TRIES = 256, 3
_FAR_SLOWER = 4.0  # than float32: emulated
_MATRIX_ON_CPU, _MATRIX_ON_GPU = 1024, 8192  # rows and columns
_LAUNCHES = 4  # of some work on a GPU between two synchronisations
_CHANGING = ("processor", "cpu MHz", "bogomips", "apicid", "initial apicid", "core id", "physical id", "microcode")
_WINDOWS_TICKS = 10 / 64
"""Seconds of ten ticks of Windows's clock of CPU time, which make a time measured by it right to a tenth."""
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX of glibc's malloc.h

MOST_THREADS = torch.get_num_threads()
"""As torch starts with: one for each core, or what the environment says."""


@dataclass(frozen=True)
class Hardware:
    """What was found and decided: plain values that a run writes down before its first step.

    Attributes:
        device: "cpu", "cuda" or "mps".
        dtype: arithmetic of the products of a model.
        threads: of a CPU.
        optimizer_dtype: arithmetic of the products of Muon.
    """

    device: str
    dtype: str
    threads: int
    optimizer_dtype: str = "bfloat16"

    @property
    def torch_device(self) -> torch.device:
        """The device as torch names it."""
        return torch.device(self.device)

    @property
    def products(self) -> str:
        """The type that products are computed in: int8 weights are multiplied by numbers in float32."""
        return "float32" if self.dtype == "int8" else self.dtype

    @property
    def torch_dtype(self) -> torch.dtype:
        """`products` as torch names it."""
        return getattr(torch, self.products)

    @property
    def torch_optimizer_dtype(self) -> torch.dtype:
        """The arithmetic of Muon as torch names it."""
        return getattr(torch, self.optimizer_dtype)

    def autocast(self) -> AbstractContextManager[object]:
        """Matmuls in `dtype`, weights and sums in float32."""
        if self.torch_dtype is torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device, dtype=self.torch_dtype)


def inference_hardware(config: HardwareConfig, *, auto: str = "float32") -> Hardware:
    """The device asked for or found; `auto`, unless another type is asked for. Sets the number of threads."""
    threads = config.threads or MOST_THREADS
    torch.set_num_threads(threads)
    _keep_freed_memory()
    dtype = config.dtype if config.dtype != "auto" else auto
    hardware = Hardware(device=found_device(config), dtype=dtype, threads=threads)
    set_matmul_precision(hardware)
    if hardware.device == "cpu" and hardware.torch_dtype is not torch.float32:
        _try_product(hardware.device, hardware.products)
    return hardware


def set_matmul_precision(hardware: Hardware) -> None:
    """Let a GPU use TF32 for the float32 matmuls beside those in bfloat16; float32 itself is computed as float32.

    TF32 has the mantissa of float16, which is more than that of bfloat16, and is about eight times as fast as float32.
    """
    if hardware.device == "cuda":
        torch.set_float32_matmul_precision("highest" if hardware.torch_dtype is torch.float32 else "high")


def share_of(config: HardwareConfig, processes: int) -> HardwareConfig:
    """What each of so many processes gets: its share of the threads, at least one."""
    return replace(config, threads=max(1, (config.threads or MOST_THREADS) // processes))


@cache
def _keep_freed_memory() -> None:
    """Have glibc keep the memory of freed tensors for the next ones.

    It gives blocks of megabytes back to the system at once, and each new one is then faulted in page by page: a
    training step of GPT-2 (124 M parameters, one row of 512) takes 2.8 s in fresh memory and 1.3 s in kept memory.
    """
    if library := _glibc():
        library.mallopt(_MMAP_MAX, 0)
        library.mallopt(_TRIM_THRESHOLD, -1)


def give_back_freed_memory() -> None:
    """Have glibc return the memory of freed tensors to the system: after work that needed more than what follows."""
    if library := _glibc():
        library.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None


@cache
def processor(device: str) -> str:
    """What tells the processor of a device from others: its name, what it can do, and what torch makes of that."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    told = Path("/proc/cpuinfo")
    first = told.read_text(encoding="utf-8").partition("\n\n")[0] if told.is_file() else _processor_name()
    lasting = [line for line in first.splitlines() if not line.startswith(_CHANGING)]
    return "\n".join([device, platform.machine(), torch.backends.cpu.get_cpu_capability(), *lasting])


def _processor_name() -> str:
    """The name of the processor where there is no /proc; on macOS that of the chip, since `platform` says arm."""
    return (_sysctl(b"machdep.cpu.brand_string") if sys.platform == "darwin" else "") or platform.processor()


def _sysctl(name: bytes) -> str:
    """A text that the kernel of macOS knows by this name; an empty one if it has none."""
    library, size = ctypes.CDLL(None), ctypes.c_size_t()
    if library.sysctlbyname(name, None, ctypes.byref(size), None, 0) != 0:
        return ""
    text = ctypes.create_string_buffer(size.value)
    if library.sysctlbyname(name, text, ctypes.byref(size), None, 0) != 0:
        return ""
    return text.value.decode(errors="replace")


@cache
def quick_types(device: str) -> tuple[str, ...]:
    """Float32, and the dtypes that this device multiplies natively: the last is the fastest of a GPU.

    A GPU says whether it has bfloat16. Elsewhere a dtype whose matmuls take far longer is taken for emulated, and one
    whose matmuls fail, or write to stderr, for missing.
    """
    if device == "cuda":
        return _TYPES if torch.cuda.is_bf16_supported(including_emulation=False) else _TYPES[:1]
    first, *others = _TYPES
    most = _FAR_SLOWER * _product_seconds(device, first)
    return (first, *(dtype for dtype in others if _quiet_product_seconds(device, dtype) <= most))


def usable_types(device: str) -> tuple[str, ...]:
    """The types that it makes sense to use a trained model in on this device, float32 first."""
    return (*quick_types(device), *(["float16"] if device == "cuda" else []), "int8")


def _product_seconds(device: str, dtype: str) -> float:
    """The fastest of a few small square products, after one that doesn't count."""
    hardware = Hardware(device, dtype, threads=1)
    matrix = torch.ones(_PRODUCT, _PRODUCT, dtype=hardware.torch_dtype, device=device)
    with one_thread():
        return min([timed(lambda: matrix @ matrix, hardware) for _ in range(1 + _TRIES)][1:])


def _quiet_product_seconds(device: str, dtype: str) -> float:
    """The same; infinity where torch fails, or complains on stderr.

    On ARM without bfloat16 the first product writes a stack trace of C++ there, before torch computes it otherwise.
    """
    with _stderr_kept_back() as is_written:
        try:
            seconds = _product_seconds(device, dtype)
        except RuntimeError:
            return math.inf
        return math.inf if is_written() else seconds


@cache
def _try_product(device: str, dtype: str) -> None:
    """Have torch complain of a dtype where nobody hears it: it does so only once, and computes what is asked for."""
    _quiet_product_seconds(device, dtype)


@contextmanager
def _stderr_kept_back() -> Iterator[Callable[[], bool]]:
    """While open, what this process and its libraries write to stderr is lost; gives whether that is anything."""
    try:
        before = os.dup(2)
    except OSError:  # it is closed
        yield lambda: False
        return
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield lambda: os.fstat(file.fileno()).st_size > 0
        finally:
            os.dup2(before, 2)
            os.close(before)


@contextmanager
def one_thread() -> Iterator[None]:
    """For what is to be compared while other processes may be at work: several threads would wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def times_as_fast(work: Callable[[], object], other: Callable[[], object], *, tries: int) -> float:
    """How many times as fast some work is as other work of the calling thread: the median of interleaved rounds.

    By the processor's time and with one thread, since other processes may be at work. The first round doesn't count.
    """
    with one_thread():
        rounds = [(_thread_seconds(work), _thread_seconds(other)) for _ in range(1 + tries)]
    return statistics.median(others / ours for ours, others in rounds[1:])


def _thread_seconds(work: Callable[[], object]) -> float:
    """CPU seconds that some work takes; where the clock is coarse, on average over as many calls as it can measure."""
    least = _WINDOWS_TICKS if sys.platform == "win32" else 0.0
    began, calls = time.thread_time(), 0
    while True:
        work()
        calls += 1
        if (taken := time.thread_time() - began) >= least and taken > 0:
            return taken / calls


def now(hardware: Hardware) -> float:
    """Seconds on a clock that is read when the device has done all it was asked for."""
    if hardware.device != "cpu":
        getattr(torch, hardware.device).synchronize()
    return time.perf_counter()


def timed(work: Callable[[], object], hardware: Hardware) -> float:
    """Seconds that some work takes."""
    began = now(hardware)
    work()
    return now(hardware) - began


def found_device(config: HardwareConfig) -> str:
    """The device asked for, or the best there is; UsageError if it is not there."""
    found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if config.device == "auto":
        return next(name for name, is_there in found.items() if is_there)
    if not found[config.device]:
        raise UsageError(f"no {config.device} device on this machine", settings=[f"device={config.device}"])
    return config.device


def matrix_rate(hardware: Hardware, *, size: int | None = None, repeats: int = 7) -> float:
    """FLOP/s of a square matmul in the dtype of a run: the peak that model-FLOPs utilisation is a fraction of.

    Args:
        hardware: what multiplies.
        size: rows and columns [default: `matrix_size`].
        repeats: measurements, of which the median counts.
    """
    size = matrix_size(hardware.device) if size is None else size
    matrix = varied_matrix(size, hardware)
    return 2 * size**3 / statistics.median(launch_seconds(lambda: matrix @ matrix, hardware) for _ in range(repeats))


def matrix_size(device: str) -> int:
    """Rows and columns of the matmul that measures a device: a GPU finishes a small one before the next is launched."""
    return _MATRIX_ON_CPU if device == "cpu" else _MATRIX_ON_GPU


def varied_matrix(size: int, hardware: Hardware) -> torch.Tensor:
    """A square matrix of numbers that vary: on constants, which take less power, a GPU is about an eighth faster."""
    numbers = torch.arange(size * size, dtype=torch.float32, device=hardware.torch_device)
    return numbers.sin_().view(size, size).to(hardware.torch_dtype)


def launch_seconds(work: Callable[[], object], hardware: Hardware) -> float:
    """Seconds that some work takes; on a GPU, as the mean of several launches, so that waiting for it hardly counts."""
    launches = 1 if hardware.device == "cpu" else _LAUNCHES

    def launched() -> None:
        for _ in range(launches):
            work()

    return timed(launched, hardware) / launches


def free_memory(hardware: Hardware) -> int:
    """Bytes of a GPU's memory that are free, or that this process keeps for tensors to come."""
    free, _ = torch.cuda.mem_get_info(hardware.torch_device)
    return free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the memory of the device, or of the machine, was not enough."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)


def peak_memory() -> int:
    """The most bytes this process has held so far: on the GPU if it used one, else resident."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    try:
        import resource  # noqa: PLC0415 (not on every system)
    except ImportError:
        return _peak_on_windows()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class _MemoryCounters(ctypes.Structure):
    """PROCESS_MEMORY_COUNTERS of Windows."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("page_faults", ctypes.c_uint32),
        ("peak_working_set", ctypes.c_size_t),
        ("others", ctypes.c_size_t * 7),
    )


def _peak_on_windows() -> int:
    """The most bytes of this process that were resident; 0 if Windows doesn't say."""
    counters = _MemoryCounters(size=ctypes.sizeof(_MemoryCounters))
    kernel: Any = ctypes.windll.kernel32  # type: ignore[attr-defined]
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    kernel.K32GetProcessMemoryInfo.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)
    if not kernel.K32GetProcessMemoryInfo(kernel.GetCurrentProcess(), ctypes.byref(counters), counters.size):
        return 0
    return int(counters.peak_working_set)

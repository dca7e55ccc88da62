"""What the machine is measured by, with a clock and counters that say what they are told."""

import itertools
import os
import resource
from subprocess import PIPE
from types import SimpleNamespace

import pytest
import torch

from lm import hardware
from lm.config.hardware import HardwareConfig
from lm.errors import UsageError
from lm.hardware import (
    Hardware,
    divide_threads,
    free_gpu_memory,
    inference_dtypes,
    is_out_of_memory,
    measure_matmul_flops,
    measure_speedup,
    native_dtypes,
    peak_memory,
    random_like_matrix,
    select_device,
    select_inference_hardware,
    single_threaded,
)
from tests.fake_cuda import fake_cuda
from tests.forked import Forked

CPU = Hardware("cpu", "float32", 1)


def test_the_rate_of_a_product_is_that_of_its_median_time(monkeypatch):
    """2·size³ operations in 2 s, where one of three took much longer."""
    times = itertools.accumulate([10.0, 1.0, 0.0, 50.0, 0.0, 2.0])
    monkeypatch.setattr(hardware.time, "perf_counter", lambda: next(times))
    assert measure_matmul_flops(CPU, size=8, repeats=3) == 2 * 8**3 / 2.0
    assert next(times, None) is None


def test_the_rate_of_a_gpu_is_that_of_several_large_matmuls_at_a_time(monkeypatch):
    """A launch and the wait for it take as long as a small matmul, and constants are multiplied faster than data."""
    clock = itertools.count()
    monkeypatch.setattr(hardware, "synchronized_time", lambda _: next(clock))  # each measurement takes a second
    with fake_cuda():
        assert measure_matmul_flops(Hardware("cuda", "bfloat16", 1)) == 4 * 2 * 8192**3
    matrix = random_like_matrix(32, CPU)
    assert len(matrix.unique()) > 1000
    assert matrix.std().item() == pytest.approx(0.5**0.5, rel=0.05)  # of a sine


def test_ways_are_compared_by_the_median_of_interleaved_rounds_on_one_thread(monkeypatch):
    """1 s against 3 s where nothing disturbed either, after a warm-up round."""
    taken = iter([9.0, 1.0, 1.0, 3.0, 8.0, 4.0, 1.0, 3.0])
    now, threads = 0.0, []

    def work() -> None:
        nonlocal now
        now += next(taken)
        threads.append(torch.get_num_threads())

    monkeypatch.setattr(hardware.time, "thread_time", lambda: now)
    assert measure_speedup(work, work, tries=3) == 3.0
    assert next(taken, None) is None
    assert set(threads) == {1}


@pytest.mark.parametrize(("supported", "types"), [(True, 2), (False, 1)])
def test_a_gpu_says_whether_it_multiplies_in_bfloat16(monkeypatch, supported, types):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *, including_emulation: supported)
    assert native_dtypes.__wrapped__("cuda") == ("float32", "bfloat16")[:types]


def test_on_a_gpu_a_model_decodes_in_halves_too(monkeypatch):
    monkeypatch.setattr(hardware, "native_dtypes", lambda device: ("float32", "bfloat16"))
    assert inference_dtypes("cuda") == ("float32", "bfloat16", "float16", "int8")
    assert inference_dtypes("cpu") == ("float32", "bfloat16", "int8")


def test_memory_that_this_process_caches_is_free_too(monkeypatch):
    for name, answer in {"mem_get_info": (100, 900), "memory_reserved": 30, "memory_allocated": 12}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    assert free_gpu_memory(Hardware("cuda", "float32", 1)) == 118


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True), (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 bytes"), True), (RuntimeError("shapes"), False),
    ],
)  # fmt: skip
def test_an_error_says_whether_memory_ran_out(error, is_memory):
    assert is_out_of_memory(error) is is_memory


def test_processes_divide_the_threads(monkeypatch):
    monkeypatch.setattr(hardware, "MAX_THREADS", 8)
    shared = {(None, 2): 4, (None, 3): 2, (7, 2): 3, (7, 9): 1, (5, 1): 5}
    assert {
        given: divide_threads(HardwareConfig(threads=given[0]), given[1]).threads for given in shared
    } == shared  # fmt: skip


@pytest.mark.parametrize(("platform", "expected"), [("linux", 3000 * 1024), ("darwin", 3000)])
def test_peak_memory_is_in_bytes_whatever_the_system_counts_in(monkeypatch, platform, expected):
    monkeypatch.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_maxrss=3000))
    monkeypatch.setattr(hardware.sys, "platform", platform)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert peak_memory() == expected


@pytest.mark.parametrize(("allocated", "expected"), [(77, 77), (0, 3000 * 1024)])
def test_peak_memory_is_that_of_the_gpu_if_it_was_used(monkeypatch, allocated, expected):
    monkeypatch.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_maxrss=3000))
    monkeypatch.setattr(hardware.sys, "platform", "linux")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: allocated)
    assert peak_memory() == expected


def test_peak_memory_is_about_what_this_process_has_held():
    assert 2**20 < peak_memory() < 2**40


@pytest.mark.parametrize(("seconds", "types"), [(1.0, 2), (8.0, 2), (8.1, 1)])
def test_a_type_that_takes_more_than_four_times_as_long_is_emulated(monkeypatch, seconds, types):
    taken = {"float32": 2.0, "bfloat16": seconds}
    monkeypatch.setattr(hardware, "time_work", lambda work, found: taken[found.dtype])
    assert native_dtypes.__wrapped__("cpu") == ("float32", "bfloat16")[:types]


@pytest.mark.parametrize("fails", [True, False])
def test_a_type_of_which_torch_complains_is_missing_and_nobody_hears_of_it(fails, monkeypatch, capfd):
    """Whether it gives up or computes it otherwise, as on ARM without bfloat16, where C++ writes a stack trace."""
    products = []

    def timed(work, found):
        if found.dtype == "bfloat16" and "bfloat16" not in products:
            os.write(2, b"could not create a primitive\nException raised from matmul at Matmul.cpp:1\n" * 60)
        products.append(found.dtype)
        if fails and found.dtype == "bfloat16":
            raise RuntimeError("could not create a primitive")
        return 1.0

    monkeypatch.setattr(hardware, "time_work", timed)
    assert native_dtypes.__wrapped__("cpu") == ("float32",)
    os.write(2, b"heard\n")
    assert capfd.readouterr().err == "heard\n"


def test_a_type_that_is_asked_for_is_tried_before_it_is_used(monkeypatch, capfd):
    """So that the complaint of the first product is not heard."""
    tried = []

    def timed(_, found):
        tried.append(found.dtype)
        return os.write(2, b"could not create a primitive")

    monkeypatch.setattr(hardware, "time_work", timed)
    hardware._trigger_dtype_warnings.cache_clear()
    assert select_inference_hardware(HardwareConfig(device="cpu", dtype="bfloat16", threads=1)).dtype == "bfloat16"
    assert select_inference_hardware(HardwareConfig(device="cpu", dtype="float32", threads=1)).dtype == "float32"
    assert set(tried) == {"bfloat16"}
    assert capfd.readouterr().err == ""


def test_what_is_written_after_stderr_was_closed_is_no_concern():
    with Forked(print_dtypes, "cpu", stdout=PIPE, stderr=None) as process:
        assert process.stdout.read().startswith("float32")
        assert process.wait() == 0


def print_dtypes(device: str) -> None:
    print(*hardware.native_dtypes(device))


def test_a_product_takes_as_long_as_the_fastest_after_the_first(monkeypatch):
    times, threads = iter([0.1, 5.0, 3.0, 4.0]), []

    def timed(work, found):
        work()
        threads.append(torch.get_num_threads())
        assert found == Hardware("cpu", "bfloat16", 1)
        return next(times)

    monkeypatch.setattr(hardware, "time_work", timed)
    assert hardware._matmul_seconds("cpu", "bfloat16") == 3.0
    assert threads == [1] * 4


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_for_a_while_there_is_one_thread():
    with single_threaded():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3
    with pytest.raises(ValueError, match="wrong"), single_threaded():
        raise ValueError("wrong")
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_what_is_asked_for_is_what_a_model_runs_on(monkeypatch):
    monkeypatch.setattr(hardware, "MAX_THREADS", 2)
    assert select_inference_hardware(HardwareConfig(device="cpu")) == Hardware("cpu", "float32", 2)
    assert torch.get_num_threads() == 2
    assert select_inference_hardware(HardwareConfig(device="cpu"), auto="int8").dtype == "int8"
    asked = HardwareConfig(device="cpu", dtype="bfloat16", threads=1)
    assert select_inference_hardware(asked, auto="int8") == Hardware("cpu", "bfloat16", 1)
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


def test_a_clock_is_read_when_the_device_is_done(monkeypatch):
    done = []
    monkeypatch.setattr(torch.mps, "synchronize", lambda: done.append("waited"))
    monkeypatch.setattr(hardware.time, "perf_counter", itertools.count(0.0, 2.5).__next__)
    assert hardware.time_work(lambda: done.append("worked"), Hardware("mps", "float32", 1)) == 2.5
    assert hardware.time_work(lambda: None, CPU) == 2.5
    assert done == ["waited", "worked", "waited"]


@pytest.mark.parametrize(("dtype", "of_a_product"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_products_are_in_the_type_of_the_hardware(dtype, of_a_product):
    with Hardware("cpu", dtype, 1).autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is of_a_product

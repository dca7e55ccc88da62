"""What the machine is measured by, with a clock and counters that say what they are told."""

from __future__ import annotations

import itertools
import resource
from types import SimpleNamespace

import pytest
import torch

from lm import hardware
from lm.hardware import Hardware, matrix_rate, peak_memory

CPU = Hardware("cpu", "float32", 1)


def test_the_rate_of_a_product_is_that_of_its_median_time(monkeypatch):
    """2·size³ operations in 2 s, where one of three took much longer."""
    times = itertools.accumulate([10.0, 1.0, 0.0, 50.0, 0.0, 2.0])
    monkeypatch.setattr(hardware.time, "perf_counter", lambda: next(times))
    assert matrix_rate(CPU, size=8, repeats=3) == 2 * 8**3 / 2.0
    assert next(times, None) is None


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

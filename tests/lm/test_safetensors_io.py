"""Tensors are read as they were written, and each lets go of its part of the file."""

import mmap
from pathlib import Path

import pytest
import torch

from lm.checkpoint import load_tensors, save_tensors

TENSORS = {
    "matrix": torch.randn(5, 3, dtype=torch.float64),
    "half": torch.arange(7.0).half(),
    "brain": torch.arange(6.0).bfloat16().view(2, 3),
    "number": torch.tensor(1.5),
    "step": torch.tensor([3, 2**40]),
    "flags": torch.tensor([True, False, True]),
    "nothing": torch.empty(0, 4),
}


@pytest.fixture
def file(tmp_path):
    save_tensors(TENSORS, tmp_path / "x.safetensors")
    return tmp_path / "x.safetensors"


def test_what_is_saved_is_loaded(file):
    loaded = load_tensors(file)
    assert loaded.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert loaded[name].dtype is tensor.dtype
        assert torch.equal(loaded[name], tensor)


def test_what_is_written_into_a_tensor_stays_out_of_the_file(file):
    before = file.read_bytes()
    load_tensors(file)["matrix"].zero_()
    assert file.read_bytes() == before
    assert torch.equal(load_tensors(file)["matrix"], TENSORS["matrix"])


def resident(file: Path) -> int:
    """Bytes of a mapped file that are in the memory of this process; its own copies of written pages among them."""
    found, is_file = 0, False
    for line in Path("/proc/self/smaps").read_text(errors="replace").splitlines():
        if "-" in line.split(maxsplit=1)[0]:
            is_file = line.endswith(str(file))
        elif is_file and line.startswith("Rss:"):
            found += 1024 * int(line.split()[1])
    return found


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the system does not say what is in memory")
def test_tensors_are_read_when_they_are_needed_and_let_go_of_their_memory(tmp_path):
    size, page = 1 << 20, mmap.PAGESIZE
    tensors = {name: torch.arange(size // 4 + extra) for extra, name in enumerate("abc")}  # so that pages are shared
    save_tensors(tensors, tmp_path / "x.safetensors")
    file = tmp_path / "x.safetensors"
    loaded = load_tensors(file)
    assert resident(file) < size
    for name in "abc":
        loaded[name] += 1
    assert resident(file) > 6 * size - 2 * page
    view = loaded["a"][5:7]
    for gone, left in (("b", 4), ("a", 4), ("c", 2)):
        del loaded[gone]
        assert left * size - 2 * page <= resident(file) < (left + 1) * size
        assert all(torch.equal(loaded[name], tensors[name] + 1) for name in loaded)
        assert view.tolist() == [6, 7]
    del view
    assert resident(file) == 0

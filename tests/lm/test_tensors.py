"""Tensors are read as they were written, and each lets go of its part of the file."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch

from lm.errors import InputError
from lm.tensors import load_tensors, save_tensors

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


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the system does not say what is mapped")
def test_a_tensor_that_is_gone_lets_go_of_the_file(file):
    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count(str(file))

    loaded = load_tensors(file)
    held = mappings()
    del loaded["matrix"]
    assert mappings() < held
    loaded.clear()
    assert mappings() == 0


def test_numbers_that_no_model_has_are_refused(tmp_path):
    header = json.dumps({"a": {"dtype": "U64", "shape": [1], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    with pytest.raises(InputError, match="has numbers of the type U64, which no model has"):
        load_tensors(tmp_path / "x.safetensors")

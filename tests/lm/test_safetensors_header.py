"""Headers of .safetensors files: what the library writes is read, and what cannot be is refused unread."""

import json
import struct

import pytest
import torch
from safetensors.torch import save_file

from lm.errors import InputError
from lm.safetensors_header import read_tensor_header


def header(values: object) -> bytes:
    text = json.dumps(values).encode()
    return struct.pack("<Q", len(text)) + text


def test_every_tensor_is_found_where_it_is(tmp_path):
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(7), "c": torch.ones(5, dtype=torch.bfloat16)}
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    content = (tmp_path / "x.safetensors").read_bytes()
    found = read_tensor_header(tmp_path / "x.safetensors")
    assert {name: (entry.dtype, entry.shape) for name, entry in found.items()} == {
        "a": ("F32", (2, 3)), "b": ("I64", ()), "c": ("BF16", (5,)),
    }  # fmt: skip
    for name, entry in found.items():
        assert content[entry.start : entry.start + entry.size] == bytes(tensors[name].flatten().view(torch.uint8))


HUGE = [10 * 1000**3, 2**63, 101_000_000]
WRONG = {
    "no object": header([1]),
    "no shape": header({"a": {"dtype": "F32", "data_offsets": [0, 4]}}),
    "no such type": header({"a": {"dtype": "F3", "shape": [1], "data_offsets": [0, 4]}}),
    "a list for a type": header({"a": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}}),
    "negative": header({"a": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}}),
    "a fraction": header({"a": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}}),
    "truth": header({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}),
    "too few bytes": header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}),
    "beyond the end": header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}),
    "more than there is": header({"a": {"dtype": "F32", "shape": [10**12, 10**12], "data_offsets": [0, 4 * 10**24]}}),
    "deep": struct.pack("<Q", 100_000) + b"[" * 100_000,
    "no JSON": struct.pack("<Q", 4) + b"abcd",
}


@pytest.mark.parametrize("length", HUGE)
def test_a_long_header_is_not_read(length, tmp_path):
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", length) + b"{}")
    with pytest.raises(InputError, match=f"its header would have {length:,} bytes"):
        read_tensor_header(tmp_path / "x.safetensors")


@pytest.mark.parametrize("content", WRONG.values(), ids=WRONG)
def test_a_header_that_cannot_be_is_refused(content, tmp_path):
    (tmp_path / "x.safetensors").write_bytes(content + b"1234")
    with pytest.raises(InputError, match="x.safetensors: not a .safetensors file that can be read"):
        read_tensor_header(tmp_path / "x.safetensors")

"""Headers of .safetensors files: what the library writes is read, and what cannot be is refused unread."""

import torch
from safetensors.torch import save_file

from lm.safetensors_header import read_tensor_header


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

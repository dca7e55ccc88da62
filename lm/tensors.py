"""Tensors in .safetensors files: written at once, and read one by one as they are needed."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from lm import files
from lm.errors import InputError
from lm.tensor_file import Entry, entries

FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Dtypes, as the format calls them."""
_TYPES = FLOATS | {
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


def save_tensors(tensors: Mapping[str, Tensor], path: Path, *, metadata: dict[str, str] | None = None) -> None:
    """Write tensors into a file with the permissions of any new one; safetensors lets only the owner read it."""
    save_file(dict(tensors), path, metadata)
    files.open_up(path)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors in a file, whose pages are read when they are needed, and are given back with the tensor.

    So a model whose weights are converted one after another never holds all of them twice. The file is mapped once,
    whatever the number of tensors: each mapping takes a file descriptor, of which a process may have few. What is
    written into a tensor stays out of the file.

    Raises:
        InputError: they cannot be read.
    """
    found = entries(path)
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return {name: _mapped(entry, mapping) for name, entry in found.items()}


def _mapped(entry: Entry, mapping: mmap.mmap) -> Tensor:
    if entry.dtype not in _TYPES:
        raise InputError(f"{entry.path}: has numbers of the type {entry.dtype}, which no model has; use another one")
    if not entry.size:
        return torch.empty(entry.shape, dtype=_TYPES[entry.dtype])
    content = np.frombuffer(mapping, np.uint8, count=entry.size, offset=entry.start)
    weakref.finalize(content, _give_back, mapping, entry.start, entry.start + entry.size).atexit = False
    return torch.from_numpy(content).view(_TYPES[entry.dtype]).view(entry.shape)


def _give_back(mapping: mmap.mmap, start: int, end: int) -> None:
    """Give back the pages of a tensor that is gone, but those that it shares with others; on Windows, they stay."""
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED, first, last - first)

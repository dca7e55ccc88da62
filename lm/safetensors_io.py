"""Reading and writing tensors in .safetensors files, memory-mapped."""

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
from lm.safetensors_header import TensorEntry, read_tensor_header

FLOAT_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Floating-point dtypes by their names in the format."""
_DTYPES = FLOAT_DTYPES | {
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


def save_tensors(tensors: Mapping[str, Tensor], path: Path, *, metadata: dict[str, str] | None = None) -> None:
    """Write tensors to a file with default permissions; safetensors makes it readable by the owner only."""
    save_file(dict(tensors), path, metadata)
    files.set_default_permissions(path)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Load the tensors of a file, memory-mapped; pages are read on use, and released with the tensor.

    So a model converted weight by weight never needs the memory twice. The file is mapped once, because each mapping
    takes a file descriptor. Writing to a tensor doesn't change the file.

    Raises:
        InputError: the file cannot be read.
    """
    entries = read_tensor_header(path)
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return {name: _map_tensor(entry, mapping) for name, entry in entries.items()}


def _map_tensor(entry: TensorEntry, mapping: mmap.mmap) -> Tensor:
    if entry.dtype not in _DTYPES:
        raise InputError(f"{entry.path}: has tensors of the dtype {entry.dtype}, which no model has; use another one")
    if not entry.size:
        return torch.empty(entry.shape, dtype=_DTYPES[entry.dtype])
    content = np.frombuffer(mapping, np.uint8, count=entry.size, offset=entry.start)
    weakref.finalize(content, _release_pages, mapping, entry.start, entry.start + entry.size).atexit = False
    return torch.from_numpy(content).view(_DTYPES[entry.dtype]).view(entry.shape)


def _release_pages(mapping: mmap.mmap, start: int, end: int) -> None:
    """Release the pages that belong only to this tensor."""
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED, first, last - first)

"""Reading and writing tensors in .safetensors files, memory-mapped."""

from __future__ import annotations

import json
import mmap
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from lm.errors import InputError

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


def save_tensors(tensors: Mapping[str, Tensor], path: Path, *, metadata: dict[str, str] | None = None) -> None:
    """Write tensors to a file with default permissions; safetensors makes it readable by the owner only."""
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(dict(tensors), path, metadata)
    except SafetensorError as error:
        raise OSError(f"{path}: {error}") from None
    path.chmod(mode)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Load the tensors of a file, memory-mapped; pages are read on use, and released with the tensor.

    So a model converted weight by weight never needs the memory twice: 400 MB in bfloat16 become float32 with a peak of
    810 MB, with safetensors' own tensors, which release their pages together, of 1,200 MB. Writing to a tensor doesn't
    change the file.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        with safe_open(path, "np"), path.open("rb") as file:  # safetensors validates the header
            start = 8 + int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(start - 8))
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        header.pop("__metadata__", None)
        return {
            name: _map_tensor(
                mapping, _DTYPES[each["dtype"]], each["shape"], *(start + n for n in each["data_offsets"])
            )
            for name, each in header.items()
        }
    except (SafetensorError, KeyError) as error:
        raise InputError(f"{path}: not a .safetensors file that can be read ({error}); use another one") from None


def _map_tensor(mapping: mmap.mmap, dtype: torch.dtype, shape: Sequence[int], start: int, end: int) -> Tensor:
    if start == end:
        return torch.empty(shape, dtype=dtype)
    content = memoryview(mapping)[start:end]
    weakref.finalize(content, _release_pages, mapping, start, end).atexit = False
    return torch.frombuffer(content, dtype=dtype).view(shape)


def _release_pages(mapping: mmap.mmap, start: int, end: int) -> None:
    """Release the pages that belong only to this tensor."""
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last:
        mapping.madvise(mmap.MADV_DONTNEED, first, last - first)

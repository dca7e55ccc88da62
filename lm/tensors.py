"""Tensors in .safetensors files: written at once, and read one by one as they are needed."""

from __future__ import annotations

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
"""Types of numbers, as the format calls them."""
_TYPES = FLOATS | {
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


def save_tensors(tensors: Mapping[str, Tensor], path: Path, *, metadata: dict[str, str] | None = None) -> None:
    """Write tensors into a file with the permissions of any new one; safetensors lets only the owner read it."""
    save_file(dict(tensors), path, metadata)
    files.open_up(path)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors in a file, each in a mapping of its own, which is gone with it.

    So a model whose weights are converted one after another never holds all of them twice.

    Raises:
        InputError: they cannot be read.
    """
    return {name: _mapped(entry) for name, entry in entries(path).items()}


def _mapped(entry: Entry) -> Tensor:
    """A tensor whose pages are read when they are needed; what is written into it stays out of the file."""
    if entry.dtype not in _TYPES:
        raise InputError(f"{entry.path}: has numbers of the type {entry.dtype}, which no model has; use another one")
    if not entry.size:
        return torch.empty(entry.shape, dtype=_TYPES[entry.dtype])
    content = np.memmap(entry.path, np.uint8, mode="c", offset=entry.start, shape=(entry.size,))
    return torch.from_numpy(content).view(_TYPES[entry.dtype]).view(entry.shape)

"""The header of .safetensors files: names, dtypes, shapes and offsets of tensors, validated.

Source: the safetensors format: 8 bytes with the length of the header, the header in JSON, the tensors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm.errors import InputError

_MAX_HEADER_BYTES = 100_000_000
"""Maximum bytes in the format."""
_DTYPE_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32,
    "U16": 16, "U8": 8, "BOOL": 8,
}  # fmt: skip


@dataclass(frozen=True)
class TensorEntry:
    """A tensor in a file.

    Attributes:
        dtype: as in the format: "F32", "BF16", …
        start: offset of its data in the file.
    """

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int


def read_tensor_header(path: Path) -> dict[str, TensorEntry]:
    """Read the tensors of a file, by name.

    Raises:
        InputError: it is not a valid .safetensors file.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(size - 8, _MAX_HEADER_BYTES):
            raise _format_error(path, f"its header would have {length:,} bytes")
        header = file.read(length)
    try:
        described = json.loads(header)
    except (ValueError, RecursionError):
        raise _format_error(path, "its header is no JSON") from None
    if not isinstance(described, dict):
        raise _format_error(path, "its header names no tensors")
    return {
        name: _parse_entry(path, name, values, begin=8 + length, end=size)
        for name, values in described.items()
        if name != "__metadata__"
    }


def _parse_entry(path: Path, name: str, values: Any, *, begin: int, end: int) -> TensorEntry:
    known = isinstance(values, Mapping) and values.keys() >= {"dtype", "shape", "data_offsets"}
    if not known or values["dtype"] not in tuple(_DTYPE_BITS) or not _are_sizes(values["shape"]):  # a list has no hash
        raise _format_error(path, f"it does not say what {name!r} is")
    shape, offsets = tuple(values["shape"]), values["data_offsets"]
    size = math.prod(shape) * _DTYPE_BITS[values["dtype"]] // 8
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[1] - offsets[0] != size or begin + offsets[1] > end:
        raise _format_error(path, f"{name!r} is not where it says")
    return TensorEntry(path, values["dtype"], shape, begin + offsets[0], size)


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _format_error(path: Path, problem: str) -> InputError:
    return InputError(f"{path}: not a .safetensors file that can be read ({problem}); use another one")

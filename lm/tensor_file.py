"""The header of a .safetensors file: which tensors it holds and where, checked before anything is believed.

Source: the format of safetensors, where 8 bytes say how long the header is, which is JSON, and the tensors follow it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm.errors import InputError

_LONGEST_HEADER = 100_000_000
"""Bytes; the format allows no more."""
_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32,
    "U16": 16, "U8": 8, "BOOL": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A tensor in a file.

    Attributes:
        path: the file.
        dtype: of the numbers, as the format calls it: "F32", "BF16", …
        shape: the tensor's dimensions.
        start: where its bytes begin in the file.
        size: how many bytes it has.
    """

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int


def entries(path: Path) -> dict[str, Entry]:
    """The tensors of a file, by name.

    Raises:
        InputError: it is no .safetensors file, or says of itself what cannot be.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(size - 8, _LONGEST_HEADER):
            raise _unreadable(path, f"its header would have {length:,} bytes")
        header = file.read(length)
    try:
        described = json.loads(header)
    except (ValueError, RecursionError):
        raise _unreadable(path, "its header is no JSON") from None
    if not isinstance(described, dict):
        raise _unreadable(path, "its header names no tensors")
    return {
        name: _entry(path, name, values, begin=8 + length, end=size)
        for name, values in described.items()
        if name != "__metadata__"
    }


def _entry(path: Path, name: str, values: Any, *, begin: int, end: int) -> Entry:  # noqa: ANN401 (whatever is there)
    known = isinstance(values, Mapping) and values.keys() >= {"dtype", "shape", "data_offsets"}
    if not known or values["dtype"] not in tuple(_BITS) or not _are_sizes(values["shape"]):  # a list has no hash
        raise _unreadable(path, f"it does not say what {name!r} is")
    shape, offsets = tuple(values["shape"]), values["data_offsets"]
    size = math.prod(shape) * _BITS[values["dtype"]] // 8
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[1] - offsets[0] != size or begin + offsets[1] > end:
        raise _unreadable(path, f"{name!r} is not where it says")
    return Entry(path, values["dtype"], shape, begin + offsets[0], size)


def _are_sizes(values: Any) -> bool:  # noqa: ANN401
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _unreadable(path: Path, problem: str) -> InputError:
    return InputError(f"{path}: not a .safetensors file that can be read ({problem}); use another one")

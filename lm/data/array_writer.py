"""Writing a one-dimensional `.npy` file piece by piece, without knowing its length beforehand."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lm import files


def token_dtype(vocab_size: int) -> str:
    """The smallest type for the ids of a vocabulary."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


class ArrayWriter:
    """Appends numbers to a `.npy` file."""

    def __init__(self, path: Path, *, dtype: npt.DTypeLike, lasting: bool = True) -> None:
        """Create the file at `path`; there may be one already. One that is not `lasting` is not waited for."""
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._path, self._lasting = path, lasting
        self._stream = path.open("wb")
        self._length = 0
        self._write_header()

    def __len__(self) -> int:
        """How many numbers have been written."""
        return self._length

    def append(self, values: npt.NDArray[Any]) -> None:
        """Write numbers after those that are there."""
        with files.naming(self._path):
            self._stream.write(values.astype(self._dtype, copy=False).tobytes())
        self._length += len(values)

    def close(self) -> None:
        """Finish the file; it is on the disk when this returns, if it is to last."""
        if not self._stream.closed:
            with files.naming(self._path):
                self._stream.seek(0)
                self._write_header()  # the first one was written with room for any length
                self._stream.flush()
                if self._lasting:
                    files.sync_open(self._stream.fileno())
                self._stream.close()

    def discard(self) -> None:
        """Close the file without finishing it."""
        with contextlib.suppress(OSError):  # as on a full disk, of which has been told already
            self._stream.close()

    def _write_header(self) -> None:
        described = np.lib.format.dtype_to_descr(self._dtype)
        header = {"descr": described, "fortran_order": False, "shape": (self._length,)}
        np.lib.format.write_array_header_1_0(self._stream, header)

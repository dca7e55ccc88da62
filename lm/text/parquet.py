"""Parquet files with a document or example per row, read a few rows at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from lm.errors import InputError, missing_packages
from lm.text.rows import Row

SUFFIX = ".parquet"
MAGIC_BYTES = b"PAR1"

_ROWS = 256  # at a time: a few megabytes of long documents
_BUFFER_BYTES = 1 << 20


def read_rows(path: Path, fields: Collection[str], *, name: str) -> Iterator[Row]:
    """Yield the rows of a table.

    Args:
        fields: the columns to read. If one is missing, rows name all columns, with `...` as the value of the others.

    Raises:
        InputError: the file is damaged, or pyarrow is not installed.
    """
    with _open_table(path, name) as table:
        names = table.schema_arrow.names
        read = [column for column in names if column in fields]
        others = {} if set(fields) <= set(names) else dict.fromkeys(names, ...)
        number = 0
        for batch in table.iter_batches(_ROWS, columns=read, use_threads=False):
            values = batch.to_pylist() if read else [{}] * batch.num_rows
            for row_values in values:
                number += 1
                yield Row(number, f"{name}: row {number}", {**others, **row_values})


def read_columns(path: Path, *, name: str) -> list[str]:
    """Return the column names; errors as of `read_rows`."""
    with _open_table(path, name) as table:
        names: list[str] = table.schema_arrow.names
        return names


@contextlib.contextmanager
def _open_table(path: Path, name: str) -> Iterator[Any]:
    try:
        import pyarrow  # noqa: PLC0415 (an extra, and slow)
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError:
        raise missing_packages(f"{name}: a Parquet file", "pyarrow") from None
    damage = (pyarrow.ArrowException, OSError, UnicodeDecodeError)
    try:
        with parquet.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER_BYTES) as table:
            yield table
    except damage as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise InputError(f"{name}: a damaged Parquet file ({reason})") from None

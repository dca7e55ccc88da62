"""Extract the text of zip archives and Parquet tables."""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from lm.errors import InputError

_BLOCK_BYTES = 1 << 20


def check_unpackable(name: str) -> None:
    """Raise InputError if a file of this name could not be unpacked, before it is downloaded."""
    if name.endswith(".parquet") and importlib.util.find_spec("pyarrow") is None:
        raise InputError(f"{name}: to read Parquet tables, install the pyarrow package (pip install pyarrow)")


def unpack(archive: Path, text: Path) -> None:
    """Extract the text of an archive to a file; nothing is left if that fails.

    Raises:
        InputError: the archive is damaged, or a package is missing.
    """
    check_unpackable(archive.name)
    part = text.with_name(text.name + ".part")
    with part.open("wb") as stream:
        for block in _read_parquet(archive) if archive.suffix == ".parquet" else _read_zip(archive):
            stream.write(block)
    part.replace(text)


def _read_zip(archive: Path) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(archive) as packed, packed.open(packed.namelist()[0]) as member:
            while block := member.read(_BLOCK_BYTES):
                yield block
    except (zipfile.BadZipFile, EOFError, IndexError) as error:
        raise InputError(f"{archive}: a damaged zip file ({error}); remove it and try again") from None


def _read_parquet(archive: Path) -> Iterator[bytes]:
    import pyarrow  # noqa: PLC0415 (an extra, and slow)
    import pyarrow.parquet  # noqa: PLC0415

    try:
        for batch in pyarrow.parquet.ParquetFile(archive).iter_batches(columns=["text"]):
            yield restore_wikitext(batch.column("text").to_pylist()).encode()
    except pyarrow.ArrowException as error:
        raise InputError(f"{archive}: a damaged Parquet file ({error}); remove it and try again") from None


def restore_wikitext(lines: Iterable[str]) -> str:
    """Return WikiText lines as in the original files, where empty lines hold a space."""
    return "".join(line or " \n" for line in lines)

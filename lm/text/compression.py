"""Reading compressed files: gzip, xz and Zstandard, recognised by their first bytes or else by their names.

No UTF-8 text begins with the bytes that these formats begin with, so compressed text is recognised on stdin too.
"""

from __future__ import annotations

import gzip
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

from lm.errors import InputError

Compression = Literal[".gz", ".xz", ".zst"]

FIRST_BYTES: dict[Compression, bytes] = {
    ".gz": b"\x1f\x8b",
    ".xz": b"\xfd7zXZ\x00",
    ".zst": b"\x28\xb5\x2f\xfd",
}

_ZSTD_INPUT_BYTES = 1 << 9
"""Little, as its decompressor gives out all that it can: four bytes can stand for a block of 128 KiB, so 16 MiB."""


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


def compression(path: Path, name: str) -> Compression | None:
    """The format a file is compressed in, by its first bytes or else by its name; None if it is not compressed."""
    with path.open("rb") as stream:
        beginning = stream.read(max(map(len, FIRST_BYTES.values())))
    if not beginning:
        return None
    told = (kind for kind, signature in FIRST_BYTES.items() if beginning.startswith(signature))
    named = (kind for kind in FIRST_BYTES if name.lower().endswith(kind))
    return next(told, None) or next(named, None)


def without_suffix(name: str) -> str:
    """A file's name without the suffix of a compression."""
    return next((name[: -len(kind)] for kind in FIRST_BYTES if name.lower().endswith(kind)), name)


def blocks(path: Path, kind: Compression | None, size: int, *, name: str) -> Iterator[bytes]:
    """The decompressed bytes of a file, in blocks of about `size` bytes, none of them empty.

    Raises:
        InputError: the file is damaged, or the package that reads it is missing.
    """
    readers: dict[Compression, Callable[[BinaryIO, int], Iterator[bytes]]]
    readers = {".gz": _gzip_blocks, ".xz": _xz_blocks, ".zst": _zstd_blocks}
    with path.open("rb") as stream:
        if kind is None:
            yield from _plain_blocks(stream, size)
            return
        damage: tuple[type[Exception], ...] = (gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError)
        if kind == ".zst":
            damage = (*damage, _zstd(name)[1])
        try:
            yield from readers[kind](stream, size)
        except damage as error:
            raise InputError(f"{name}: a damaged {kind} file ({error}); fetch or make it again") from None


def _plain_blocks(stream: Any, size: int) -> Iterator[bytes]:  # noqa: ANN401 (gzip and lzma have classes of their own)
    while block := stream.read(size):
        yield block


def _gzip_blocks(stream: BinaryIO, size: int) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=stream) as unpacked:
        yield from _plain_blocks(unpacked, size)


def _xz_blocks(stream: BinaryIO, size: int) -> Iterator[bytes]:
    with lzma.LZMAFile(stream) as unpacked:
        yield from _plain_blocks(unpacked, size)


def _zstd_blocks(stream: BinaryIO, size: int) -> Iterator[bytes]:
    """Frame by frame, since the ready-made readers take a file that was cut short for a whole one."""
    new, decompressor = _zstd(stream.name)[0], None
    for block in _plain_blocks(stream, min(size, _ZSTD_INPUT_BYTES)):
        rest = block
        while rest:
            decompressor = decompressor or new()
            unpacked = decompressor.decompress(rest)
            yield from (unpacked[start : start + size] for start in range(0, len(unpacked), size))
            rest = decompressor.unused_data if decompressor.eof else b""
            if decompressor.eof:
                decompressor = None
    if decompressor:
        raise EOFError("it ends in the middle")


def _zstd(name: str) -> tuple[Callable[[], _Decompressor], type[Exception]]:
    """What makes a decompressor, and the error it raises: Python's own from 3.14 on, else the zstandard package's."""
    if sys.version_info >= (3, 14):
        from compression import zstd  # noqa: PLC0415 (not there in older versions)

        return zstd.ZstdDecompressor, zstd.ZstdError
    try:
        import zstandard  # noqa: PLC0415 (an extra)
    except ImportError:
        raise InputError(f"{name}: reading .zst files needs zstandard: pip install 'lm-toolkit[zstd]'") from None
    return lambda: zstandard.ZstdDecompressor().decompressobj(), zstandard.ZstdError

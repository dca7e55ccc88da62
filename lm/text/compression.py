"""Decompress files (gzip, xz, zstd) in bounded memory, and read their lines."""

from __future__ import annotations

import codecs
import gzip
import lzma
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

from lm.errors import InputError, missing_packages
from lm.text.encodings import UnreadableError

Compression = Literal[".gz", ".xz", ".zst"]

MAGIC_BYTES: dict[Compression, bytes] = {
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


def detect_compression(path: Path, name: str) -> Compression | None:
    """Return the compression of a file by its magic bytes, else by its suffix; None if it is not compressed."""
    with path.open("rb") as stream:
        beginning = stream.read(max(map(len, MAGIC_BYTES.values())))
    if not beginning:
        return None
    kinds = (kind for kind, signature in MAGIC_BYTES.items() if beginning.startswith(signature))
    named = (kind for kind in MAGIC_BYTES if name.lower().endswith(kind))
    return next(kinds, None) or next(named, None)


def strip_compression_suffix(name: str) -> str:
    """Return a file name without its compression suffix."""
    return next((name[: -len(kind)] for kind in MAGIC_BYTES if name.lower().endswith(kind)), name)


def read_blocks(path: Path, kind: Compression | None, size: int, *, name: str) -> Iterator[bytes]:
    """Yield the decompressed bytes of a file in non-empty blocks of about `size` bytes.

    Raises:
        InputError: the file is damaged, or the package that decompresses it is missing.
    """
    readers: dict[Compression, Callable[[BinaryIO, int], Iterator[bytes]]]
    readers = {".gz": _read_gzip, ".xz": _read_xz, ".zst": _read_zstd}
    with path.open("rb") as stream:
        if kind is None:
            yield from read_plain(stream, size)
            return
        damage: tuple[type[Exception], ...] = (gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError)
        if kind == ".zst":
            damage = (*damage, _import_zstd(name)[1])
        try:
            yield from readers[kind](stream, size)
        except damage as error:
            raise UnreadableError(f"{name}: a damaged {kind} file ({error})") from None


def read_plain(stream: Any, size: int) -> Iterator[bytes]:
    """Yield the bytes of a stream in blocks."""
    while block := stream.read(size):
        yield block


def _read_gzip(stream: BinaryIO, size: int) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=stream) as unpacked:
        yield from read_plain(unpacked, size)


def _read_xz(stream: BinaryIO, size: int) -> Iterator[bytes]:
    with lzma.LZMAFile(stream) as unpacked:
        yield from read_plain(unpacked, size)


def _read_zstd(stream: BinaryIO, size: int) -> Iterator[bytes]:
    """Decompress frame by frame: the ready-made readers accept truncated files."""
    new, decompressor = _import_zstd(stream.name)[0], None
    for block in read_plain(stream, min(size, _ZSTD_INPUT_BYTES)):
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


def _import_zstd(name: str) -> tuple[Callable[[], _Decompressor], type[Exception]]:
    """Return the decompressor and its error type: Python's from 3.14 on, else the zstandard package's."""
    if sys.version_info >= (3, 14):
        from compression import zstd  # noqa: PLC0415 (not there in older versions)

        return zstd.ZstdDecompressor, zstd.ZstdError
    try:
        import zstandard  # noqa: PLC0415 (an extra)
    except ImportError:
        raise missing_packages(f"{name}: a .zst file", "zstandard") from None
    return lambda: zstandard.ZstdDecompressor().decompressobj(), zstandard.ZstdError


_BLOCK_BYTES = 1 << 18

_MAX_LINE_BYTES = 1 << 28
"""Bytes of a line; a longer one is not read into memory."""


def decode_lines(parts: Iterable[bytes], *, name: str) -> Iterator[str]:
    """Yield the lines of UTF-8 bytes without their LF or CRLF.

    Args:
        parts: the bytes, cut anywhere; the last line need not be terminated.

    Raises:
        InputError: a line is not valid UTF-8, or longer than 256 MiB.
    """
    number, pending = 0, bytearray()
    for part in parts:
        pending += part
        *whole, rest = pending.split(b"\n")
        if len(rest) > _MAX_LINE_BYTES:
            raise InputError(f"{name}: line {number + len(whole) + 1} is longer than {_MAX_LINE_BYTES >> 20} MiB")
        pending = bytearray(rest)
        for line in whole:
            number += 1
            yield _decode_line(line, number, name)
    if pending:
        yield _decode_line(pending, number + 1, name)


def read_file_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file, which may be compressed.

    Raises:
        InputError: the file is missing or damaged, or a line is invalid (see `decode_lines`).
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    yield from decode_lines(
        read_blocks(path, detect_compression(path, path.name), _BLOCK_BYTES, name=str(path)), name=str(path)
    )


def _decode_line(line: bytes | bytearray, number: int, name: str) -> str:
    try:
        text = line.removeprefix(codecs.BOM_UTF8 if number == 1 else b"").decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: line {number} is not valid UTF-8 (at its byte {error.start})") from None
    return text.removesuffix("\r")

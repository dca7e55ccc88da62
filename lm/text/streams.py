"""Bytes of files as text: decompressed, decoded from UTF-8, and divided into lines."""

from __future__ import annotations

import codecs
import gzip
import lzma
import shlex
import sys
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator
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


_CANDIDATES = ("CP949", "SHIFT_JIS", "EUC-JP", "GB18030", "BIG5", "CP1251", "CP1252")
"""As `iconv` and Python call them; the last two are what single bytes in most texts of Europe are."""

_NO_TEXT = ("Cc", "Co", "Cn")
"""Categories of control characters, private ones, and those that Unicode does not have."""

_SAMPLE_BYTES = 1 << 16


def decode(data: bytes, *, name: str) -> str:
    """The text of a whole file or pipe.

    Raises:
        InputError: it is not UTF-8; the message says what it may be and how to convert it.
    """
    refuse_utf16(data, name=name)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise not_utf8(error, name=name, offset=error.start) from None


def refuse_utf16(beginning: bytes, *, name: str, compressed: bool = False) -> None:
    """Raise InputError if a text begins with the byte order mark of UTF-16; for the arguments see `not_utf8`."""
    if beginning.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise InputError(f"{name}: looks like UTF-16 text; convert it first: {_command('UTF-16', name, compressed)}")


def not_utf8(error: UnicodeDecodeError, *, name: str, offset: int, compressed: bool = False) -> InputError:
    """The error for bytes that could not be decoded: where they are, what their encoding may be, how to convert them.

    Args:
        error: raised by the decoder; the encoding is guessed from the bytes in it.
        name: of the file, for messages.
        offset: of the first wrong byte in the text.
        compressed: whether the file has to be decompressed first.
    """
    where = f"byte offset {offset}{' of the decompressed text' if compressed else ''}"
    wrong = f"{name}: not valid UTF-8 at {where} (0x{error.object[error.start]:02x})"
    if error.reason == "unexpected end of data":
        return InputError(f"{wrong}: it ends inside a character, so it seems to be cut off; get the whole text")
    fitting = _fitting(error.object[error.start : error.start + _SAMPLE_BYTES])
    guess = f"; it could be {', '.join(fitting)}" if fitting else "; it may be no text at all"
    return InputError(f"{wrong}; if you know its encoding, convert it: {_command('ENCODING', name, compressed)}{guess}")


def _command(encoding: str, name: str, compressed: bool) -> str:
    """The command that converts a file; what comes from a pipe has no name that `iconv` could open."""
    convert = f"iconv -f {encoding} -t UTF-8"
    file = without_suffix(name) if compressed else name
    return convert if name == "stdin" else f"{convert} {shlex.quote(file)} > NEW"


def _fitting(sample: bytes) -> list[str]:
    """The encodings in which a sample is text: each byte means something, and nothing is a control character."""
    return [name for name in _CANDIDATES if _is_text(sample, name)]


def _is_text(sample: bytes, encoding: str) -> bool:
    try:
        text = codecs.getincrementaldecoder(encoding)("strict").decode(sample)  # which may end inside a character
    except UnicodeDecodeError:
        return False
    return all(letter.isspace() or unicodedata.category(letter) not in _NO_TEXT for letter in text)


_BLOCK_BYTES = 1 << 18

_LONGEST = 1 << 28
"""Bytes of a line; a longer one is not read into memory."""


def lines(parts: Iterable[bytes], *, name: str) -> Iterator[str]:
    """The lines of a text without their ends, which are line feeds or carriage returns and line feeds.

    Args:
        parts: the bytes, cut anywhere; the last line need not have an end.
        name: of the file, for messages.

    Raises:
        InputError: a line is not valid UTF-8, or longer than 256 MiB.
    """
    number, held = 0, bytearray()
    for part in parts:
        held += part
        *whole, rest = held.split(b"\n")
        if len(rest) > _LONGEST:
            raise InputError(f"{name}: line {number + len(whole) + 1} is longer than {_LONGEST >> 20} MiB")
        held = bytearray(rest)
        for line in whole:
            number += 1
            yield _decoded(line, number, name)
    if held:
        yield _decoded(held, number + 1, name)


def file_lines(path: Path) -> Iterator[str]:
    """The lines of a file, which may be compressed.

    Raises:
        InputError: there is no such file, it is damaged, or its lines are refused by `lines`.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    yield from lines(blocks(path, compression(path, path.name), _BLOCK_BYTES, name=str(path)), name=str(path))


def _decoded(line: bytes | bytearray, number: int, name: str) -> str:
    try:
        text = line.removeprefix(codecs.BOM_UTF8 if number == 1 else b"").decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: line {number} is not valid UTF-8 (at its byte {error.start})") from None
    return text.removesuffix("\r")

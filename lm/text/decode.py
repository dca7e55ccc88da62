"""Decompress and decode files in bounded memory: blocks of text, and lines."""

from __future__ import annotations

import bz2
import codecs
import gzip
import itertools
import lzma
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from lm.errors import InputError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAGIC_BYTES: Mapping[str, bytes] = {
    ".gz": b"\x1f\x8b",
    ".bz2": b"BZh",
    ".xz": b"\xfd7zXZ\x00",
    ".zst": b"\x28\xb5\x2f\xfd",
}
"""The first bytes of compressed files, by suffix."""

BLOCK_BYTES = 1 << 18
BYTE_ORDER_MARK = "\ufeff"
_OPENERS: Mapping[str | None, Callable[..., Any]] = {
    ".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": zstd.open,
}  # fmt: skip
_ENCODINGS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


class UnreadableError(InputError):
    """A file that is damaged, or not text in its encoding."""


def detect_compression(path: Path) -> str | None:
    """Return the compression of a file by its first bytes; None if it is not compressed."""
    with path.open("rb") as stream:
        beginning = stream.read(8)
    return next((kind for kind, signature in MAGIC_BYTES.items() if beginning.startswith(signature)), None)


def strip_compression_suffix(name: str) -> str:
    """Return a file name without its compression suffix."""
    return next((name[: -len(kind)] for kind in MAGIC_BYTES if name.lower().endswith(kind)), name)


def read_stream(stream: BinaryIO | Any, size: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Yield the bytes of a stream in blocks."""
    while block := stream.read(size):
        yield block


def read_blocks(path: Path, name: str) -> Iterator[bytes]:
    """Yield the decompressed bytes of a file in blocks.

    Raises:
        UnreadableError: the file is damaged, or not readable.
    """
    try:
        with _OPENERS.get(detect_compression(path), Path.open)(path, "rb") as stream:
            yield from read_stream(stream)
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zstd.ZstdError) as error:
        raise UnreadableError(f"{name}: unreadable or damaged ({error})") from None


def decode_blocks(blocks: Iterable[bytes], name: str, *, encoding: str = "utf-8") -> Iterator[str]:
    """Yield decoded text, as it is.

    Args:
        encoding: used unless a byte order mark says UTF-16 or UTF-32.

    Raises:
        UnreadableError: the bytes are not text in the encoding; the message has the byte offset.
    """
    decoder, offset = None, 0
    for block in itertools.chain(blocks, [b""]):
        if decoder is None:
            encoding = next((name for mark, name in _ENCODINGS.items() if block.startswith(mark)), encoding)
            decoder = codecs.getincrementaldecoder(encoding)()
        pending = len(decoder.getstate()[0])
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeError as error:
            place = offset - pending + getattr(error, "start", 0)
            problem = "a binary file" if b"\0" in block else f"not valid {encoding} at byte offset {place}"
            raise UnreadableError(f"{name}: {problem}") from None
        if offset == 0 and "\0" in text:
            raise UnreadableError(f"{name}: a binary file")
        offset += len(block)
        yield text


def normalize_text(text: str) -> str:
    """Return a text without byte order mark and with LF for CRLF, as files are read."""
    return text.removeprefix(BYTE_ORDER_MARK).replace("\r\n", "\n")


def normalize_blocks(blocks: Iterable[str]) -> Iterator[str]:
    """Normalise a text that comes in blocks; see `normalize_text`."""
    rest, mark = "", BYTE_ORDER_MARK
    for block in itertools.chain(blocks, [None]):
        text = (rest + (block or "")).removeprefix(mark)
        mark = "" if text else mark
        rest = "\r" if block is not None and text.endswith("\r") else ""
        yield text.removesuffix(rest).replace("\r\n", "\n")


def split_lines(blocks: Iterable[str]) -> Iterator[str]:
    """Yield lines, ended by LF only; the last one need not be ended."""
    parts = list[str]()
    for block in blocks:
        first, *others = block.split("\n")
        parts.append(first)
        for other in others:
            yield "".join(parts)
            parts = [other]
    if rest := "".join(parts):
        yield rest


def decode_lines(blocks: Iterable[bytes], name: str) -> Iterator[str]:
    """Yield the lines of bytes in UTF-8, each as soon as it is complete; errors as of `decode_blocks`."""
    return split_lines(normalize_blocks(decode_blocks(blocks, name)))

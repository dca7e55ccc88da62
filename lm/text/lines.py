"""Lines of text from a stream: each is given as soon as its line feed has come."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from pathlib import Path

from lm.errors import InputError
from lm.text.compression import blocks, compression

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

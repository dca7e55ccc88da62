"""Text encodings: UTF-8, what a byte order mark says, or the encoding that is given."""

from __future__ import annotations

import codecs

from lm.errors import InputError

_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


class UnreadableError(InputError):
    """A file that is damaged, not readable, or not text in the expected encoding."""


def find_encoding(beginning: bytes, given: str) -> str:
    """Return the encoding that a byte order mark of UTF-16 or UTF-32 says, else the given one."""
    return next((name for mark, name in _MARKS.items() if beginning.startswith(mark)), given)


def decode(data: bytes, *, name: str) -> str:
    """Decode the bytes of a whole file or pipe; UnreadableError if they are not UTF-8."""
    try:
        return data.decode(find_encoding(data, "utf-8"))
    except UnicodeDecodeError as error:
        raise UnreadableError(f"{name}: not valid UTF-8 at byte offset {error.start}") from None

"""Bytes that are not UTF-8: error messages that tell what their encoding may be and how to convert them."""

from __future__ import annotations

import codecs
import shlex
import unicodedata

from lm.errors import InputError
from lm.text.compression import without_suffix

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

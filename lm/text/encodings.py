"""Detect wrong text encodings and suggest how to read the file."""

from __future__ import annotations

import codecs
import itertools
import shlex
import unicodedata
from collections.abc import Iterable

from lm.errors import InputError

_CANDIDATE_ENCODINGS = ("CP949", "SHIFT_JIS", "EUC-JP", "GB18030", "BIG5", "CP1251", "CP1252")
"""Names known to `iconv` and Python; the last two cover most European single-byte texts."""

_NON_TEXT_CATEGORIES = ("Cc", "Co", "Cn")
"""Unicode categories of control, private and unassigned characters."""

_SAMPLE_BYTES = 1 << 16


class UnreadableError(InputError):
    """A file that is damaged, not readable, or not text in the expected encoding."""


def decode(data: bytes, *, name: str) -> str:
    """Decode the bytes of a whole file or pipe as UTF-8.

    Raises:
        UnreadableError: it is not UTF-8; the message suggests encodings and a command to convert it.
    """
    refuse_utf16(data, name=name, can_name_encoding=False)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise decoding_error(error, name=name, offset=error.start, settings=()) from None


def is_non_ascii_utf8(blocks: Iterable[bytes]) -> bool:
    """Return whether bytes are valid UTF-8 with at least one character beyond ASCII, and without NUL."""
    decoder, is_ascii = codecs.getincrementaldecoder("utf-8")("strict"), True
    try:
        for block in blocks:
            if b"\0" in block:
                return False
            is_ascii = is_ascii and block.isascii()
            decoder.decode(block)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return not is_ascii


def refuse_utf16(beginning: bytes, *, name: str, compressed: bool = False, can_name_encoding: bool = True) -> None:
    """Raise UnreadableError if a text begins with the byte order mark of UTF-16 or UTF-32, or is clearly UTF-16.

    Args:
        compressed: whether the file has to be decompressed first.
        can_name_encoding: whether a setting selects another encoding.
    """
    marks = {"UTF-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), "UTF-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)}
    marked = (encoding for encoding, both in marks.items() if beginning.startswith(both))
    encoding = next(marked, None) or _guess_utf16(beginning[:_SAMPLE_BYTES])
    if encoding is not None:
        how = f"convert it first: {_iconv_command(encoding, name, compressed)}"
        advice = f"name its encoding, or {how}" if can_name_encoding else how
        settings = [f"encoding={encoding.lower()}"] if can_name_encoding else []
        raise UnreadableError(f"{name}: looks like {encoding} text; {advice}", settings=settings)


def _guess_utf16(sample: bytes) -> str | None:
    """Return the name of UTF-16 in a byte order if most bytes at every other position, and no others, are zero."""
    zeros = [sample[first::2].count(0) for first in (0, 1)]
    for encoding, (most, none) in (("UTF-16LE", zeros[::-1]), ("UTF-16BE", zeros)):
        if not none and 4 * most > len(sample):
            return encoding
    return None


def decoding_error(
    error: UnicodeDecodeError,
    *,
    name: str,
    offset: int,
    compressed: bool = False,
    encoding: str = "utf-8",
    settings: tuple[str, ...] = ("encoding",),
) -> UnreadableError:
    """Build the error for undecodable bytes: byte offset, likely encodings, and how to convert the file.

    Args:
        error: raised by the decoder; encodings are guessed from its bytes.
        offset: of the first invalid byte in the text.
        compressed: whether the file has to be decompressed first.
        settings: those that select another encoding; empty where files must be UTF-8.
    """
    where = f"byte offset {offset}{' of the decompressed text' if compressed else ''}"
    called = "UTF-8" if codecs.lookup(encoding).name == "utf-8" else encoding
    wrong = f"{name}: not valid {called} at {where} (0x{error.object[error.start]:02x})"
    if error.reason == "unexpected end of data" or "incomplete" in error.reason or "truncated" in error.reason:
        return UnreadableError(f"{wrong}: it ends inside a character, so it seems to be cut off; get the whole text")
    if called != "UTF-8":
        return UnreadableError(f"{wrong}; is it in another encoding?", settings=settings)
    fitting = _guess_encodings(error.object[error.start : error.start + _SAMPLE_BYTES])
    guess = f"; it could be {', '.join(fitting)}" if fitting else "; it may be no text at all"
    convert = _iconv_command("ENCODING", name, compressed)
    known = "if you know its encoding, " + ("name it, or " if settings else "") + f"convert it: {convert}"
    return UnreadableError(f"{wrong}; {known}{guess}", settings=settings)


def _iconv_command(encoding: str, name: str, compressed: bool) -> str:
    """Return the command that converts a file; a pipe has no name to give to `iconv`."""
    convert = f"iconv -f {encoding} -t UTF-8"
    file = name.rpartition(".")[0] if compressed and name.endswith((".gz", ".xz", ".zst")) else name
    return convert if name == "stdin" else f"{convert} {shlex.quote(file)} > NEW"


def _guess_encodings(sample: bytes) -> list[str]:
    """Return the candidate encodings in which a sample decodes without control or unassigned characters.

    Those come first in which the fewest Latin letters are next to letters of another script.
    """
    decoded = {name: text for name in _CANDIDATE_ENCODINGS if (text := _try_decode(sample, name)) is not None}
    return sorted(decoded, key=lambda name: _count_mixed_scripts(decoded[name]))


def _try_decode(sample: bytes, encoding: str) -> str | None:
    try:
        text = codecs.getincrementaldecoder(encoding)("strict").decode(sample)  # which may end inside a character
    except UnicodeDecodeError:
        return None
    is_text = all(letter.isspace() or unicodedata.category(letter) not in _NON_TEXT_CATEGORIES for letter in text)
    return text if is_text else None


def _count_mixed_scripts(text: str) -> int:
    """Count pairs of adjacent letters of which one is Latin."""
    are_latin = [unicodedata.name(letter, "").startswith("LATIN") if letter.isalpha() else None for letter in text]
    return sum(None not in pair and pair[0] != pair[1] for pair in itertools.pairwise(are_latin))

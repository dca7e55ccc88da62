"""Text from files and models made harmless for a terminal: control characters, which could command it, are drawn."""

from __future__ import annotations

import re
import sys
from typing import IO

TAB = "    "
LINE_END = "↵"

_CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_LINE_ENDS = re.compile(r"\r\n|[\x85\u2028\u2029]")
_ESCAPED_IN_JSON = re.compile(r"[\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def visible(text: str) -> str:
    """Text that can do nothing to a terminal: control characters are drawn, all line ends are line feeds."""
    return harmless(_LINE_ENDS.sub("\n", text).replace("\t", TAB))


def label(text: object) -> str:
    """The name of a file, a key or a token on one line: line ends and tabs are drawn too."""
    return harmless(str(text)).replace("\n", _picture("\n"))


def harmless(text: str) -> str:
    """Text with all control characters but line feeds drawn; bytes that are no UTF-8, in file names, are escaped."""
    return text if text.isprintable() else _CONTROLS.sub(lambda match: _picture(match[0]), text)


def for_stream(text: str, stream: IO[str] | None = None) -> str:
    """Text as it is for a pipe or a file; for a terminal with control characters drawn, but for tabs.

    Args:
        text: what a model or a person wrote, or a part of it.
        stream: where it goes [default: stdout].
    """
    if not (stream or sys.stdout).isatty():
        return text
    return "\t".join(map(harmless, text.replace("\r\n", "\n").split("\t")))


def json_line(values: object) -> str:
    r"""JSON on one line, also for readers to whom U+0085, U+2028 and U+2029 end a line as \n does, and for terminals.

    The characters that could command one are escaped, as JSON may: they are the same to a reader. NaN and infinite
    numbers are null.
    """
    from lm.files import json_text  # noqa: PLC0415 (what prints imports nothing of the library by itself)

    line = json_text(values)
    return _ESCAPED_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", line)


def _picture(control: str) -> str:
    code = ord(control)
    if 0xD800 <= code <= 0xDFFF:
        return f"\\u{code:04x}"
    return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else "�"

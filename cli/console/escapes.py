"""Escaping of control characters in text from files and models, which could control a terminal."""

from __future__ import annotations

import re
import sys
from typing import IO

TAB = "    "
LINE_END = "↵"

_CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_LINE_ENDS = re.compile(r"\r\n|[\x85\u2028\u2029]")
_ESCAPED_IN_JSON = re.compile(r"[\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def escape_controls_and_line_ends(text: str) -> str:
    """Replace control characters by symbols, and all line ends by line feeds."""
    return escape_controls(_LINE_ENDS.sub("\n", text).replace("\t", TAB))


def format_label(text: object) -> str:
    """Format the name of a file, a key or a token on one line, with symbols for line ends and tabs."""
    return escape_controls(str(text)).replace("\n", _symbol("\n"))


def escape_controls(text: str) -> str:
    """Replace control characters except line feeds by symbols, and escape undecodable bytes of file names."""
    return text if text.isprintable() else _CONTROLS.sub(lambda match: _symbol(match[0]), text)


def escape_for_stream(text: str, stream: IO[str] | None = None) -> str:
    """Return text for a stream (by default stdout); for a terminal, control characters except tabs are replaced."""
    if not (stream or sys.stdout).isatty():
        return text
    return "\t".join(map(escape_controls, text.replace("\r\n", "\n").split("\t")))


def format_json_line(values: object) -> str:
    """Return values as one line of JSON that is safe for terminals and line-based readers.

    U+0085, U+2028, U+2029 and control characters are escaped; NaN and infinity become null.
    """
    from lm.files import to_json

    line = to_json(values)
    return _ESCAPED_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", line)


def _symbol(control: str) -> str:
    code = ord(control)
    if 0xD800 <= code <= 0xDFFF:
        return f"\\u{code:04x}"
    return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else "�"

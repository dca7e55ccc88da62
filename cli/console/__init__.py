"""Terminal output: UTF-8 streams, escaped control characters, wrapped lines, numbers for people; `figures` draws.

Imports `lm` only for what needs no torch. Colours are indices of the 256-colour palette from 16 on, because the first
sixteen depend on the user's theme; they are readable on dark and light backgrounds.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from lm.training import launcher_env

LINES = (32, 166, 162, 28, 98, 136)  # blue, orange, magenta, green, violet, ochre
"""Colours of curves, of medium lightness; neighbours are distinguishable with colour blindness."""

RESET = "\x1b[0m"


def is_colour_enabled() -> bool:
    """Whether stdout is coloured: by NO_COLOR and FORCE_COLOR, else if it is a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (sys.stdout.isatty() and os.environ.get("TERM") != "dumb")


LINE_END = "↵"

_INVISIBLE = (*range(0x80, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_ON_ONE_LINE = {**dict.fromkeys(_INVISIBLE, "�"), **{code: chr(0x2400 + code) for code in range(0x20)}, 0x7F: "␡"}
_IN_TEXT = {**_ON_ONE_LINE, ord("\n"): "\n"}
_HEADING_WIDTH = 8
_MAX_PLAIN_VALUE = 1e6


def prepare_standard_streams() -> None:
    """Open closed standard streams and use UTF-8; called once, before anything is printed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream: Any = getattr(sys, name)
        if stream is None:  # a file that is opened later would get its descriptor
            stream = open(os.open(os.devnull, os.O_RDWR), mode, closefd=False)  # noqa: SIM115 (it stays open)
            setattr(sys, name, stream)
        stream.reconfigure(encoding="utf-8", errors="strict" if mode == "r" else "backslashreplace")
    raw: Any = _ErrorIgnoringFile(sys.stderr.fileno(), "w", closefd=False)
    sys.stderr = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)


class _ErrorIgnoringFile(io.FileIO):
    """A file that ignores write errors, as of a closed pipe or terminal, so that training continues."""

    def write(self, data: Any) -> int:
        with contextlib.suppress(OSError):
            return super().write(data)
        return len(data)


def escape_controls(text: str) -> str:
    """Replace control characters except line feeds by symbols, and escape undecodable bytes of file names."""
    return text.encode(errors="backslashreplace").decode().translate(_IN_TEXT)


def format_label(text: object) -> str:
    """Format the name of a file, a key or a token on one line, with symbols for line ends and tabs."""
    return escape_controls(str(text)).translate(_ON_ONE_LINE)


def escape_controls_and_line_ends(text: str) -> str:
    """Replace control characters by symbols, all line ends by line feeds, and tabs by spaces."""
    return escape_controls(re.sub("\r\n|[\x85\u2028\u2029]", "\n", text).replace("\t", "    "))


def escape_for_stream(text: str, stream: IO[str] | None = None) -> str:
    """Return text for a stream (by default stdout); for a terminal, control characters except tabs are replaced."""
    if not (stream or sys.stdout).isatty():
        return text
    return "\t".join(map(escape_controls, text.replace("\r\n", "\n").split("\t")))


def format_json_line(values: object) -> str:
    """Return values as one line of JSON that is safe for terminals and line-based readers; NaN becomes null."""
    from lm.files import to_json

    return re.sub("[\x7f-\x9f\u2028\u2029\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", to_json(values))


def print_note(text: str) -> None:
    """Print a line on stderr, with control characters escaped; only on the reporting rank."""
    if launcher_env.is_reporting():
        print(escape_controls(text), file=sys.stderr, flush=True)


def print_labelled(name: str, text: str) -> None:
    """Print a line with a heading on stderr; wrapped on a terminal."""
    print_note(_wrap(f"{name:<{_HEADING_WIDTH - 1}} {text}", sys.stderr, indent=_HEADING_WIDTH))


def print_warnings(warnings: Iterable[str]) -> None:
    """Print warnings on stderr."""
    for warning in warnings:
        print_labelled("warning", warning)


def print_notes(notes: Iterable[str]) -> None:
    """Print notes about skipped and normalised files on stderr."""
    for note in notes:
        print_labelled("note", note)


def print_paragraph(text: str, *, indent: int = 0) -> None:
    """Print a line on stdout; wrapped on a terminal, where lines after the first are indented."""
    print(_wrap(escape_controls(text), sys.stdout, indent=indent))


def _wrap(text: str, stream: IO[str], *, indent: int) -> str:
    if not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return textwrap.fill(text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def quote(path: Path | str) -> str:
    """Return a path as it is typed in a command."""
    return shlex.quote(str(path))


def format_count(number: float) -> str:
    """Format a number: 812, 4.1k, 12.3M, 1.5G."""
    for power, prefix in enumerate("EPTGMk"):
        limit = 1000.0 ** (6 - power)
        if abs(number) >= 0.9995 * limit:  # below that, three digits would round to 1000 of the smaller unit
            return f"{number / limit:.3g}{prefix}"
    return f"{number:.3g}"


def format_number_of(number: int, noun: str) -> str:
    """Format a number of things: 1 line, 2,000 lines."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_bytes(number: float) -> str:
    """Format bytes: 812 B, 4.1 kB, 12.3 MB."""
    digits, prefix = re.fullmatch(r"(.*?)([kMGTPE]?)", format_count(number)).groups()  # type: ignore[union-attr]
    return f"{digits} {prefix}B"


def format_duration(seconds: float) -> str:
    """Format seconds: 8.1 s, 2:05, 1:02:05."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_perplexity(nats: float) -> str:
    """Format the perplexity of a loss in nats."""
    return f"{math.exp(nats):.2f}" if nats < 20 else "over 1e8"


def format_value(value: object, decimals: int = 3) -> str:
    """Format a text, a count or a measured value, in scientific notation if it is huge; a dash for None."""
    if isinstance(value, float):
        return f"{value:,.{decimals}f}" if value < _MAX_PLAIN_VALUE else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else "–" if value is None else str(value)

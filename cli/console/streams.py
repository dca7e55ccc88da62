"""The standard streams of a command: they exist, speak UTF-8, and a broken stderr never ends a command."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path
from typing import Any


def prepare() -> None:
    """Prepare stdin, stdout and stderr of this process for a command; called once, before anything is printed."""
    _open_missing()
    _use_utf8()
    sys.stderr = _forgiving(sys.stderr)


def _open_missing() -> None:
    """Replace streams that the caller has closed: by an empty input, and by outputs that nobody reads.

    Otherwise a file that is opened later would take their place, and receive what was never meant for it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # each gets the lowest number that is free
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 (it stays)
            os.set_inheritable(stream.fileno(), True)  # worker processes have the same streams
            setattr(sys, name, stream)


def _use_utf8() -> None:
    """Read and write UTF-8 in pipes and files whatever the locale is; a terminal keeps its own encoding.

    Line ends are written as they are. File names that are not UTF-8 are escaped.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
            if not stream.isatty():
                stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")
    if isinstance(sys.stdin, io.TextIOWrapper) and not sys.stdin.isatty():
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")


def _forgiving(stream: Any) -> Any:  # noqa: ANN401 (tests and notebooks have streams of their own)
    """A text stream as `stream`, which drops what cannot be written: see `_Forgiving`."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    with contextlib.suppress(OSError):
        stream.flush()
    raw: Any = _Forgiving(stream)
    return io.TextIOWrapper(
        raw, encoding=stream.encoding, errors=stream.errors, newline="\n", line_buffering=True, write_through=True
    )


class _Forgiving(io.RawIOBase):
    """A raw stream that drops what cannot be written: nobody reads the pipe, the terminal is closed, the disk is full.

    It has no buffer, so that a signal handler can print while an earlier write is still waiting.
    """

    def __init__(self, text: io.TextIOWrapper) -> None:
        buffer: Any = text.buffer
        self._stream: io.RawIOBase = getattr(buffer, "raw", buffer)
        self._text = text  # which would close the stream if nothing referred to it

    def write(self, data: Any) -> int:  # noqa: ANN401 (any buffer)
        """Write all of the data, or drop what is left of it at the first error; returns their number of bytes."""
        left = memoryview(data).cast("B")
        number = len(left)
        with contextlib.suppress(OSError, ValueError):
            while left and (written := self._stream.write(left)):
                left = left[written:]
        return number

    def writable(self) -> bool:
        """Whether it can be written to: always."""
        return True

    def fileno(self) -> int:
        """The file descriptor."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._stream.isatty()

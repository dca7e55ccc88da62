"""Standard streams: make sure that they exist, use UTF-8, and that a broken stderr doesn't end a command."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path
from typing import Any


def prepare_standard_streams() -> None:
    """Prepare stdin, stdout and stderr; called once, before anything is printed."""
    _open_missing()
    _use_utf8()
    sys.stderr = _wrap_ignoring_errors(sys.stderr)


def _open_missing() -> None:
    """Replace closed streams by /dev/null.

    Otherwise a file that is opened later would get their file descriptor, and receive their output.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # each gets the lowest free descriptor
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 (it stays)
            os.set_inheritable(stream.fileno(), True)  # worker processes have the same streams
            setattr(sys, name, stream)


def _use_utf8() -> None:
    """Use UTF-8 in pipes and files regardless of the locale; a terminal keeps its encoding.

    Line ends are written unchanged. File names that are not UTF-8 are escaped.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
            if not stream.isatty():
                stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")
    if isinstance(sys.stdin, io.TextIOWrapper) and not sys.stdin.isatty():
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")


def _wrap_ignoring_errors(stream: Any) -> Any:  # noqa: ANN401 (tests and notebooks have streams of their own)
    """Wrap a text stream in `_ErrorIgnoringStream`."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    with contextlib.suppress(OSError):
        stream.flush()
    raw: Any = _ErrorIgnoringStream(stream)
    return io.TextIOWrapper(
        raw, encoding=stream.encoding, errors=stream.errors, newline="\n", line_buffering=True, write_through=True
    )


class _ErrorIgnoringStream(io.RawIOBase):
    """A raw stream that ignores write errors: closed pipe or terminal, full disk.

    It is unbuffered, so that a signal handler can print during another write.
    """

    def __init__(self, text: io.TextIOWrapper) -> None:
        buffer: Any = text.buffer
        self._stream: io.RawIOBase = getattr(buffer, "raw", buffer)
        self._text = text  # keeps the stream open

    def write(self, data: Any) -> int:  # noqa: ANN401 (any buffer)
        """Write the data, or drop the rest at the first error; returns the number of bytes."""
        unwritten = memoryview(data).cast("B")
        n_bytes = len(unwritten)
        with contextlib.suppress(OSError, ValueError):
            while unwritten and (written := self._stream.write(unwritten)):
                unwritten = unwritten[written:]
        return n_bytes

    def writable(self) -> bool:
        """Always True."""
        return True

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()

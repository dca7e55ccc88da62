"""Standard streams: they exist, use UTF-8, and a broken stderr doesn't end a command."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path
from typing import Any


def prepare_standard_streams() -> None:
    """Prepare stdin, stdout and stderr; called once, before anything is printed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream: Any = getattr(sys, name)
        if stream is None:  # closed: a file that is opened later would get its descriptor
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 (it stays)
            os.set_inheritable(stream.fileno(), True)  # worker processes have the same streams
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)  # keeps it open
        stream.reconfigure(encoding="utf-8", errors="strict" if mode == "r" else "backslashreplace")
    raw: Any = _ErrorIgnoringFile(sys.stderr.fileno(), "w", closefd=False)
    sys.stderr = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)


class _ErrorIgnoringFile(io.FileIO):
    """A file that ignores write errors, as of a closed pipe or terminal, so that training continues."""

    def write(self, data: Any) -> int:
        with contextlib.suppress(OSError):
            return super().write(data)
        return len(data)

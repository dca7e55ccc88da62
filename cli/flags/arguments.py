"""A text as an argument, or from a pipe."""

from __future__ import annotations

import sys

from lm.config.options import check_text

_NAME = "the text of the command line"


def text_argument(argument: str | None) -> str | None:
    """The text of an argument; `-`, or none where something is piped in, reads stdin, less one line end.

    Returns:
        None without an argument at a terminal.

    Raises:
        InputError: stdin is not UTF-8.
        UsageError: the argument is not.
    """
    if argument is not None and argument != "-":
        check_text(argument, name=_NAME)
        return argument
    if argument is None and sys.stdin.isatty():
        return None
    from lm.text.encodings import decode

    return decode(sys.stdin.buffer.read(), name="stdin").removesuffix("\n").removesuffix("\r")

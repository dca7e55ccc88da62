"""Reads what a user types, or a program sends, line by line: prompts, history and Ctrl-C of sessions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from cli.console.text import print_note
from lm.errors import InputError

try:
    import readline  # from now on, `input` has line editing and history
except ImportError:  # not on every system
    readline = None  # type: ignore[assignment]


def read_lines(is_unfinished: Callable[[Sequence[str]], bool]) -> list[str]:
    """Read a line of stdin, and those that belong to it; none at the end of the input.

    On a terminal, Ctrl-C discards what was typed, or says how to end.

    Args:
        is_unfinished: whether another line belongs to those read so far.

    Raises:
        InputError: a line is not valid UTF-8.
    """
    is_terminal = sys.stdin.isatty()
    marks = ("> ", ". ") if is_terminal and sys.stdout.isatty() else ("", "")
    lines: list[str] = []
    while True:
        try:
            while not lines or is_unfinished(lines):
                lines.append(input(marks[bool(lines)]))
            return lines
        except EOFError:
            if is_terminal:
                print(file=sys.stderr)
            return lines
        except UnicodeDecodeError:
            raise InputError("stdin: not valid UTF-8") from None
        except KeyboardInterrupt:
            if not is_terminal:
                raise
            has_typed = bool(lines or (readline and readline.get_line_buffer()))
            print_note("" if has_typed else "\n(Ctrl-D to end)")
            lines = []

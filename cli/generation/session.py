"""Interactive sessions: `lm chat`, a conversation, and `lm generate -i`, a text that the model and you write."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from cli.console.text import print_note
from cli.generation.generating import SampleWriter
from lm.decoding.batching import Continuation
from lm.decoding.chat import Chat
from lm.errors import InputError, LMError, UsageError
from lm.files import atomic_write_bytes

with contextlib.suppress(ImportError):  # not on every system
    import readline  # noqa: F401 (from now on, `input` has line editing and history)

INTRODUCTION = "/help lists commands, Ctrl-D ends."
_HELP = """\
Each line is a message, or is added to the text, which continues from there.

  a line ending in \\  continues in the next line
  /retry              sample the last turn again
  /undo               undo the last turn
  /save FILE          add the conversation, as a line of training data, or the text to a file
  /help               this
  /exit               end, as Ctrl-D does
  Ctrl-C              stop the current turn"""


def run_session(turns: Chat, opening: str = "") -> None:
    """Answer an opening, if there is one; then take turns until the end of the input."""
    if sys.stdin.isatty():
        print_note(INTRODUCTION)
    line = opening or _read_line()
    while line is not None and line != "/exit":
        try:
            _execute(turns, line)
        except LMError as error:
            print_note(f"lm: {error}")
        except OSError as error:
            print_note(f"lm: {error.filename}: {error.strerror}")
        except KeyboardInterrupt:  # also before the first token
            if not sys.stdin.isatty():
                raise
            print_note("")
        line = _read_line()


def _read_line() -> str | None:
    """Read a line of stdin, at a terminal with those that continue it; None at the end of the input.

    At a terminal, Ctrl-C discards what was typed.

    Raises:
        InputError: a line is not valid UTF-8.
    """
    is_terminal = sys.stdin.isatty()
    marks = ("> ", ". ") if is_terminal and sys.stdout.isatty() else ("", "")
    lines: list[str] = []
    while True:
        try:
            lines.append(input(marks[bool(lines)]))
            if not is_terminal or not lines[-1].endswith("\\"):
                return "\n".join([*(line[:-1] for line in lines[:-1]), lines[-1]])
        except EOFError:
            if is_terminal:
                print(file=sys.stderr)
            return None
        except UnicodeDecodeError:
            raise InputError("stdin: not valid UTF-8") from None
        except KeyboardInterrupt:
            if not is_terminal:
                raise
            print_note("\n(Ctrl-D to end)")
            lines = []


def _execute(turns: Chat, line: str) -> None:
    """Execute a command, or take a turn with a text."""
    name, _, rest = line.partition(" ")
    if name in ("/undo", "/retry"):
        if (text := turns.undo()) is None:
            raise UsageError("there is no turn to undo")
        if name == "/retry":
            _take_turn(turns, text)
        else:
            print_note("the last turn is undone")
    elif name == "/save" and rest:
        path = Path(rest).expanduser()
        before = path.read_bytes() if path.exists() else b""
        with atomic_write_bytes(path) as file:
            file.write(before if not before or before.endswith(b"\n") else before + b"\n")
            file.write(f"{turns.transcript()}\n".encode())
        print_note(f"saved to {path}")
    elif name == "/help":
        print_note(_HELP)
    else:
        _take_turn(turns, line)


def _take_turn(turns: Chat, text: str) -> None:
    """Write the continuation of a text or the reply to it, until it ends or Ctrl-C."""
    if not turns.is_text and not text.strip():
        return
    sample, dropped = Continuation(), turns.dropped
    output, events = SampleWriter([sample]), turns.reply(text)
    try:
        for event in events:
            sample.append(event)
            output.write_new()
    finally:
        events.close()
        output.interrupt()
    if turns.dropped > dropped:
        print_note(f"(the context is full: the oldest {turns.dropped} turns are no longer read)")

"""The session of `lm chat`: messages and commands are read from stdin, replies are written to stdout."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from cli.console.messages import print_labelled, print_note, quote
from cli.generation.line_input import read_lines
from cli.generation.writers import GenerationTimer, TextWriter
from lm import files
from lm.config.settings import did_you_mean
from lm.decoding.batching import Continuation
from lm.decoding.chat import Chat
from lm.errors import LMError, UsageError
from lm.text.records import Record

INTRODUCTION = "Write a message. /help, Ctrl-D to end."

HELP = '''\
Each line is a message, and the model replies. It reads the whole conversation,
as far as its context reaches.

  a line ending in \\  continues in the next line
  """                 so does all up to the next """
  //...               a message that begins with /
  /retry              sample the last reply again
  /undo               remove the last message and its reply
  /system             show the system prompt
  /system TEXT        replace it; /system none removes it
  /save FILE          add the conversation to a file of messages (.jsonl)
  /clear              start a new conversation
  /help               this
  /exit               end, as Ctrl-D does
  Ctrl-C              stop the current reply'''

_QUOTES = '"""'


def run_chat(chat: Chat, *, run: Path, stats: bool) -> None:
    """Read messages from stdin to its end, and write the reply to each to stdout.

    `run` is named in the warning about a model that learned no conversations.
    """
    if not chat.has_template:
        print_labelled(
            "warning",
            f"{run} was not trained on conversations, and continues a transcript instead of replying; train it on "
            f"some: lm train chats.jsonl --from {quote(run)} (docs/how-to/chat.md makes them of a chat log)",
        )
    if sys.stdin.isatty():
        print_note(INTRODUCTION)
    session = _ChatSession(chat, stats=stats)
    while True:
        try:
            message = _read_message()
            if message is None or session.take(message):
                return
        except KeyboardInterrupt:  # just before or after a reply
            if not sys.stdin.isatty():
                raise
            print_note("")


def _read_message() -> str | None:
    """Read a message; None at the end of the input. Several lines of a terminal can be one."""
    is_terminal = sys.stdin.isatty()
    lines = read_lines(lambda lines: is_terminal and _is_unfinished(lines))
    if not lines:
        return None
    return _join_lines(lines) if is_terminal else lines[0]


def _is_unfinished(lines: Sequence[str]) -> bool:
    """Return whether more lines belong to a message."""
    if lines[0].startswith(_QUOTES):
        return not (len(lines) > 1 or len(lines[0]) > len(_QUOTES)) or not lines[-1].rstrip().endswith(_QUOTES)
    return lines[-1].endswith("\\")


def _join_lines(lines: list[str]) -> str:
    """Return the message of some lines, without the marks that join them."""
    if lines[0].startswith(_QUOTES):
        return "\n".join(lines).rstrip().removeprefix(_QUOTES).removesuffix(_QUOTES).strip("\n")
    return "\n".join(line.removesuffix("\\") for line in lines)


class _ChatSession:
    """A conversation, and the commands that change it."""

    def __init__(self, chat: Chat, *, stats: bool) -> None:
        self.chat, self.stats = chat, stats
        self._unanswered: str | None = None  # the last message, if it was left out
        self._commands: dict[str, Callable[[str], None]] = {
            "retry": self._retry,
            "undo": self._undo,
            "system": self._system,
            "save": self._save,
            "clear": self._clear,
            "help": lambda _: print_note(HELP),
        }

    def take(self, message: str) -> bool:
        """Execute a command, or reply to a message, or report what is wrong with it; returns whether the chat ends."""
        try:
            return bool(message.strip()) and self._execute(message)
        except LMError as error:
            print_note(f"lm: {error}")
        except OSError as error:
            print_note(f"lm: {error.filename}: {error.strerror}")
        return False

    def _execute(self, message: str) -> bool:
        """Execute a command, or reply to a message; returns whether the chat ends."""
        if not message.startswith("/") or message.startswith("//"):
            self.reply(message[1:] if message.startswith("//") else message)
            return False
        name, _, rest = message[1:].partition(" ")
        if name in ("exit", "quit", "bye"):
            return True
        if name not in self._commands:
            hint = did_you_mean(name, [*self._commands, "exit"])
            raise UsageError(f"no command /{name}{hint}; /help lists them")
        self._commands[name](rest.strip())
        return False

    def reply(self, content: str) -> None:
        """Write the reply to a message, until it ends or Ctrl-C."""
        self._unanswered = content
        sample, timer, dropped = Continuation(), GenerationTimer(), self.chat.dropped
        output = TextWriter([sample], prompt="")
        events = self.chat.reply(content)
        try:
            for event in events:
                if self.chat.dropped > dropped:
                    dropped = self.chat.dropped
                    which = "oldest turn is" if dropped == 1 else f"oldest {dropped} turns are"
                    print_note(f"(the context is full: the {which} no longer read)")
                sample.append(event)
                timer.record_token()
                output.write_sample(sample)
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            if not sample.tokens:
                print_note("")  # ends the line of the terminal's ^C
        finally:
            events.close()
            if sample.tokens:
                output.end_sample(sample)
        if not sample.text.strip():
            print_note("(no reply; the message is left out, /retry sends it again)")
        else:
            self._unanswered = None
            if sample.finish_reason == "length":
                print_note(f"(cut off after {len(sample.tokens)} tokens: --max-tokens, or the context)")
        if self.stats and sample.tokens:
            generator = self.chat.generator
            timer.report(len(sample.tokens), generator.sampler, generator.acceptance_stats, engines=generator.plan())

    def _retry(self, _: str) -> None:
        self.reply(self._undo_last() if self._unanswered is None else self._unanswered)

    def _undo(self, _: str) -> None:
        self._undo_last()
        print_note("the last message and its reply are removed")

    def _undo_last(self) -> str:
        self._unanswered = None
        if (message := self.chat.undo()) is None:
            raise UsageError("there is no message yet")
        return message

    def _system(self, text: str) -> None:
        if text:
            self.chat.system = None if text == "none" else text
        system = self.chat.system
        print_note("no system prompt" if system is None else f"system prompt: {system}")

    def _save(self, name: str) -> None:
        if not name or "\0" in name:
            raise UsageError("name a file: /save chats.jsonl")
        if not any(message.role == "assistant" for message in self.chat.messages):
            raise UsageError("there is nothing to save yet")
        try:
            path = Path(name).expanduser()
        except RuntimeError:
            raise UsageError(f"{name}: there is no such user") from None
        before = path.read_bytes() if path.exists() else b""
        with files.atomic_write_bytes(path) as file:
            file.write(before if not before or before.endswith(b"\n") else before + b"\n")
            file.write(f"{Record(tuple(self.chat.messages)).to_json()}\n".encode())
        print_note(f"saved to {path}")

    def _clear(self, _: str) -> None:
        system, self._unanswered = self.chat.system, None
        self.chat.messages = []
        self.chat.system = system
        print_note("a new conversation starts")

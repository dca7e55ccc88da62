"""Interactive sessions: `lm chat`, a conversation, and `lm generate -i`, a text that the model and you write."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cli.console.text import print_note
from cli.generation.generating import GenerationTimer, SampleWriter
from lm.config.decoding import SamplingConfig
from lm.config.settings import did_you_mean, list_settings
from lm.decoding.batching import Continuation
from lm.decoding.chat import Chat
from lm.decoding.generator import Generator, encode_continuation
from lm.decoding.sampling import parse_logit_biases
from lm.errors import InputError, LMError, UsageError
from lm.files import atomic_write_bytes
from lm.text.records import Record
from lm.tokenizer.special_tokens import build_text_frame

try:
    import readline  # from now on, `input` has line editing and history
except ImportError:  # not on every system
    readline = None  # type: ignore[assignment]

INTRODUCTION = "/help lists commands, Ctrl-D ends."
_QUOTES = '"""'
_HELP = '''\
Each line {turn}

  a line ending in \\  continues in the next line
  """                 so does all up to the next """
  //...               a line that begins with /
  /set                list the settings
  /set NAME VALUE     change one: /set top-k none, /set stop "\\n\\n"
  /retry              sample the last turn again
  /undo               undo the last turn
  /clear              start again
{chat}  /help               this
  /exit               end, as Ctrl-D does
  Ctrl-C              stop the current turn'''
_CHAT_HELP = """\
  /system TEXT        show the system prompt, or replace it; none removes it
  /save FILE          add the conversation to a file of messages (.jsonl)
"""


def read_turn() -> str | None:
    """Read a line of stdin, at a terminal with those that belong to it; None at the end of the input.

    At a terminal, Ctrl-C discards what was typed, or says how to end.

    Raises:
        InputError: a line is not valid UTF-8.
    """
    is_terminal = sys.stdin.isatty()
    marks = ("> ", ". ") if is_terminal and sys.stdout.isatty() else ("", "")
    lines: list[str] = []
    while True:
        try:
            lines.append(input(marks[bool(lines)]))
            text = "\n".join(lines)
            if not is_terminal:
                return text
            if text.startswith(_QUOTES):
                if len(text) > len(_QUOTES) and text.rstrip().endswith(_QUOTES):
                    return text.rstrip().removeprefix(_QUOTES).removesuffix(_QUOTES).strip("\n")
            elif not text.endswith("\\"):
                return text.replace("\\\n", "\n")
        except EOFError:
            if is_terminal:
                print(file=sys.stderr)
            return "\n".join(lines).replace("\\\n", "\n").removesuffix("\\") if lines else None
        except UnicodeDecodeError:
            raise InputError("stdin: not valid UTF-8") from None
        except KeyboardInterrupt:
            if not is_terminal:
                raise
            print_note("" if lines or (readline and readline.get_line_buffer()) else "\n(Ctrl-D to end)")
            lines = []


class Session:
    """Turns of a text or a conversation, and the commands that change it.

    Attributes:
        chat: the conversation, unless a text is continued.
    """

    def __init__(self, generator: Generator, *, chat: Chat | None = None, stats: bool) -> None:
        self.generator, self.chat, self.stats, self.turns = generator, chat, stats, 0
        self._commands: dict[str, Callable[[str], Any]] = {
            "set": self._set, "retry": lambda _: self._turn(self._undo_last()), "undo": self._undo,
            "clear": self._clear, "help": self._help,
            **({} if chat is None else {"system": self._system, "save": self._save}),
        }  # fmt: skip
        self._context: list[int] = []
        self._past: list[tuple[str, list[int], bool]] = []
        self._at_line_start = True
        self._unanswered: str | None = None

    def run(self, opening: str = "") -> None:
        """Continue an opening, if there is one; then take turns until the end of the input."""
        if sys.stdin.isatty():
            print_note(INTRODUCTION)
        turn = ("/" * opening.startswith("/") + opening) or read_turn()
        while turn is not None and turn not in ("/exit", "/quit", "/bye"):
            try:
                if turn.strip() or self.chat is None:
                    self._take(turn)
            except LMError as error:
                print_note(f"lm: {error}")
            except OSError as error:
                print_note(f"lm: {error.filename}: {error.strerror}")
            except KeyboardInterrupt:  # before the first token
                if not sys.stdin.isatty():
                    raise
                print_note("")
            turn = read_turn()

    def _take(self, line: str) -> None:
        """Execute a command, or continue with a text."""
        if not line.startswith("/") or line.startswith("//"):
            self._turn(line[1:] if line.startswith("//") else line)
            return
        name, _, rest = line[1:].partition(" ")
        if name not in self._commands:
            raise UsageError(f"no command /{name}{did_you_mean(name, self._commands)}; /help lists them")
        self._commands[name](rest.strip())

    def _turn(self, text: str) -> None:
        """Add a text, and write its continuation or the reply, until it ends or Ctrl-C."""
        sample, timer, dropped = Continuation(), GenerationTimer(), self.chat.dropped if self.chat else 0
        output = SampleWriter([sample])
        if self.chat is None:
            generator = dataclasses.replace(self.generator)  # without a seed in the settings, each turn has another
            is_inside = bool(self._context) and self._context[-1] not in build_text_frame(generator.tokenizer).after
            added = "\n" + text if is_inside and text and not self._at_line_start else text
            prompt = encode_continuation(generator.tokenizer, self._context, added)
            events: Any = generator.generate(added, context=self._context, first=self.turns)
        else:
            generator, prompt, added = self.generator, [], text
            events, self._unanswered = self.chat.reply(text), text
        sampler = generator.sampler  # created before any output, as a logit bias may be invalid
        try:
            for event in events:
                sample.append(event)
                timer.record_token()
                output.write_sample(sample)
        except KeyboardInterrupt:
            if self.chat is None:
                generator.interrupt(sample, prompt)
                output.write_sample(sample)
            elif not sys.stdin.isatty():
                raise
        finally:
            events.close()
            output.end_sample(sample)
        self.turns += 1
        if self.stats and sample.tokens:
            timer.report(len(sample.tokens), sampler, generator.acceptance_stats, engines=generator.plan(1))
        if self.chat is None:
            self._past.append((text, self._context, self._at_line_start))
            self._context = self._extend_context(prompt, added, sample)
            self._at_line_start = sample.text.endswith("\n")
        elif sample.text.strip():
            self._unanswered = None
            if self.chat.dropped > dropped:
                print_note(f"(the context is full: the oldest {self.chat.dropped} turns are no longer read)")
        else:
            print_note("(no reply; the message is left out, /retry sends it again)")

    def _extend_context(self, prompt: list[int], added: str, sample: Continuation) -> list[int]:
        """Return the context after a turn: what was shown, without the tokens of a stop string."""
        if not sample.prompt_bytes and sample.finish_reason != "stop":
            return prompt + sample.tokens
        ended = sample.tokens[-1:] if sample.finish_reason == "end_of_text" else []
        return encode_continuation(self.generator.tokenizer, self._context, added + sample.text) + ended

    def _undo_last(self) -> str:
        """Undo the last turn, and return its text; it still counts, so that a seed gives another sample next time."""
        text, self._unanswered = self._unanswered, None
        if text is None and self.chat:
            text = self.chat.undo()
        elif self._past:
            text, self._context, self._at_line_start = self._past.pop()
        if text is None:
            raise UsageError("there is no turn to undo")
        return text

    def _undo(self, _: str) -> None:
        self._undo_last()
        print_note("the last turn is undone")

    def _clear(self, _: str) -> None:
        self._context, self._past, self._at_line_start, self._unanswered = [], [], True, None
        if self.chat:
            system = self.chat.system
            self.chat.messages, self.chat.system = [], system

    def _help(self, _: str) -> None:
        turn = "is added to the text, which continues from there." if self.chat is None else "is a message."
        print_note(_HELP.format(turn=turn, chat="" if self.chat is None else _CHAT_HELP))

    def _system(self, text: str) -> None:
        assert self.chat
        if text:
            self.chat.system = None if text == "none" else text
        print_note("no system prompt" if self.chat.system is None else f"system prompt: {self.chat.system}")

    def _save(self, name: str) -> None:
        assert self.chat
        if not name or not any(message.role == "assistant" for message in self.chat.messages):
            raise UsageError("name a file, once there is a reply: /save chats.jsonl")
        path = Path(name).expanduser()
        before = path.read_bytes() if path.exists() else b""
        with atomic_write_bytes(path) as file:
            file.write(before if not before or before.endswith(b"\n") else before + b"\n")
            file.write(f"{Record(tuple(self.chat.messages)).to_json()}\n".encode())
        print_note(f"saved to {path}")

    def _set(self, text: str) -> None:
        """Change a setting, or explain one or all of them."""
        settings = {each.flag[2:]: each for each in list_settings("sampling", SamplingConfig)}
        name, _, value = text.partition(" ")
        key, config = name.removeprefix("--").replace("_", "-"), self.generator.config
        if name and key not in settings:
            raise UsageError(f"no setting {name!r}{did_you_mean(key, settings)}; /set lists them")
        if value:
            typed = value.strip().strip('"').replace("\\n", "\n")
            changed = settings[key].default if typed == "none" else settings[key].convert(typed, key)
            config = config.replace(**{settings[key].name: changed})
            parse_logit_biases(config.logit_bias, self.generator.tokenizer)
            self.generator = dataclasses.replace(self.generator, config=config)
            if self.chat:
                self.chat.generator = self.generator
        for shown, setting in settings.items() if not name else [(key, settings[key])]:
            print_note(
                f"{shown} = {getattr(config, setting.name)}" + ("" if value or not name else f"  {setting.help}")
            )

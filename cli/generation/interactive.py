"""`lm generate --interactive`: the user and the model write a text alternately."""

from __future__ import annotations

import dataclasses
import sys

from rich.console import Console

from cli.console.text import print_note, wrap_hanging
from cli.generation.line_input import read_lines
from cli.generation.writers import GenerationTimer, TextWriter
from lm.config.decoding import SamplingConfig
from lm.config.settings import did_you_mean, list_settings
from lm.decoding.batching import Continuation
from lm.decoding.generator import Generator, encode_continuation
from lm.decoding.sampling import parse_logit_biases
from lm.errors import LMError, UsageError
from lm.tokenizer.special_tokens import build_text_frame

INTRODUCTION = "A line is continued, with the text so far as its context. /help, Ctrl-D to end."

HELP = """\
Each line is added to the text, on a line of its own, and the model continues
from there. It continues texts, it answers no questions: all that was written
in this session, by you and by it, is its context, as far as that reaches.

  (an empty line)     continue where the text ends
  a line ending in \\  continues in the next line
  //...               a line that begins with /
  /set                list the settings
  /set NAME           explain one
  /set NAME VALUE     change one: /set top-k none, /set stop "\\n\\n"
  /retry              sample the last continuation again
  /undo               undo the last line and its continuation
  /reset              clear the text and start a new one
  /help               this
  Ctrl-C              stop the current text
  Ctrl-D              end"""


def run_interactive(generator: Generator, *, opening: str, stats: bool) -> None:
    """Continue `opening` unless it is empty; then read lines from stdin, and write the continuation of each."""
    session = _InteractiveSession(generator, stats=stats)
    if sys.stdin.isatty():
        print_note(INTRODUCTION)
    act, line = (session.continue_text, opening) if opening else (session.take, _read_line())
    while line is not None:
        try:
            act(line)
        except LMError as error:
            print_note(f"lm: {error}")
        except KeyboardInterrupt:  # before the first token
            print_note("")
        act, line = session.take, _read_line()


def _read_line() -> str | None:
    """Read the next line, with those that a backslash joins to it; None at the end of the input."""
    lines = read_lines(lambda lines: lines[-1].endswith("\\"))
    return "\n".join([*(line[:-1] for line in lines[:-1]), lines[-1].removesuffix("\\")]) if lines else None


@dataclasses.dataclass(frozen=True)
class _InteractiveTurn:
    """An added text, and the state before it."""

    text: str
    context: list[int]
    at_line_start: bool


class _InteractiveSession:
    """The text so far, and the settings of its continuation."""

    def __init__(self, generator: Generator, *, stats: bool) -> None:
        self.generator, self.stats = generator, stats
        self.reset()

    @property
    def config(self) -> SamplingConfig:
        return self.generator.config

    def reset(self) -> None:
        self.context: list[int] = []
        self.past: list[_InteractiveTurn] = []
        self.turns, self.at_line_start = 0, True

    def take(self, line: str) -> None:
        """Execute a command, or continue a text."""
        if not line.startswith("/") or line.startswith("//"):
            self.continue_text(line[1:] if line.startswith("//") else line)
            return
        command, _, rest = line[1:].partition(" ")
        if command == "set":
            _print_wrapped(self.set(*rest.strip().split(maxsplit=1)))
        elif command == "retry":
            self.continue_text(self._undo().text)
        elif command == "undo":
            self._undo()
            print_note("the last line and its continuation are undone")
        elif command == "reset":
            self.reset()
            print_note("the text is cleared; a new one starts")
        elif command == "help":
            print_note(HELP)
        else:
            raise UsageError(f"no command /{command}; /help lists them")

    def _undo(self) -> _InteractiveTurn:
        """Undo the last turn; it still counts, so that a seed gives a different sample next time."""
        if not self.past:
            raise UsageError("there is no continuation to undo")
        turn = self.past.pop()
        self.context, self.at_line_start = turn.context, turn.at_line_start
        return turn

    def continue_text(self, text: str) -> None:
        """Add a text and write its continuation, until it ends or Ctrl-C."""
        added = self._join_text(text)
        prompt = encode_continuation(self.generator.tokenizer, self.context, added)
        generator = dataclasses.replace(self.generator)  # without a seed in the settings, each turn has another
        sampler = generator.sampler  # created before any output, as a logit bias may be invalid
        sample, timer = Continuation(), GenerationTimer()
        output = TextWriter([sample], prompt="")
        try:
            for event in generator.generate(added, context=self.context, first=self.turns):
                sample.append(event)
                timer.record_token()
                output.write_sample(sample)
        except KeyboardInterrupt:
            generator.interrupt(sample, prompt)
            output.write_sample(sample)
        finally:
            output.end_sample(sample)
        self.past.append(_InteractiveTurn(text, self.context, self.at_line_start))
        self._update_context(prompt, added, sample)
        if self.stats:
            timer.report(len(sample.tokens), sampler, generator.acceptance_stats, engines=generator.plan(1))

    def _join_text(self, text: str) -> str:
        """Put a text on a line of its own."""
        is_inside = bool(self.context) and self.context[-1] not in build_text_frame(self.generator.tokenizer).after
        return "\n" + text if is_inside and text and not self.at_line_start else text

    def _update_context(self, prompt: list[int], added: str, sample: Continuation) -> None:
        """Update the context after a turn: what was shown, without the tokens of a stop string."""
        tokenizer, before = self.generator.tokenizer, self.context
        self.context = prompt + sample.tokens
        if sample.prompt_bytes or sample.finish_reason == "stop":  # its tokens are not those of what was shown
            ended = sample.tokens[-1:] if sample.finish_reason == "end_of_text" else []
            self.context = encode_continuation(tokenizer, before, added + sample.text) + ended
        self.turns += 1
        self.at_line_start = sample.text.endswith("\n")

    def set(self, name: str = "", value: str | None = None) -> str:
        """Change a setting, or explain one or all of them; returns the text to print."""
        settings = {each.flag[2:]: each for each in list_settings("sampling", SamplingConfig)}
        if not name:
            return "\n".join(f"  {key:<24}{getattr(self.config, each.name)}" for key, each in settings.items())
        key = name.removeprefix("--").replace("_", "-")
        if key not in settings:
            raise UsageError(f"no setting {name!r}{did_you_mean(key, settings)}; /set lists them")
        setting = settings[key]
        if value is not None:
            text = value.strip('"').replace("\\n", "\n")
            changed = setting.default if value == "none" else setting.convert(text, key)
            config = self.config.replace(**{setting.name: changed})
            parse_logit_biases(config.logit_bias, self.generator.tokenizer)
            self.generator = dataclasses.replace(self.generator, config=config)
        return f"{key} = {getattr(self.config, setting.name)}" + ("" if value else f"  {setting.help}")


def _print_wrapped(text: str) -> None:
    """Print to stderr, wrapped to the width of a terminal."""
    width = Console(stderr=True).width
    print_note("\n".join(wrap_hanging(line, width=width) for line in text.split("\n")) if sys.stderr.isatty() else text)

"""`lm generate --interactive`: a text that a person and the model write in turns."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Any

from lm.config.decoding import SamplingConfig
from lm.config.options import Option, check_text, nearest, options, suggestion
from lm.errors import InputError, LMError, UsageError

if TYPE_CHECKING:
    from cli.generation.samples import Sample
    from lm.model.transformer import DecoderOnly
    from lm.tokenizer.tokenizer import Tokenizer

INTRODUCTION = "A line is continued, with the text so far as its context. /help, Ctrl-D to end."

HELP = """\
Each line is added to the text, on a line of its own, and the model goes on
from there. It continues texts, it answers no questions: all that was written
in this session, by you and by it, is its context, as far as that reaches.

  (an empty line)     go on where the text ends
  a line ending in \\  goes on in the next line
  //...               a line that begins with /
  /set                list the settings
  /set NAME           explain one
  /set NAME VALUE     change one: /set top-k none, /set stop "\\n\\n"
  /retry              draw the last continuation again
  /undo               take back the last line and its continuation
  /reset              forget the text and begin a new one
  /help               this
  Ctrl-C              stop the current text
  Ctrl-D              end"""

_COMMANDS = {name: f"/{name}" for name in ("set", "retry", "undo", "reset", "help")}
_OTHER_WORDS = {"settings": "/set", "quit": "Ctrl-D", "exit": "Ctrl-D"}

_SPELLED = {"none": None, "on": True, "yes": True, "off": False, "no": False}


def converse(
    model: DecoderOnly, tokenizer: Tokenizer, config: SamplingConfig, *, opening: str, use_cache: bool, stats: bool
) -> None:
    """Read lines from stdin to its end, and write what the model makes of each to stdout.

    Args:
        model: continues the text.
        tokenizer: of the model.
        config: the settings at first.
        opening: continued before the first line is read, unless empty.
        use_cache: keep keys and values within a turn.
        stats: speed and seed on stderr after each turn.
    """
    from cli.console.messages import note

    session = _Session(model, tokenizer, config, use_cache=use_cache, stats=stats)
    if sys.stdin.isatty():
        _remember_lines()
        note(INTRODUCTION)
    act, line = (session.take_text, opening) if opening else (session.take, _read())
    while line is not None:
        try:
            act(line)
        except LMError as error:
            note(f"lm: {error}")
        except KeyboardInterrupt:  # before the first token
            note("")
        act, line = session.take, _read()


def _remember_lines() -> None:
    """Let `input` edit lines and recall earlier ones with the arrow keys, where the system can."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (`input` uses it once it is imported)


def _read() -> str | None:
    """The next line, with those that a backslash joins to it; None at the end of the input."""
    terminal = sys.stdin.isatty()
    marks = ("> ", ". ") if terminal and sys.stdout.isatty() else ("", "")
    lines: list[str] = []
    while not lines or lines[-1].endswith("\\"):
        try:
            lines.append(input(marks[bool(lines)]))
        except EOFError:
            if terminal:
                print(file=sys.stderr)
            break
        except UnicodeDecodeError:
            raise InputError("stdin: not valid UTF-8") from None
        except KeyboardInterrupt:
            if not terminal:
                raise
            print(file=sys.stderr)
            lines = []
    return "\n".join([*(line[:-1] for line in lines[:-1]), lines[-1].removesuffix("\\")]) if lines else None


@dataclasses.dataclass(frozen=True)
class _Turn:
    """A text that was added, and what there was before it."""

    text: str
    context: list[int]
    at_line_start: bool


class _Session:
    """The text so far, and how it is continued."""

    def __init__(
        self, model: DecoderOnly, tokenizer: Tokenizer, config: SamplingConfig, *, use_cache: bool, stats: bool
    ) -> None:
        self.model, self.tokenizer, self.config = model, tokenizer, config
        self.use_cache, self.stats = use_cache, stats
        self.reset()

    def reset(self) -> None:
        """Forget the text."""
        self.context: list[int] = []
        self.past: list[_Turn] = []
        self.turns, self.at_line_start = 0, True

    def take(self, line: str) -> None:
        """Do what a line says: a command, or text to continue."""
        if not line.startswith("/") or line.startswith("//"):
            self.take_text(line[1:] if line.startswith("//") else line)
            return
        from cli.console.messages import note

        command, _, rest = line[1:].partition(" ")
        if command == "set":
            _tell(self.set(*rest.strip().split(maxsplit=1)))
        elif command == "retry":
            self.take_text(self._undo().text)
        elif command == "undo":
            self._undo()
            note("the last line and its continuation are taken back")
        elif command == "reset":
            self.reset()
            note("the text is forgotten; a new one begins")
        elif command == "help":
            note(HELP)
        else:
            raise UsageError(f"no command /{command}{_hint(command, rest.strip())}; /help lists them")

    def _undo(self) -> _Turn:
        """Take back the last turn; it still counts, so that a seed draws something else in its place."""
        if not self.past:
            raise UsageError("there is no continuation to take back")
        turn = self.past.pop()
        self.context, self.at_line_start = turn.context, turn.at_line_start
        return turn

    def take_text(self, text: str) -> None:
        """Add a text and write its continuation, until it ends or Ctrl-C."""
        from cli.generation.samples import Sample, Watch, write_text
        from lm.decoding.generate import end_ids, generate
        from lm.decoding.logit_bias import read_biases
        from lm.decoding.sampling import Sampler
        from lm.decoding.steps import DecoderSteps
        from lm.decoding.stop_strings import TextUntil

        prompt = self._with(text)
        sampler = Sampler.of(self.config, read_biases(self.config.logit_bias, self.tokenizer))
        sample = Sample(TextUntil(self.tokenizer.decode_stream(), self.config.stop))
        events = generate(
            DecoderSteps(self.model, cached=self.use_cache), prompt, sampler, max_tokens=self.config.max_tokens,
            stop_ids=end_ids(self.tokenizer), first=self.turns, texts=[sample.source],
        )  # fmt: skip
        watch, shown = Watch(), 0
        try:
            for event in events:
                sample.take(event)
                watch.saw_token()
                fresh, shown = sample.text[shown:], len(sample.text)
                write_text(fresh)
        except KeyboardInterrupt:
            sample.interrupt()
            write_text(sample.text[shown:])
        finally:
            write_text("" if sample.text.endswith("\n") else "\n")
        self.past.append(_Turn(text, self.context, self.at_line_start))
        self._keep(prompt, sample)
        if self.stats:
            watch.report(len(sample.tokens), sampler)

    def _with(self, text: str) -> list[int]:
        """The context with a text after it, on a line of its own."""
        from lm.decoding.generate import end_ids, prompt_ids

        check_text(text, name="the line")
        if not self.context:
            return prompt_ids(self.tokenizer, text)
        if self.context[-1] in end_ids(self.tokenizer):
            start = self.tokenizer.start_of_text
            new = [] if start is None or start == self.context[-1] else [start]
            return [*self.context, *new, *self.tokenizer.encode(text)]
        return [*self.context, *self.tokenizer.encode("\n" + text if text and not self.at_line_start else text)]

    def _keep(self, prompt: list[int], sample: Sample) -> None:
        """The context after a turn: what was shown, so without the tokens of a stop string."""
        shown = self.tokenizer.encode(sample.text) if sample.finish_reason == "stop" else sample.tokens
        self.context = prompt + shown
        self.turns += 1
        self.at_line_start = sample.text.endswith("\n")

    def set(self, name: str = "", value: str | None = None) -> str:
        """Change a setting, or explain one or all of them; returns what to tell."""
        settings = _settings()
        if not name:
            return "\n".join(f"  {key:<20}{_shown(getattr(self.config, settings[key].name))}" for key in settings)
        key = name.removeprefix("--").replace("_", "-")
        if key not in settings:
            raise UsageError(f"no setting {name!r}{suggestion(key, settings)}; /set lists them")
        described = settings[key]
        if value is not None:
            self._change(described, _read_value(described, value))
        return f"{key} = {_shown(getattr(self.config, described.name))}" + ("" if value else f"  {described.help}")

    def _change(self, described: Option, value: Any) -> None:  # noqa: ANN401
        from lm.decoding.logit_bias import read_biases

        changes: dict[str, Any] = {described.name: value}
        changed = dataclasses.replace(self.config, **changes)
        read_biases(changed.logit_bias, self.tokenizer)
        self.config = changed


def _tell(text: str) -> None:
    """Write notes; a terminal gets them broken between words."""
    from rich.console import Console

    from cli.console.messages import note
    from cli.console.wrapping import hanging

    width = Console(stderr=True).width
    note("\n".join(hanging(line, width=width) for line in text.split("\n")) if sys.stderr.isatty() else text)


def _settings() -> dict[str, Option]:
    """What can be set, by name."""
    return {described.flag[2:]: described for described in options(SamplingConfig)}


def _hint(command: str, rest: str) -> str:
    """What an unknown command may be meant to be."""
    settings = {name: f"/set {name} {rest}".rstrip() for name in _settings()}
    known = {**settings, **_OTHER_WORDS, **_COMMANDS}
    found = nearest(command.replace("_", "-"), known)
    return f" (did you mean {known[found]}?)" if found else ""


def _read_value(described: Option, text: str) -> Any:  # noqa: ANN401
    """A setting's value: as JSON where it is that (a line end can be written so), else as it stands."""
    value: Any = _SPELLED.get(text, text)
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(text)
    if described.kind is not tuple:
        return value
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value if isinstance(value, str) else text,)


def _shown(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(json.dumps(one, ensure_ascii=False) for one in value) or "none"
    return "none" if value is None else str(value)

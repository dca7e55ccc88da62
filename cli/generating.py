"""Samples and hypotheses of `lm generate`, as text or JSON lines, and the interactive sessions of it and `lm chat`."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import typer

from cli.console import (
    escape_for_stream,
    format_duration,
    format_json_line,
    format_number_of,
    is_colour_enabled,
    print_note,
)
from cli.console.figures import show_counter
from lm.config.inference import BeamConfig
from lm.config.run_config import END_OF_TEXT
from lm.decoding.batching import Continuation
from lm.decoding.chat import Chat
from lm.decoding.generator import Generator
from lm.errors import InputError, LMError, UsageError
from lm.files import atomic_write_bytes, atomic_write_text
from lm.text.find import find_text_files
from lm.text.text_file import Prompt, read_prompts


def write_text(text: str, stream: IO[str] | None = None) -> None:
    """Write text to a stream, or to stdout and flush; control characters are escaped on a terminal."""
    if text:
        (stream or sys.stdout).write(escape_for_stream(text, stream or sys.stdout))
        if stream is None:
            sys.stdout.flush()


class SampleWriter:
    """Writes the text of samples in order: that so far of the first unfinished one, and nothing of those after it."""

    def __init__(self, samples: Sequence[Continuation], prompt: str = "") -> None:
        self.samples, self.current, self.prompt, self._written = samples, 0, prompt, -1

    def write_new(self) -> None:
        while self.current < len(self.samples):
            sample = self.samples[self.current]
            if self._written < 0:
                write_text(f"{END_OF_TEXT}\n" if self.current else "")
                prompt = escape_for_stream(self.prompt, sys.stdout)
                sys.stdout.write(typer.style(prompt, bold=True) if is_colour_enabled() and prompt else prompt)
                self._written = 0
            # Counted as written before writing, or Ctrl-C could repeat text.
            new, self._written = sample.text[self._written :], len(sample.text)
            write_text(new)
            if sample.finish_reason is None:
                return
            write_text("" if (self.prompt + sample.text).endswith("\n") else "\n")
            self.current, self._written = self.current + 1, -1

    def interrupt(self) -> None:
        """Write the samples in progress as if they ended here."""
        for sample in self.samples:
            if sample.tokens and sample.finish_reason is None:
                sample.finish_reason = "interrupted"
        self.write_new()


@dataclass(frozen=True)
class GenerationRequest:
    """What to generate for each prompt, and how it is written.

    Attributes:
        n: continuations per prompt.
        alternatives: how many of the most probable tokens to return with each token.
        dtype: of the model, as a value of the setting.
        stats: whether speed, engine and seed are printed at the end.
    """

    generator: Generator
    beam: BeamConfig
    n: int
    alternatives: int
    dtype: str
    as_json: bool
    echo: bool
    stats: bool

    def continue_prompts(self, prompts: Sequence[Prompt]) -> Iterator[tuple[Prompt, list[Continuation]]]:
        """Yield each prompt with its continuations, as they end."""
        if self.beam.beam is None:
            yield from self.generator.continue_prompts(prompts, n=self.n, alternatives=self.alternatives)
            return
        for prompt in prompts:
            yield prompt, self.generator.search(
                prompt.text, beam_size=self.beam.beam, length_penalty=self.beam.length_penalty, n=self.n,
                max_tokens=prompt.max_tokens,
            )  # fmt: skip

    def write(self, prompt: Prompt, continuations: Sequence[Continuation], stream: IO[str] | None) -> None:
        """Write the continuations of a prompt as JSON lines, or as texts that may follow others."""
        for number, continuation in enumerate(continuations):
            if not self.as_json:
                text = (prompt.text if self.echo else "") + continuation.text
                separator = f"{END_OF_TEXT}\n" if prompt.number or number else ""
                write_text(separator + text + ("" if text.endswith("\n") else "\n"), stream)
                continue
            seed = self.generator.sampler.seed if prompt.seed is None else prompt.seed
            values: dict[str, Any] = {"seed": seed} if self.beam.beam is None else {"score": continuation.score}
            if self.alternatives:
                spell = self.generator.tokenizer.token_bytes
                values["alternatives"] = [
                    [{"token": each, "text": spell(each).decode(errors="replace"), "logprob": p} for each, p in others]
                    for others in continuation.alternatives
                ]
            fields = {name: getattr(continuation, name) for name in ("text", "tokens", "logprobs", "finish_reason")}
            line = {"prompt": prompt.text, **fields, "dtype": self.dtype, **values}
            print(format_json_line(line), file=stream, flush=stream is None)

    def report(self, tokens: int, seconds: float, plan: object) -> None:
        """Print speed, engine and seed to stderr."""
        sampler = self.generator.sampler
        seed = "" if sampler.greedy or self.beam.beam is not None else f", seed {sampler.seed}"
        speed = f"{tokens / seconds:,.0f} tokens/s"
        print_note(f"{format_number_of(tokens, 'token')} in {format_duration(seconds)}, {speed}, {plan}{seed}")


def generate_for_prompts(file: str, request: GenerationRequest, out: Path | None) -> None:
    """Continue the prompts of a file, and write the results in order."""
    read, *others = find_text_files([file])
    if others:
        raise InputError(f"{file}: several files; prompts are read from one")
    prompts, start, tokens, number = list(read_prompts(read)), time.perf_counter(), 0, 0
    waiting: dict[int, tuple[Prompt, list[Continuation]]] = {}
    with (
        nullcontext() if out is None else atomic_write_text(out) as stream,
        show_counter("generating", "prompts") as count,
    ):
        for prompt, continuations in request.continue_prompts(sorted(prompts, key=lambda each: len(each.text))):
            waiting[prompt.number] = prompt, continuations
            while number in waiting:
                request.write(*waiting.pop(number), stream)
                number += 1
            tokens += sum(len(continuation.tokens) for continuation in continuations)
            count(number)
    if prompts and request.stats:
        request.report(tokens, time.perf_counter() - start, request.generator.plan())


def generate_samples(text: str, request: GenerationRequest) -> None:
    """Write samples as they come, or the hypotheses of beam search, best first."""
    prompt, generator = Prompt(0, text, ""), request.generator
    if request.beam.beam is not None:
        ((_, hypotheses),) = request.continue_prompts([prompt])
        request.write(prompt, hypotheses, None)
        return
    samples, start, written = [Continuation() for _ in range(request.n)], time.perf_counter(), 0
    output = SampleWriter(samples, text if request.echo else "")
    try:
        for event in generator.generate(text, n=request.n, alternatives=request.alternatives):
            samples[event.row].append(event)
            if not request.as_json:
                output.write_new()
            while request.as_json and written < request.n and samples[written].finish_reason:
                request.write(prompt, samples[written : written + 1], None)
                written += 1
    except KeyboardInterrupt:
        if not request.as_json:
            output.interrupt()
        raise
    if request.stats:
        tokens = sum(len(sample.tokens) for sample in samples)
        request.report(tokens, time.perf_counter() - start, generator.plan(request.n))


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
        except BrokenPipeError:
            raise
        except OSError as error:
            print_note(f"lm: {error.filename}: {error.strerror}")
        except KeyboardInterrupt:  # also before the first token
            if not sys.stdin.isatty():
                raise
            print_note("")
        line = _read_line()


def _read_line() -> str | None:
    """Read a line of stdin with those that continue it; None at the end of the input.

    At a terminal, Ctrl-C discards what was typed.

    Raises:
        InputError: a line is not valid UTF-8.
    """
    is_terminal = sys.stdin.isatty()
    marks = ("> ", ". ") if is_terminal and sys.stdout.isatty() else ("", "")
    text = ""
    while True:
        try:
            text += input(marks[bool(text)])
            if not text.endswith("\\"):
                return text
            text = text[:-1] + "\n"
        except EOFError:
            if is_terminal:
                print_note("")
            return text or None
        except UnicodeDecodeError:
            raise InputError("stdin: not valid UTF-8") from None
        except KeyboardInterrupt:
            if not is_terminal:
                raise
            print_note("\n(Ctrl-D to end)")
            text = ""


def _execute(turns: Chat, line: str) -> None:
    """Execute a command, or take a turn with a text."""
    name, _, rest = line.partition(" ")
    if name in ("/undo", "/retry"):
        if (text := turns.undo()) is None:
            raise UsageError("there is no turn yet")
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
    elif name.startswith("/") and name[1:].isalpha():
        raise UsageError(f"{line}: see /help for commands")
    elif turns.is_text or line.strip():
        _take_turn(turns, line)


def _take_turn(turns: Chat, text: str) -> None:
    """Write the continuation of a text or the reply to it, until it ends or Ctrl-C."""
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

"""Writers of samples, as text or JSON lines, and the timer of a generation."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import IO, Any

import typer

from cli.console.colours import is_colour_enabled
from cli.console.text import escape_for_stream, format_duration, format_json_line, print_note
from lm.config.tokenizer import END_OF_TEXT
from lm.decoding.batching import Continuation
from lm.decoding.generator import Generator
from lm.decoding.sampling import Alternatives, Sampler
from lm.decoding.speculative import AcceptanceStats
from lm.engine.selection import EnginePlan
from lm.tokenizer.tokenizer import Tokenizer


def write_text(text: str, stream: IO[str] | None = None) -> None:
    """Write text to a stream, or to stdout and flush; control characters are escaped on a terminal."""
    if text:
        (stream or sys.stdout).write(escape_for_stream(text, stream or sys.stdout))
        if stream is None:
            sys.stdout.flush()


class SampleWriter:
    """Writes samples in order: the text so far of the first unfinished one, and nothing of those after it."""

    def __init__(self, samples: Sequence[Continuation]) -> None:
        self.samples, self.current = samples, 0

    def write_new(self) -> None:
        while self.current < len(self.samples):
            sample = self.samples[self.current]
            self.write_sample(sample)
            if sample.finish_reason is None:
                return
            self.end_sample(sample)
            self.current += 1

    def interrupt(self, generator: Generator, prompt: Sequence[int]) -> None:
        """Write all that was generated, of all samples of a prompt in progress."""
        for sample in self.samples[self.current :]:
            if sample.tokens and sample.finish_reason is None:
                generator.interrupt(sample, prompt)
        self.write_new()

    def write_sample(self, sample: Continuation) -> None:
        """Write the new text of a sample."""

    def end_sample(self, sample: Continuation) -> None:
        """Finish a sample."""


class TextWriter(SampleWriter):
    """Writes the text of each sample after the prompt, with document separators."""

    def __init__(self, samples: Sequence[Continuation], prompt: str) -> None:
        super().__init__(samples)
        self.prompt, self.written = prompt, -1

    def write_sample(self, sample: Continuation) -> None:
        """Write the new part of the sample's text."""
        if self.written < 0:
            bold = is_colour_enabled()
            write_text(f"{END_OF_TEXT}\n" if self.current else "")
            prompt = escape_for_stream(self.prompt, sys.stdout)
            sys.stdout.write(typer.style(prompt, bold=True) if bold and prompt else prompt)
            self.written = 0
        # Counted as written before writing, or Ctrl-C could repeat text.
        new, self.written = sample.text[self.written :], len(sample.text)
        write_text(new)

    def end_sample(self, sample: Continuation) -> None:
        write_text("" if (self.prompt + sample.text).endswith("\n") else "\n")
        self.written = -1


class JsonLinesWriter(SampleWriter):
    """Writes one JSON object per sample."""

    def __init__(
        self, samples: Sequence[Continuation], prompt: str, generator: Generator, *, alternatives: bool
    ) -> None:
        """Create a writer, with or without the alternatives to each token."""
        super().__init__(samples)
        self.prompt, self.seed = prompt, generator.sampler.seed
        self.tokenizer = generator.tokenizer if alternatives else None

    def end_sample(self, sample: Continuation) -> None:
        write_json(sample_to_dict(sample, self.prompt, seed=self.seed, tokenizer=self.tokenizer))


def sample_to_dict(sample: Continuation, prompt: str, *, seed: int, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Convert a sample; with a tokenizer, alternatives to each token are included."""
    values: dict[str, Any] = {
        "prompt": prompt,
        "text": sample.text,
        "tokens": sample.tokens,
        "logprobs": sample.logprobs,
        "finish_reason": sample.finish_reason,
        "seed": seed,
    }
    if tokenizer is not None:
        values["alternatives"] = [_alternatives_to_dicts(token, tokenizer) for token in sample.alternatives]
    return values


def _alternatives_to_dicts(alternatives: Alternatives, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    return [
        {"token": token, "text": tokenizer.token_bytes(token).decode(errors="replace"), "logprob": logprob}
        for token, logprob in alternatives
    ]


def hypothesis_to_dict(hypothesis: Continuation, prompt: str) -> dict[str, Any]:
    """Convert a hypothesis of beam search."""
    fields = ("text", "tokens", "logprobs", "score", "finish_reason")
    return {"prompt": prompt, **{name: getattr(hypothesis, name) for name in fields}}


def write_json(values: dict[str, Any], stream: IO[str] | None = None) -> None:
    """Write one object on one line."""
    print(format_json_line(values), file=stream, flush=stream is None)


def write_completion(text: str, *, is_first: bool, stream: IO[str] | None = None) -> None:
    """Write a complete text, with a document separator before it."""
    separator = "" if is_first else f"{END_OF_TEXT}\n"
    write_text(separator + text + ("" if text.endswith("\n") else "\n"), stream)


def write_hypotheses(hypotheses: Sequence[Continuation], prompt: str, *, as_json: bool) -> None:
    """Write the hypotheses of beam search, best first."""
    for index, hypothesis in enumerate(hypotheses):
        if as_json:
            write_json(hypothesis_to_dict(hypothesis, prompt))
        else:
            write_completion(prompt + hypothesis.text, is_first=index == 0)


class GenerationTimer:
    """Times prefill, up to the first token, and the rest."""

    def __init__(self) -> None:
        self.started_at = self.first_token_at = time.perf_counter()
        self.has_token = False

    def record_token(self) -> None:
        if not self.has_token:
            self.first_token_at, self.has_token = time.perf_counter(), True

    def report(self, tokens: int, sampler: Sampler, acceptance: AcceptanceStats, *, engines: EnginePlan) -> None:
        """Print speed, dtype, engine, seed and draft acceptance to stderr."""
        seconds = time.perf_counter() - self.first_token_at
        speed = f"{tokens / seconds:.0f} tokens/s" if tokens > 1 and seconds > 0 else "–"
        prefill = format_duration(self.first_token_at - self.started_at)
        print_note(
            f"{tokens} tokens, {speed} after {prefill} of prefill, {engines}"
            + ("" if sampler.greedy else f", seed {sampler.seed}")
            + (f", accepted {acceptance.accepted} of {acceptance.proposed} draft tokens" if acceptance.proposed else "")
        )

"""Samples as they grow, and how they are written: as text, or as lines of JSON."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import typer

from cli.console.escapes import for_stream, json_line
from lm.config.tokenizer import END_OF_TEXT

if TYPE_CHECKING:
    from lm.decoding.beam_search import Hypothesis
    from lm.decoding.generate import Alternatives, Finish, Token
    from lm.decoding.sampling import Sampler
    from lm.decoding.stop_strings import TextUntil
    from lm.tokenizer.tokenizer import Tokenizer


def write_text(text: str) -> None:
    """Text on stdout, at once; a terminal gets its control characters drawn."""
    if text:
        sys.stdout.write(for_stream(text, sys.stdout))
        sys.stdout.flush()


@dataclass
class Sample:
    """One sample as it grows."""

    source: TextUntil
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    alternatives: list[Alternatives] = field(default_factory=list)
    finish_reason: str | None = None

    def take(self, event: Token | Finish) -> None:
        """Grow by an event of this sample."""
        from lm.decoding.generate import Token

        self.text += event.text
        if isinstance(event, Token):
            self.tokens.append(event.id)
            self.logprobs.append(event.logprob)
            self.alternatives.append(event.alternatives)
        else:
            self.finish_reason = event.reason

    def interrupt(self) -> None:
        """End with what there is."""
        if self.finish_reason is None:
            self.text += self.source.finish()
            self.finish_reason = "interrupted"


class Output:
    """Writes samples in order: of the first that is not finished what there is so far, and nothing of those after."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples, self.current = samples, 0

    def advance(self) -> None:
        """Write what is new."""
        while self.current < len(self.samples):
            sample = self.samples[self.current]
            self.write(sample)
            if sample.finish_reason is None:
                return
            self.end(sample)
            self.current += 1

    def interrupt(self) -> None:
        """Write all that was generated."""
        for sample in self.samples[self.current :]:
            if sample.tokens:
                sample.interrupt()
        self.advance()

    def write(self, sample: Sample) -> None:
        """Bring a sample's text up to date."""

    def end(self, sample: Sample) -> None:
        """A sample is finished."""


class Texts(Output):
    """Each sample's text after the prompt, parted as documents of a corpus are."""

    def __init__(self, samples: Sequence[Sample], prompt: str) -> None:
        super().__init__(samples)
        self.prompt, self.written = prompt, -1

    def write(self, sample: Sample) -> None:
        """Write the part of the sample's text that is new."""
        if self.written < 0:
            bold = sys.stdout.isatty() and "NO_COLOR" not in os.environ
            write_text(f"{END_OF_TEXT}\n" if self.current else "")
            prompt = for_stream(self.prompt, sys.stdout)
            sys.stdout.write(typer.style(prompt, bold=True) if bold and prompt else prompt)
            self.written = 0
        # Counted as written before it is, or Ctrl-C could repeat text.
        fresh, self.written = sample.text[self.written :], len(sample.text)
        write_text(fresh)

    def end(self, sample: Sample) -> None:
        """End the line."""
        write_text("" if (self.prompt + sample.text).endswith("\n") else "\n")
        self.written = -1


class JsonLines(Output):
    """One object a sample."""

    def __init__(
        self, samples: Sequence[Sample], prompt: str, seed: int, *, alternatives_of: Tokenizer | None = None
    ) -> None:
        """With a tokenizer, objects have the alternatives to each token, spelled by it."""
        super().__init__(samples)
        self.prompt, self.seed, self.tokenizer = prompt, seed, alternatives_of

    def end(self, sample: Sample) -> None:
        """Write the object."""
        values: dict[str, Any] = {
            "prompt": self.prompt,
            "text": sample.text,
            "tokens": sample.tokens,
            "logprobs": sample.logprobs,
            "finish_reason": sample.finish_reason,
            "seed": self.seed,
        }
        if self.tokenizer is not None:
            values["alternatives"] = [_described(token, self.tokenizer) for token in sample.alternatives]
        write_json(values)


def _described(alternatives: Alternatives, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    return [
        {"token": token, "text": tokenizer.token_bytes(token).decode(errors="replace"), "logprob": logprob}
        for token, logprob in alternatives
    ]


def write_json(values: dict[str, Any]) -> None:
    """One object on one line."""
    print(json_line(values), flush=True)


def write_hypotheses(best: Sequence[Hypothesis], prompt: str, tokenizer: Tokenizer, *, as_json: bool) -> None:
    """The results of a beam search, best first."""
    for place, hypothesis in enumerate(best):
        text = tokenizer.decode(hypothesis.tokens)
        if as_json:
            write_json({"prompt": prompt, "text": text, **dataclasses.asdict(hypothesis)})
        else:
            shown = prompt + text
            write_text((f"{END_OF_TEXT}\n" if place else "") + shown + ("" if shown.endswith("\n") else "\n"))


class Watch:
    """Times the prompt, up to the first token, apart from the rest."""

    def __init__(self) -> None:
        self.began = self.first = time.perf_counter()
        self.seen = False

    def saw_token(self) -> None:
        """A token came."""
        if not self.seen:
            self.first, self.seen = time.perf_counter(), True

    def report(self, tokens: int, sampler: Sampler) -> None:
        """Speed and seed, on stderr."""
        from cli.console.messages import note
        from cli.console.numbers import duration

        seconds = time.perf_counter() - self.first
        speed = f"{tokens / seconds:.0f} tokens/s" if tokens > 1 and seconds > 0 else "–"
        note(
            f"{tokens} tokens, {speed} after {duration(self.first - self.began)} for the prompt"
            + ("" if sampler.greedy else f", seed {sampler.seed}")
        )

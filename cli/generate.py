"""`lm generate`: continue a prompt."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from cli.loading import RunPath, load_decoder
from cli.options import Given, takes
from lm.config import END_OF_TEXT, HardwareConfig, SamplingConfig
from lm.errors import InputError, UsageError

if TYPE_CHECKING:
    from lm.data.text_stream import TextStream
    from lm.data.tokenizer import Tokenizer
    from lm.decoding.generate import Finish, Token
    from lm.decoding.sampling import Sampler
    from lm.model.transformer import DecoderOnly

INTERRUPTED = 130


@takes({"sampling": SamplingConfig, "hardware": HardwareConfig})
def generate(
    run: RunPath,
    prompt: Annotated[
        str | None,
        typer.Argument(
            help="Text to continue; - or nothing reads it from a pipe, less one line end. An empty prompt begins a "
            "new document.",
            show_default=False,
        ),
    ] = None,
    *,
    samples: Annotated[int, typer.Option("-n", "--samples", min=1, help="How many continuations.")] = 1,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Samples generated side by side.")] = 16,
    echo: Annotated[bool, typer.Option(help="Print the prompt in front of each text (never with --json).")] = True,
    use_cache: Annotated[
        bool, typer.Option("--cache/--no-cache", help="Keep keys and values; without them all is read again each time.")
    ] = True,
    stats: Annotated[
        bool | None,
        typer.Option(help="Speed and seed on stderr [default: if that is a terminal].", show_default=False),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="One object a sample, one a line: prompt, text, tokens, logprobs, finish_reason, seed."
        ),
    ] = False,
    given: Given,
) -> None:
    """Continue a prompt, or begin a new text.

    The text is written as it comes. Several samples come in order, with a line <|endoftext|> between them, as in a
    corpus. Log-probabilities (--json) are the model's own: of all tokens, at temperature 1, before any filter; the
    token that ended a text is among them.

    Examples:
      lm generate runs/novel "It was a dark"
      lm generate runs/novel --greedy --max-tokens 50 < beginning.txt
      lm generate runs/novel "Once" -n 5 --top-p 0.9 --seed 1 --json
    """
    config = SamplingConfig(**given["sampling"])
    text = _prompt(prompt)
    model, loaded = load_decoder(run, HardwareConfig(**given["hardware"]), command="generate")
    from lm.decoding.sampling import Sampler

    sampler = Sampler.of(config)
    texts = [_Sample(loaded.tokenizer.decode_stream()) for _ in range(samples)]
    output = _JsonLines(texts, text, sampler.seed) if as_json else _Texts(texts, text if echo else "")
    events = _events(
        model,
        loaded.tokenizer,
        text,
        sampler,
        max_tokens=config.max_tokens,
        samples=samples,
        batch_size=batch_size,
        use_cache=use_cache,
    )
    watch = _Watch()
    try:
        for event in events:
            texts[event.row].take(event)
            output.advance()
            watch.saw_token()
    except KeyboardInterrupt:
        output.interrupt()
        raise typer.Exit(INTERRUPTED) from None
    finally:
        if watch.seen and (stats or (stats is None and sys.stderr.isatty())):
            watch.report(sum(len(sample.tokens) for sample in texts), sampler)


def _prompt(argument: str | None) -> str:
    """The prompt: the argument, or what a pipe holds; never waits for a terminal unless asked with `-`."""
    if argument is None and sys.stdin.isatty():
        return ""
    try:
        if argument is not None and argument != "-":
            return argument.encode().decode()
        text = sys.stdin.buffer.read().decode()
    except UnicodeEncodeError:
        raise UsageError("the prompt is not valid UTF-8") from None
    except UnicodeDecodeError as error:
        raise InputError(f"stdin: not valid UTF-8 at byte offset {error.start}") from None
    return text.removesuffix("\n").removesuffix("\r")


def _events(
    model: DecoderOnly,
    tokenizer: Tokenizer,
    text: str,
    sampler: Sampler,
    *,
    max_tokens: int,
    samples: int,
    batch_size: int,
    use_cache: bool,
) -> Iterator[Token | Finish]:
    from lm.decoding.generate import generate as generate_tokens
    from lm.decoding.generate import prompt_ids
    from lm.decoding.steps import DecoderSteps

    prompt = prompt_ids(tokenizer, text)
    stop_ids = () if tokenizer.end_of_text is None else (tokenizer.end_of_text,)
    for first in range(0, samples, batch_size):
        yield from generate_tokens(
            DecoderSteps(model, cached=use_cache),
            prompt,
            sampler,
            max_tokens=max_tokens,
            stop_ids=stop_ids,
            n=min(batch_size, samples - first),
            first=first,
        )


@dataclass
class _Sample:
    """One sample as it grows."""

    stream: TextStream
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None

    def take(self, event: Token | Finish) -> None:
        from lm.decoding.generate import Token

        if isinstance(event, Token):
            self.tokens.append(event.id)
            self.logprobs.append(event.logprob)
            self.text += self.stream.feed(event.id)
        else:
            self.finish(event.reason)

    def finish(self, reason: str) -> None:
        self.text += self.stream.finish()
        self.finish_reason = reason


class _Output:
    """Writes samples in order: of the first that is not finished what there is so far, and nothing of those after."""

    def __init__(self, samples: Sequence[_Sample]) -> None:
        self.samples, self.current = samples, 0

    def advance(self) -> None:
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
            if sample.tokens and sample.finish_reason is None:
                sample.finish("interrupted")
        self.advance()

    def write(self, sample: _Sample) -> None:
        """Bring a sample's text up to date."""

    def end(self, sample: _Sample) -> None:
        """A sample is finished."""


class _Texts(_Output):
    def __init__(self, samples: Sequence[_Sample], prompt: str) -> None:
        super().__init__(samples)
        self.prompt, self.written, self.last = prompt, -1, ""

    def write(self, sample: _Sample) -> None:
        if self.written < 0:
            bold = sys.stdout.isatty() and "NO_COLOR" not in os.environ
            self._print(f"{END_OF_TEXT}\n" if self.current else "")
            self._print(typer.style(self.prompt, bold=True) if bold and self.prompt else self.prompt)
            self.written = 0
        fresh, self.written = (
            sample.text[self.written :],
            len(sample.text),
        )  # in this order, or Ctrl-C could repeat text
        self._print(fresh)

    def end(self, sample: _Sample) -> None:
        if not (self.prompt + sample.text).endswith("\n"):
            self._print("\n")
        self.written = -1

    def _print(self, text: str) -> None:
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()


class _JsonLines(_Output):
    def __init__(self, samples: Sequence[_Sample], prompt: str, seed: int) -> None:
        super().__init__(samples)
        self.prompt, self.seed = prompt, seed

    def end(self, sample: _Sample) -> None:
        values = {
            "prompt": self.prompt,
            "text": sample.text,
            "tokens": sample.tokens,
            "logprobs": sample.logprobs,
            "finish_reason": sample.finish_reason,
            "seed": self.seed,
        }
        print(json.dumps(values, ensure_ascii=False), flush=True)


class _Watch:
    """Times the prompt, up to the first token, apart from the rest."""

    def __init__(self) -> None:
        self.began = self.first = time.perf_counter()
        self.seen = False

    def saw_token(self) -> None:
        if not self.seen:
            self.first, self.seen = time.perf_counter(), True

    def report(self, tokens: int, sampler: Sampler) -> None:
        from cli.display import duration, note

        seconds = time.perf_counter() - self.first
        speed = f"{tokens / seconds:.0f} tokens/s" if tokens > 1 and seconds > 0 else "–"
        note(
            f"{tokens} tokens, {speed} after {duration(self.first - self.began)} for the prompt"
            + ("" if sampler.greedy else f", seed {sampler.seed}")
        )

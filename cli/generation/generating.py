"""Generates samples and hypotheses for `lm generate`, and writes them as text or JSON lines."""

from __future__ import annotations

import dataclasses
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import typer

from cli.console.colours import is_colour_enabled
from cli.console.progress import show_counter
from cli.console.text import escape_for_stream, format_duration, format_json_line, format_number_of, print_note
from cli.loading import load_decoder, load_tokenizer
from cli.new_runs import suggest_compiling
from lm.config.decoding import BeamConfig, SamplingConfig
from lm.config.hardware import HardwareConfig
from lm.config.tokenizer import END_OF_TEXT
from lm.decoding.batching import Continuation
from lm.decoding.generator import Generator, common_prefix, sort_by_length
from lm.decoding.sampling import Sampler
from lm.decoding.speculative import AcceptanceStats
from lm.engine.fastest_dtype import decoding_dtype
from lm.engine.selection import EnginePlan
from lm.files import atomic_write_text
from lm.hardware import divide_threads, select_device
from lm.processes import in_numbered_order, open_process_map
from lm.run_folder import find_checkpoint, load_config
from lm.text.find import find_text_files
from lm.text.prompts import Prompt, read_prompts
from lm.tokenizer.tokenizer import Tokenizer

Continued = tuple[Prompt, list[Continuation]]
"""A prompt with its continuations."""
ToDict = Callable[..., dict[str, Any]]


class SampleWriter:
    """Writes samples in order: the text so far of the first unfinished one, and nothing of those after it.

    With a function that converts a sample, each is written as JSON when it ends.
    """

    def __init__(self, samples: Sequence[Continuation], prompt: str = "", to_dict: ToDict | None = None) -> None:
        self.samples, self.current, self.prompt, self._to_dict = samples, 0, prompt, to_dict
        self._written = -1

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
        """Write the new part of the sample's text, after the prompt."""
        if self._to_dict is not None:
            return
        if self._written < 0:
            _write_text(f"{END_OF_TEXT}\n" if self.current else "")
            prompt = escape_for_stream(self.prompt, sys.stdout)
            sys.stdout.write(typer.style(prompt, bold=True) if is_colour_enabled() and prompt else prompt)
            self._written = 0
        # Counted as written before writing, or Ctrl-C could repeat text.
        new, self._written = sample.text[self._written :], len(sample.text)
        _write_text(new)

    def end_sample(self, sample: Continuation) -> None:
        if self._to_dict is not None:
            print(format_json_line(self._to_dict(sample)), flush=True)
        else:
            _write_text("" if (self.prompt + sample.text).endswith("\n") else "\n")
        self._written = -1


def _write_text(text: str, stream: IO[str] | None = None) -> None:
    """Write text to a stream, or to stdout and flush; control characters are escaped on a terminal."""
    if text:
        (stream or sys.stdout).write(escape_for_stream(text, stream or sys.stdout))
        if stream is None:
            sys.stdout.flush()


def sample_to_dict(
    sample: Continuation, *, prompt: str, dtype: str, seed: int | None = None, tokenizer: Tokenizer | None = None
) -> dict[str, Any]:
    """Convert a sample or, without a seed, a hypothesis; with a tokenizer, alternatives to each token are included."""
    fields = ("text", "tokens", "logprobs", "finish_reason")
    values = {"prompt": prompt, **{name: getattr(sample, name) for name in fields}, "dtype": dtype}
    values |= {"score": sample.score} if seed is None else {"seed": seed}
    if tokenizer is not None:
        values["alternatives"] = [
            [
                {"token": token, "text": tokenizer.token_bytes(token).decode(errors="replace"), "logprob": logprob}
                for token, logprob in alternatives
            ]
            for alternatives in sample.alternatives
        ]
    return values


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


@dataclass(frozen=True)
class GenerationRequest:
    """What to generate for each prompt, with which run, and where it is written.

    Attributes:
        samples: continuations per prompt.
        alternatives: how many of the most probable tokens to return with each token.
        stats: whether speed, dtype and seed are printed at the end.
    """

    run: Path
    sampling: SamplingConfig
    beam: BeamConfig
    hardware: HardwareConfig
    samples: int
    batch_size: int
    alternatives: int
    as_json: bool
    echo: bool
    stats: bool

    def load(self, common_prefix: str) -> Callable[[Iterable[Prompt]], Iterator[tuple[int, Continued]]]:
        """Load the run; return a function that continues prompts with a common prefix, as they end."""
        model, loaded = load_decoder(self.run, self.hardware)
        generator = Generator(
            model, loaded.tokenizer, self.sampling, batch_size=self.batch_size,
            follows_examples=loaded.config.is_supervised,
        )  # fmt: skip
        return partial(self._continue, generator, common_prefix)

    def _continue(
        self, generator: Generator, common_prefix: str, prompts: Iterable[Prompt]
    ) -> Iterator[tuple[int, Continued]]:
        if self.beam.beam is None:
            for prompt, samples in generator.continue_prompts(
                prompts, n=self.samples, common_prefix=common_prefix, alternatives=self.alternatives
            ):
                yield prompt.number, (prompt, samples)
            return
        for prompt in prompts:
            hypotheses = generator.search(
                prompt.text, beam_size=self.beam.beam, length_penalty=self.beam.length_penalty, n=self.samples,
                max_tokens=prompt.max_tokens,
            )  # fmt: skip
            yield prompt.number, (prompt, hypotheses)


def generate_for_prompts(file: str, request: GenerationRequest, *, out: Path | None, processes: int) -> None:
    """Continue the prompts of a file, divided among processes, and write the results in order."""
    config, start, tokens = load_config(find_checkpoint(request.run)), time.perf_counter(), 0
    (read,) = find_text_files([file])
    prompts = list(read_prompts(read))
    seed = Sampler.from_config(request.sampling).seed  # a random one without a setting: all processes have the same
    request = dataclasses.replace(request, sampling=request.sampling.replace(seed=seed))
    suggest_compiling(config.model, select_device(request.hardware))
    beginning, ordered = common_prefix([prompt.text for prompt in prompts]), [*sort_by_length(prompts)]
    with ExitStack() as stack:
        stream = None if out is None else stack.enter_context(atomic_write_text(out))
        if processes == 1:
            results = request.load(beginning)(ordered)
        else:
            shared = dataclasses.replace(request, hardware=divide_threads(request.hardware, processes))
            chunks = [ordered[first :: 4 * processes] for first in range(4 * processes)]
            process_map = stack.enter_context(open_process_map(partial(shared.load, beginning), processes))
            results = itertools.chain.from_iterable(process_map(chunks))
        write, count = _make_writer(request, stream), stack.enter_context(show_counter("generating", "prompts"))
        try:
            for done, (prompt, continuations) in enumerate(in_numbered_order(results), 1):
                for continuation in continuations:
                    write(prompt, continuation)
                tokens += sum(len(continuation.tokens) for continuation in continuations)
                count(done)
        except KeyboardInterrupt:
            raise typer.Abort from None
    if prompts and request.stats:
        is_sampled = request.sampling.temperature > 0 and request.beam.beam is None
        seconds, dtype = time.perf_counter() - start, decoding_dtype(request.run, request.hardware)
        counts = f"{format_number_of(len(prompts), 'prompt')}, {format_number_of(tokens, 'token')}"
        took = f"{format_duration(seconds)}, {tokens / seconds:,.0f} tokens/s"
        print_note(f"{counts} in {took}, {dtype}" + (f", seed {seed}" if is_sampled else ""))


def _make_writer(request: GenerationRequest, stream: IO[str] | None) -> Callable[[Prompt, Continuation], None]:
    """Return the function that writes a continuation of a prompt."""
    tokenizer = load_tokenizer(request.run) if request.as_json and request.alternatives else None
    dtype, separator = decoding_dtype(request.run, request.hardware), ""

    def write(prompt: Prompt, continuation: Continuation) -> None:
        nonlocal separator
        if request.as_json:
            seed = request.sampling.seed if prompt.seed is None else prompt.seed
            seed = seed if request.beam.beam is None else None
            values = sample_to_dict(continuation, prompt=prompt.text, dtype=dtype, seed=seed, tokenizer=tokenizer)
            print(format_json_line(values), file=stream, flush=stream is None)
            return
        text = (prompt.text if request.echo else "") + continuation.text
        _write_text(separator + text + ("" if text.endswith("\n") else "\n"), stream)
        separator = f"{END_OF_TEXT}\n"

    return write


def generate_samples(generator: Generator, prompt: str, request: GenerationRequest) -> bool:
    """Write samples as they come, or the hypotheses of beam search, best first; return whether any has text."""
    dtype, shown = decoding_dtype(request.run, request.hardware), prompt if request.echo or request.as_json else ""
    if request.beam.beam is not None:
        write = _make_writer(request, None)
        for hypothesis in generator.search(
            prompt, beam_size=request.beam.beam, length_penalty=request.beam.length_penalty, n=request.samples
        ):
            write(Prompt(0, prompt, ""), hypothesis)
        return True
    samples, timer = [Continuation() for _ in range(request.samples)], GenerationTimer()
    to_dict = partial(
        sample_to_dict, prompt=shown, dtype=dtype, seed=generator.sampler.seed,
        tokenizer=generator.tokenizer if request.alternatives else None,
    )  # fmt: skip
    output = SampleWriter(samples, shown, to_dict if request.as_json else None)
    try:
        for event in generator.generate(prompt, n=request.samples, alternatives=request.alternatives):
            samples[event.row].append(event)
            output.write_new()
            timer.record_token()
    except KeyboardInterrupt:
        output.interrupt(generator, generator.encode(prompt))
        raise typer.Abort from None
    finally:
        if timer.has_token and request.stats:
            tokens, engines = sum(len(sample.tokens) for sample in samples), generator.plan(request.samples)
            timer.report(tokens, generator.sampler, generator.acceptance_stats, engines=engines)
    return any(sample.text for sample in samples)

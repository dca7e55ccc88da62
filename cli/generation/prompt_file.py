"""`lm generate --prompts`: continues the prompts of a file concurrently, with results in the order of the file."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from cli.console.messages import print_note
from cli.console.numbers import format_duration, format_number_of
from cli.console.progress import create_progress
from cli.generation.writers import hypothesis_to_dict, sample_to_dict, write_completion, write_json
from cli.loading import load_decoder, load_tokenizer
from cli.new_runs import suggest_compiling
from lm.config.data import DataConfig
from lm.config.decoding import BeamConfig, SamplingConfig
from lm.config.hardware import HardwareConfig
from lm.decoding.batching import Continuation
from lm.decoding.generator import Generator, common_prefix, sort_by_length
from lm.decoding.sampling import Sampler
from lm.engine.fastest_dtype import decoding_dtype
from lm.errors import InputError
from lm.files import atomic_write_text
from lm.hardware import divide_threads, select_device
from lm.processes import Work, WorkerPool, in_numbered_order
from lm.run_folder import find_checkpoint, load_config
from lm.text.find import find_text_files
from lm.text.prompts import Prompt, read_prompts
from lm.tokenizer.tokenizer import Tokenizer

Continued = tuple[Prompt, list[Continuation]]
"""A prompt with its continuations."""


@dataclass(frozen=True)
class GenerationRequest:
    """What to generate for each prompt, and with which run."""

    run: Path
    sampling: SamplingConfig
    beam: BeamConfig
    hardware: HardwareConfig
    samples: int
    """Continuations per prompt."""
    batch_size: int
    alternatives: int
    """How many of the most probable tokens to return with each token."""

    def load(self, common_prefix: str) -> Work[Prompt, tuple[int, Continued]]:
        """Load the run; return a function that continues prompts with a common prefix."""
        model, loaded = load_decoder(self.run, self.hardware, instead="use lm translate")
        generator = Generator(
            model, loaded.tokenizer, self.sampling, batch_size=self.batch_size,
            follows_examples=loaded.config.is_supervised,
        )  # fmt: skip
        if self.beam.beam is not None:
            return partial(self._beam_search, generator)
        return partial(self._sample, generator, common_prefix)

    def _sample(
        self, generator: Generator, common_prefix: str, prompts: Iterator[Prompt]
    ) -> Iterator[tuple[int, Continued]]:
        """Yield numbered samples of prompts, as they end."""
        for prompt, samples in generator.continue_prompts(
            prompts, n=self.samples, common_prefix=common_prefix, alternatives=self.alternatives
        ):
            yield prompt.number, (prompt, samples)

    def _beam_search(self, generator: Generator, prompts: Iterator[Prompt]) -> Iterator[tuple[int, Continued]]:
        """Yield numbered hypotheses of prompts, one prompt after the other."""
        assert self.beam.beam is not None
        for prompt in prompts:
            hypotheses = generator.search(
                prompt.text, beam_size=self.beam.beam, length_penalty=self.beam.length_penalty, n=self.samples,
                max_tokens=prompt.max_tokens,
            )  # fmt: skip
            yield prompt.number, (prompt, hypotheses)


@dataclass(frozen=True)
class OutputFormat:
    """Where and how results are written; `stats` are speed, dtype and seed, printed at the end."""

    out: Path | None
    as_json: bool
    echo: bool
    stats: bool


def generate_for_prompts(file: str, request: GenerationRequest, output_format: OutputFormat, *, processes: int) -> None:
    """Continue the prompts of a file, divided among processes, and write the results in order."""
    config = load_config(find_checkpoint(request.run))
    prompts = _read_prompt_file(file, config.data)
    if not prompts:
        print_note(f"{file}: no prompts, so nothing to do")
    seed = Sampler.from_config(request.sampling).seed  # a random one without a setting: all processes have the same
    request = dataclasses.replace(request, sampling=request.sampling.replace(seed=seed))
    suggest_compiling(config.model, select_device(request.hardware))
    beginning = common_prefix([prompt.text for prompt in prompts])
    tokenizer = load_tokenizer(request.run) if output_format.as_json and request.alternatives else None
    with ExitStack() as stack:
        stream = None if output_format.out is None else stack.enter_context(atomic_write_text(output_format.out))
        results = stack.enter_context(_start_generation(request, beginning, prompts, processes=processes))
        try:
            for number, (prompt, continuations) in enumerate(
                in_numbered_order(_with_progress(results, request, output_format, total=len(prompts)))
            ):
                _write(prompt, continuations, request, output_format, stream, tokenizer, is_first=not number)
        except KeyboardInterrupt:
            raise typer.Abort from None


def _read_prompt_file(file: str, data: DataConfig) -> Sequence[Prompt]:
    """Read all prompts of a file; InputError if it is a folder, or several."""
    files = find_text_files([file], DataConfig(keep_line_ends=data.keep_line_ends))
    if len(files) > 1 or Path(file).is_dir():
        raise InputError(f"{file}: not one file; name the one that holds the prompts (--prompts)")
    return list(read_prompts(files[0]))


@contextmanager
def _start_generation(
    request: GenerationRequest, common_prefix: str, prompts: Sequence[Prompt], *, processes: int
) -> Iterator[Iterator[tuple[int, Continued]]]:
    """Generate in this process or in others; yield the numbered results as they come."""
    ordered = sort_by_length(prompts)
    if processes == 1:
        yield request.load(common_prefix)(ordered)
        return
    shared = dataclasses.replace(request, hardware=divide_threads(request.hardware, processes))
    with WorkerPool(partial(shared.load, common_prefix), processes) as workers:
        yield workers.imap_unordered(ordered)


def _with_progress(
    results: Iterable[tuple[int, Continued]], request: GenerationRequest, output_format: OutputFormat, *, total: int
) -> Iterator[tuple[int, Continued]]:
    """Yield the results; show their number and speed on stderr if that is a terminal."""
    start, tokens, done = time.perf_counter(), 0, 0
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("prompts  {task.fields[speed]}"), TimeRemainingColumn())
    with create_progress(*columns) as bar:
        task = bar.add_task("", total=total, speed="")
        for done, (number, (prompt, continuations)) in enumerate(results, 1):
            tokens += sum(len(continuation.tokens) for continuation in continuations)
            speed = f"{tokens / (time.perf_counter() - start):,.0f} tokens/s"
            bar.update(task, completed=done, speed=speed)
            yield number, (prompt, continuations)
    if done and output_format.stats:
        is_sampled = request.sampling.temperature > 0 and request.beam.beam is None
        took = format_duration(time.perf_counter() - start)
        seed = f", seed {request.sampling.seed}" if is_sampled else ""
        dtype = decoding_dtype(request.run, request.hardware)
        counts = f"{format_number_of(done, 'prompt')}, {format_number_of(tokens, 'token')}"
        print_note(f"{counts} in {took}, {speed}, {dtype}{seed}")


def _write(  # noqa: PLR0917
    prompt: Prompt,
    continuations: Sequence[Continuation],
    request: GenerationRequest,
    output_format: OutputFormat,
    stream: IO[str] | None,
    tokenizer: Tokenizer | None,
    *,
    is_first: bool,
) -> None:
    for index, continuation in enumerate(continuations):
        if not output_format.as_json:
            write_completion(
                (prompt.text if output_format.echo else "") + continuation.text,
                is_first=is_first and not index,
                stream=stream,
            )
        elif request.beam.beam is not None:
            write_json(hypothesis_to_dict(continuation, prompt.text), stream)
        else:
            seed = request.sampling.seed if prompt.seed is None else prompt.seed
            assert seed is not None
            write_json(sample_to_dict(continuation, prompt.text, seed=seed, tokenizer=tokenizer), stream)

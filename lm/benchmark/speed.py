"""Speed of a model: training step, prefill, and generation of one or several concurrent texts."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from lm.benchmark import generation, hugging_face
from lm.benchmark.hardware_limits import HardwareLimits
from lm.config.hardware import HardwareConfig
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.data.batch import batch_rows
from lm.hardware import Hardware, select_inference_hardware
from lm.model.cost import training_flops
from lm.training.measure import Timer, random_run, time_interleaved, training_step_timer

Task = Literal["training", "prefill", "decoding"]

CONCURRENCY = (1, 16)
"""Numbers of concurrent texts."""

MEASUREMENTS_PER_MODEL = 2 + len(CONCURRENCY)
"""Measurements per model."""

_STEP_FRACTION = 1 / 4
_EXPECTED_UTILISATION = 0.3
_MAX_POSITIONS = 1 << 15  # their activations fit into the memory of most machines


@dataclass(frozen=True)
class Timings:
    """Timings of a workload.

    Attributes:
        rounds: number of trials.
        baseline_seconds: median of Hugging Face, alternating with ours; None without it.
        ratio: speed-up over Hugging Face, the median over trials.
    """

    rounds: int
    seconds: float
    baseline_seconds: float | None = None
    ratio: float | None = None


@dataclass(frozen=True)
class Measurement:
    """The speed of a workload.

    Attributes:
        task: an optimizer step, prefill, or decoding.
        rows: concurrent sequences.
        length: tokens of each.
        limit: matmul FLOP/s in the same dtype.
        timed_rows: rows that were timed, if the time of all was extrapolated.
        peak_bytes: peak memory of a GPU; None elsewhere.
    """

    preset: str
    task: Task
    rows: int
    length: int
    hardware: Hardware
    flops: float
    limit: float
    timings: Timings
    timed_rows: int | None = None
    peak_bytes: int | None = None

    @property
    def tokens(self) -> int:
        return self.rows * self.length

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.timings.seconds

    @property
    def baseline_tokens_per_second(self) -> float | None:
        theirs = self.timings.baseline_seconds
        return None if theirs is None else self.tokens / theirs

    @property
    def utilisation(self) -> float:
        """The model-FLOPs utilisation: FLOP/s as a fraction of the limit."""
        return self.flops / self.timings.seconds / self.limit


def measure_speed(
    config: RunConfig,
    limits: HardwareLimits,
    *,
    seconds: float,
    generating: HardwareConfig | None = None,
    compare: bool = False,
    rows: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Measurement]:
    """Measure a decoder-only model with random weights on random tokens.

    Args:
        seconds: for each measurement and side, about.
        generating: hardware for generation [default: that of training].
        compare: measure Hugging Face's GPT-2 of the same shape too, alternating.
        rows: sequences per training step [default: the config's, extrapolated from as many as there is time for].
    """
    name = str(config.preset)
    progress(f"{name}, training")
    yield _measure_training(config, limits, seconds=seconds, compare=compare, rows=rows)
    bench = _GenerationBenchmark(config, generating or config.hardware, limits, seconds=seconds, compare=compare)
    progress(f"{name}, prefill")
    yield bench.prefill()
    for streams in CONCURRENCY:
        progress(f"{name}, generating {streams} text{'' if streams == 1 else 's'}")
        yield bench.decoding(streams)


def choose_timed_rows(config: RunConfig, *, flops_per_second: float, seconds: float) -> int:
    """Choose the rows of a training step that takes a small part of the given seconds, at most the preset's batch.

    Args:
        flops_per_second: of a matmul.
        seconds: for several steps.
    """
    batch, length = config.training.batch_size, config.model.context_length
    expected_flops = _EXPECTED_UTILISATION * flops_per_second * _STEP_FRACTION * seconds
    max_rows = int(min(expected_flops / training_flops(config.model, rows=1, length=length), _MAX_POSITIONS / length))
    power_of_two = 1 << max_rows.bit_length() >> 1  # which varies less between calls
    return batch if max_rows >= batch else max(1, power_of_two)


def _measure_training(
    config: RunConfig, limits: HardwareLimits, *, seconds: float, compare: bool, rows: int | None
) -> Measurement:
    model, whole = config.model, rows or batch_rows(config)
    timed = rows or choose_timed_rows(config, flops_per_second=max(limits.flops.values()), seconds=seconds)
    run = random_run(config, rows=timed)
    step = training_step_timer(run, batch_scale=whole / timed)
    peak = measure_peak_memory(step, run.hardware)
    sides = [step, hugging_face.training_timer(run, batch_scale=whole / timed)] if compare else [step]
    return Measurement(
        str(config.preset),
        "training",
        rows=whole,
        length=model.context_length,
        hardware=run.hardware,
        flops=training_flops(model, rows=whole, length=model.context_length),
        limit=limits.flops[run.hardware.matmul_dtype],
        timings=_time_alternating(sides, seconds=seconds),
        timed_rows=timed,
        peak_bytes=peak,
    )


def measure_peak_memory(step: Timer, hardware: Hardware) -> int | None:
    """Return the peak GPU memory of a step in bytes; None elsewhere, where only the process's peak is known."""
    if hardware.device != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats()
    step()
    return torch.cuda.max_memory_allocated()


class _GenerationBenchmark:
    """Our model and perhaps the baseline, loaded as for generation."""

    def __init__(
        self, config: RunConfig, hardware: HardwareConfig, limits: HardwareLimits, *, seconds: float, compare: bool
    ) -> None:
        self._name, self._config = str(config.preset), config.model
        self._hardware, self._limits, self._seconds = select_inference_hardware(hardware), limits, seconds
        self._ours = generation.random_model(config.model, self._hardware)
        self._theirs = hugging_face.inference_model(config.model, self._hardware) if compare else None
        self._prompt = generation.random_prompt(config.model)

    def prefill(self) -> Measurement:
        length = self._prompt.shape[1]
        sides = [generation.prefill_timer(self._ours, self._prompt, self._hardware)]
        if self._theirs is not None:
            sides.append(hugging_face.prefill_timer(self._theirs, self._prompt, self._hardware))
        flops = prefill_flops(self._config, rows=1, length=length)
        return self._measured("prefill", sides, rows=1, length=length, flops=flops)

    def decoding(self, rows: int) -> Measurement:
        start = self._prompt.shape[1]

        def ours(tokens: int) -> Timer:
            return generation.decode_timer(self._ours, self._prompt, self._hardware, rows=rows, tokens=tokens)

        max_tokens = max(1, self._config.context_length - start - 1)
        tokens = generation.choose_timed_tokens(ours, max_tokens=max_tokens, seconds=self._seconds)
        sides = [ours(tokens)]
        if self._theirs is not None:
            sides.append(
                hugging_face.decode_timer(self._theirs, self._prompt, self._hardware, rows=rows, tokens=tokens)
            )
        flops = decoding_flops(self._config, rows=rows, start=start, tokens=tokens)
        return self._measured("decoding", sides, rows=rows, length=tokens, flops=flops)

    def _measured(self, task: Task, sides: Sequence[Timer], *, rows: int, length: int, flops: float) -> Measurement:
        limit = self._limits.flops[self._hardware.matmul_dtype]
        return Measurement(
            self._name, task, rows, length, self._hardware, flops, limit,
            _time_alternating(sides, seconds=self._seconds),
        )  # fmt: skip


def _time_alternating(sides: Sequence[Timer], *, seconds: float) -> Timings:
    rounds = time_interleaved(sides, seconds=seconds)
    ours, *theirs = (statistics.median(column) for column in zip(*rounds, strict=True))
    if not theirs:
        return Timings(len(rounds), ours)
    return Timings(len(rounds), ours, theirs[0], statistics.median(other / own for own, other in rounds))


def prefill_flops(config: ModelConfig, *, rows: int, length: int) -> float:
    """Return the FLOPs of prefill; only the logits of the last token are computed."""
    unwanted = 2.0 * rows * (length - 1) * config.vocab_size * config.d_model
    return _forward_flops(config, rows=rows, length=length) - unwanted


def decoding_flops(config: ModelConfig, *, rows: int, start: int, tokens: int) -> float:
    """Return the FLOPs of `tokens` decode steps per row, after `start` cached tokens."""
    return _forward_flops(config, rows=rows, length=start + tokens) - _forward_flops(config, rows=rows, length=start)


def _forward_flops(config: ModelConfig, *, rows: int, length: int) -> float:
    return training_flops(config, rows=rows, length=length) / 3

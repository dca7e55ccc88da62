"""Speed: `lm bench` measures presets and the machine, `lm compile` in which dtype a run decodes fastest."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

import corpora
from lm.checkpoint import LoadedModel, prepare_for_inference
from lm.config.hardware import HardwareConfig
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.corpus.store import Manifest
from lm.data.batch import Batch, batch_rows
from lm.data.training_data import TrainingData
from lm.decoding.batching import Sample, decode
from lm.decoding.sampling import Sampler
from lm.decoding.session import DecodeSession
from lm.decoding.translation import TranslationModel, Translator
from lm.engine.fastest_dtype import load_with_dtype, save_fastest_dtype
from lm.engine.selection import find_unsupported, plan_engines
from lm.errors import InputError, LMError, UsageError
from lm.evaluation.scoring import score_batch
from lm.hardware import (
    Hardware,
    inference_dtypes,
    measure_matmul_flops,
    native_dtypes,
    select_device,
    select_inference_hardware,
    time_work,
)
from lm.kernels import code_cache
from lm.model.cost import training_flops
from lm.model.cpu_kernels import linear
from lm.model.transformer import DecoderOnly, EncoderOnly, build_model
from lm.run_folder import count_parameters, find_checkpoint, load_config, load_state
from lm.training.measure import Timer, random_run, time_interleaved, training_step_timer
from lm.training.training_corpus import open_data

CONCURRENCY = (1, 16)
"""Numbers of concurrent texts."""
_VALUES_ON_CPU, _VALUES_ON_GPU, _TRIES = 1 << 26, 1 << 28, 7
_CALL_FRACTION, _EXPECTED_UTILISATION, _FEW_TOKENS = 1 / 4, 0.3, 8
_MAX_POSITIONS = 1 << 15  # their activations fit into the memory of most machines


@dataclass(frozen=True)
class HardwareLimits:
    """FLOP/s of a matmul by dtype ("float32", "bfloat16"), and bytes read from memory per second."""

    flops: Mapping[str, float]
    memory_bandwidth: float


def measure_hardware_limits(config: HardwareConfig) -> HardwareLimits:
    """Measure the limits in each natively supported dtype and the configured one."""
    hardware = select_inference_hardware(config)
    names = dict.fromkeys((*native_dtypes(hardware.device), hardware.matmul_dtype))
    with torch.inference_mode():  # on some CPUs the library behind `@` is half as fast as that of `linear`
        flops = {name: measure_matmul_flops(dataclasses.replace(hardware, dtype=name), matmul=linear) for name in names}
    count = _VALUES_ON_CPU if hardware.device == "cpu" else _VALUES_ON_GPU
    values = torch.ones(count, device=hardware.torch_device)
    return HardwareLimits(flops, values.nbytes / min(time_work(values.sum, hardware) for _ in range(_TRIES)))


@dataclass(frozen=True)
class Measurement:
    """The speed of a workload.

    Attributes:
        task: an optimizer step, prefill, or decoding.
        rows: concurrent sequences.
        length: tokens of each.
        seconds: the median of several rounds.
        utilisation: the model-FLOPs utilisation: FLOP/s as a fraction of those of a matmul in the same dtype.
    """

    preset: str
    task: Literal["training", "prefill", "decoding"]
    rows: int
    length: int
    dtype: str
    threads: int
    seconds: float
    tokens_per_second: float
    flops: float
    utilisation: float


def measure_speed(
    config: RunConfig,
    limits: HardwareLimits,
    *,
    seconds: float,
    generating: HardwareConfig,
    rows: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Measurement]:
    """Measure a decoder-only model with random weights on random tokens.

    Args:
        seconds: for each measurement, about.
        generating: hardware for generation.
        rows: sequences per training step [default: as many as there is time for, at most the config's].
    """
    model, length, name = config.model, config.model.context_length, str(config.preset)

    def measure(  # noqa: PLR0917
        task: Any, timer: Timer, rows: int, length: int, hardware: Hardware, flops: float
    ) -> Measurement:
        took = statistics.median(side for (side,) in time_interleaved([timer], seconds=seconds))
        used = flops / took / limits.flops[hardware.matmul_dtype]
        rate = rows * length / took
        return Measurement(name, task, rows, length, hardware.dtype, hardware.threads, took, rate, flops, used)

    progress(f"{name}, training")
    rows = rows or _choose_rows(config, flops_per_second=max(limits.flops.values()), seconds=seconds)
    run = random_run(config, rows=rows)
    flops = training_flops(model, rows=rows, length=length)
    yield measure("training", training_step_timer(run), rows, length, run.hardware, flops)

    progress(f"{name}, prefill")
    hardware, prompt = select_inference_hardware(generating), random_prompt(model)
    generator: Any = prepare_for_inference(build_model(model), hardware)
    start = prompt.shape[1]
    flops = prefill_flops(model, rows=1, length=start)
    yield measure("prefill", prefill_timer(generator, prompt, hardware), 1, start, hardware, flops)

    for streams in CONCURRENCY:
        progress(f"{name}, generating {streams} text{'s' * (streams > 1)}")
        decoding = partial(decode_timer, generator, prompt, hardware, rows=streams)
        tokens = _choose_tokens(decoding, max_tokens=length - start - 1, seconds=seconds)
        flops = decoding_flops(model, rows=streams, start=start, tokens=tokens)
        yield measure("decoding", decoding(tokens=tokens), streams, tokens, hardware, flops)


def _choose_rows(config: RunConfig, *, flops_per_second: float, seconds: float) -> int:
    """Choose the rows of a training step that takes a small part of the given seconds, at most the preset's batch."""
    batch, length = batch_rows(config), config.model.context_length
    expected_flops = _EXPECTED_UTILISATION * flops_per_second * _CALL_FRACTION * seconds
    most = int(min(expected_flops / training_flops(config.model, rows=1, length=length), _MAX_POSITIONS / length))
    power_of_two = 1 << most.bit_length() >> 1  # which varies less between calls
    return batch if most >= batch else max(1, power_of_two)


def _choose_tokens(decoding: Callable[..., Timer], *, max_tokens: int, seconds: float) -> int:
    """Choose how many tokens to time: a small part of the given seconds, but a few at least."""
    few = max(1, min(_FEW_TOKENS, max_tokens))
    return max(few, min(max_tokens, int(_CALL_FRACTION * seconds * few / decoding(tokens=few)())))


def random_prompt(config: ModelConfig) -> Tensor:
    """(1, length) random IDs that fill half of the context."""
    length = max(1, config.context_length // 2)
    return torch.randint(config.vocab_size, (1, length), generator=torch.Generator().manual_seed(0))


def prefill_timer(model: DecoderOnly, prompt: Tensor, hardware: Hardware) -> Timer:
    """Time the prefill of a prompt, including the logits of the next token."""
    return lambda: time_work(lambda: DecodeSession(plan_engines(model)).add(prompt.tolist()), hardware)


def decode_timer(model: DecoderOnly, prompt: Tensor, hardware: Hardware, *, rows: int, tokens: int) -> Timer:
    """Time the generation of `tokens` tokens in each of `rows` concurrent rows, after prefill and the first token."""

    def work() -> float:
        greedy = Sampler(greedy=True)
        samples = [Sample(prompt[0].tolist(), greedy, greedy.rng(number), 1 + tokens) for number in range(rows)]
        events = decode(DecodeSession(plan_engines(model)), samples, batch_size=rows)
        for _ in range(rows):
            next(events)
        return time_work(lambda: list(events), hardware)

    return work


def prefill_flops(config: ModelConfig, *, rows: int, length: int) -> float:
    """Return the FLOPs of prefill; only the logits of the last token are computed."""
    return training_flops(config, rows=rows, length=length, n_targets=1) / 3


def decoding_flops(config: ModelConfig, *, rows: int, start: int, tokens: int) -> float:
    """Return the FLOPs of `tokens` decode steps per row, after `start` cached tokens."""
    whole, past = (training_flops(config, rows=rows, length=length) / 3 for length in (start + tokens, start))
    return whole - past


MIN_PARAMETERS, _MIN_TRAINING_SECONDS = 1_000_000, 60.0
"""Of a run whose dtype is chosen without being asked: smaller models decode as fast in float32, and training that
takes seconds should not be followed by measurements that take as long.
"""
_MAX_BITS_PER_BYTE_RATIO, _MAX_LOAD_DELAY = 1.001, 1.0
"""The most bits/byte of another dtype, relative to float32, and the most additional seconds to load."""
_MAX_MAIN_TIME, _MAX_OTHER_TIME = 0.9, 1.05
"""The greatest time, relative to float32, of the most common workload, and of all others."""
_THOROUGH, _BRIEF = 2.5, 0.25
"""Seconds per workload and dtype, about."""
_TARGETS, _SCORING_CALLS, _BATCH_ROWS, _WINDOW = 8192, 4, 16, 256


@dataclass(frozen=True)
class DtypeMeasurement:
    """Measurements of one dtype, relative to float32.

    Attributes:
        dtype: as a value of the setting `dtype`.
        time_ratios: time relative to float32 for each workload, the most common one first, by name.
        bits_per_byte_ratio: bits/byte relative to float32.
        load_delay: additional seconds to load.
    """

    dtype: str
    time_ratios: Mapping[str, float]
    bits_per_byte_ratio: float
    load_delay: float

    @property
    def is_acceptable(self) -> bool:
        """Whether it is clearly faster in the most common workload, slower in none, and of the same quality."""
        first, *others = self.time_ratios.values()
        is_faster = first <= _MAX_MAIN_TIME and all(ratio <= _MAX_OTHER_TIME for ratio in others)
        return is_faster and self.bits_per_byte_ratio <= _MAX_BITS_PER_BYTE_RATIO and self.load_delay <= _MAX_LOAD_DELAY

    def __str__(self) -> str:
        speeds = ", ".join(f"{1 / ratio:.2f} ({work})" for work, ratio in self.time_ratios.items())
        return f"{self.dtype}: {speeds} times as fast as float32, {self.bits_per_byte_ratio - 1:+.3%} bits/byte"


def select_fastest_dtype(figures: Sequence[DtypeMeasurement]) -> str:
    fit = [measured for measured in figures if measured.is_acceptable]
    return min(fit, key=lambda measured: next(iter(measured.time_ratios.values()))).dtype if fit else "float32"


def compare_dtypes(path: Path, config: HardwareConfig, *, seconds: float = _THOROUGH) -> list[DtypeMeasurement]:
    """Measure a run in each dtype that this machine supports, relative to float32.

    Bits/byte are measured on the validation split, or for an imported model on the stories of this package.

    Args:
        seconds: per workload and dtype, about.

    Raises:
        InputError: the run is damaged, or its validation split is not available.
        UsageError: it does not generate or translate.
    """
    checkpoint, device = find_checkpoint(path), select_device(config)
    run = load_config(checkpoint)
    if run.model.purpose not in ("continues texts", "translates"):
        raise UsageError(f"{path}: this run {run.model.purpose}; name one that continues texts or translates, or none")
    data = None if run.plan is None and not run.model.translates else _open_training_data(path, run)
    has_int8 = device == "cpu" and code_cache.is_complete()
    loaded, delays = {}, {}
    for dtype in (dtype for dtype in inference_dtypes(device) if dtype != "int8" or has_int8):
        start = time.perf_counter()
        loaded[dtype] = load_with_dtype(checkpoint, config, dtype)
        delays[dtype] = time.perf_counter() - start
    batches = _story_batches(loaded["float32"]) if data is None else data.validation()
    nats = _sum_nats(loaded, batches, seconds=_SCORING_CALLS * seconds)
    ratios: dict[str, dict[str, float]] = {dtype: {} for dtype in loaded}
    for work, timers in _workloads(loaded, data, select_inference_hardware(config), seconds):
        rounds = time_interleaved([*timers.values()], seconds=seconds)
        for index, dtype in enumerate(timers):
            ratios[dtype][work] = statistics.median(times[index] / times[0] for times in rounds)
    return [
        DtypeMeasurement(
            dtype, ratios[dtype], nats[dtype] / nats["float32"], delays[dtype] - delays["float32"]
        )
        for dtype in loaded
        if dtype != "float32"
    ]  # fmt: skip


def measure_and_record_dtype(run: Path, config: HardwareConfig) -> DtypeMeasurement | None:
    """Measure for a few seconds in which dtype a new run decodes fastest, and record it in its checkpoint.

    Returns:
        The measurement of the recorded dtype; None if it is float32, or if nothing was measured: on a GPU, without
        compiled code, for a small model, after short training, or in a folder that can't be written.
    """
    checkpoint, device = find_checkpoint(run), select_device(config)
    described = load_config(checkpoint)
    is_short = (
        described.plan is not None
        and load_state(find_checkpoint(run, which="last")).training_seconds < _MIN_TRAINING_SECONDS
    )
    if is_short or count_parameters(checkpoint) < MIN_PARAMETERS:
        return None
    if device != "cpu" or not code_cache.is_complete() or find_unsupported(described.model):
        return None
    try:
        measurements = compare_dtypes(checkpoint, config, seconds=_BRIEF)
        chosen = select_fastest_dtype(measurements)
        save_fastest_dtype(checkpoint, device, chosen)
    except LMError:  # no validation split, for example
        return None
    return next((measured for measured in measurements if measured.dtype == chosen), None)


def _open_training_data(path: Path, run: RunConfig) -> TrainingData:
    """Open the data of a run; InputError unless they are its training data with a validation split."""
    plan = run.plan
    if plan is None or not Path(plan.data).is_dir() or Manifest.read(Path(plan.data)).key != plan.data_key:
        raise InputError(f"{path}: the corpus of this run is not available")
    data = open_data(Path(plan.data), run)
    if not data.validation_bytes:
        raise InputError(f"{path}: this run has no validation split")
    return data


def _story_batches(loaded: LoadedModel) -> Iterator[Batch]:
    """Yield windows of the stories that this package contains."""
    ids = np.array(loaded.tokenizer.encode(corpora.path("stories/heldout.txt").read_text()))
    length = min(_WINDOW, loaded.model.config.context_length)
    for begin in range(0, len(ids) - length, length):
        window = ids[None, begin : begin + length + 1]
        yield Batch(window[:, :-1], window[:, 1:])


def _sum_nats(loaded: Mapping[str, LoadedModel], batches: Iterator[Batch], *, seconds: float) -> dict[str, float]:
    """Sum the surprisal of the same targets by dtype, for about as many seconds; bits/byte are proportional to it."""
    totals, targets, start = dict.fromkeys(loaded, 0.0), 0, time.perf_counter()
    for part in (part for batch in batches for part in batch.split(_BATCH_ROWS)):
        for dtype, model in loaded.items():
            assert not isinstance(model.model, EncoderOnly)
            totals[dtype] += sum(float(row.sum()) for row in score_batch(model.model, part))
        targets += part.n_targets
        if targets >= _TARGETS or time.perf_counter() - start >= seconds:
            break
    return totals


def _workloads(
    loaded: Mapping[str, LoadedModel], data: TrainingData | None, hardware: Hardware, seconds: float
) -> Iterator[tuple[str, dict[str, Timer]]]:
    """Yield what is timed, the most common first: a timer by dtype."""
    models: dict[str, Any] = {dtype: each.model for dtype, each in loaded.items()}
    config = models["float32"].config
    if data is not None and config.translates:
        for lines in (32, 1):
            yield (
                f"{lines} line{'s' * (lines > 1)}",
                {dtype: _translation_timer(each, data, lines, hardware) for dtype, each in loaded.items()},
            )
        return
    prompt = random_prompt(config)[:, :_WINDOW]
    for rows in CONCURRENCY:
        timers = {dtype: partial(decode_timer, model, prompt, hardware, rows=rows) for dtype, model in models.items()}
        left = config.context_length - prompt.shape[1] - 1
        tokens = _choose_tokens(timers["float32"], max_tokens=left, seconds=seconds)
        yield f"{rows} text{'s' * (rows > 1)}", {dtype: timer(tokens=tokens) for dtype, timer in timers.items()}
    yield "a prompt", {dtype: prefill_timer(model, prompt, hardware) for dtype, model in models.items()}


def _translation_timer(loaded: LoadedModel, data: TrainingData, lines: int, hardware: Hardware) -> Timer:
    first, *others = data.references(lines)
    references = [first, *(reference for reference in others if reference.tag == first.tag)]
    translator = Translator(
        [TranslationModel.from_loaded(loaded)], to=None if first.tag is None else first.tag.language
    )
    sources = [reference.source for reference in references]
    heads = None if first.heads is None else [reference.heads or () for reference in references]
    return lambda: time_work(lambda: list(translator.translate(sources, dependency_heads=heads)), hardware)

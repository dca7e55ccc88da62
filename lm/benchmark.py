"""Speed: `lm bench` measures presets, `lm compile` in which dtype a run decodes fastest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import le
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import corpora
from lm.checkpoint import LoadedModel, load_model, prepare_for_inference
from lm.config.run_config import HardwareConfig, RunConfig
from lm.data import Batch, batch_rows
from lm.decoding import DecodeSession
from lm.decoding.batching import Sample, decode
from lm.decoding.sampling import Sampler
from lm.engine import compiled_engine_supports, plan_engines, save_fastest_dtype
from lm.errors import LMError, UsageError
from lm.evaluation.scoring import score_batch
from lm.hardware import (
    Hardware,
    Timer,
    configure_torch,
    inference_dtypes,
    select_device,
    select_hardware,
    time_interleaved,
    time_work,
)
from lm.kernels import code_cache
from lm.model import build_model
from lm.run_folder import count_parameters, find_checkpoint, load_config, load_state
from lm.training.measure import random_run, training_step_timer

CONCURRENCY = (1, 16)
"""Numbers of concurrent texts."""
_TRAINING_POSITIONS, _NEW_TOKENS = 4096, 32
"""Of a training step without a batch size, and of each text that is generated."""


class Measurement(NamedTuple):
    """The speed of a workload.

    Attributes:
        task: "training" (an optimizer step), "prefill" or "decoding".
        rows: concurrent sequences.
        length: tokens of each.
        seconds: the median of several rounds.
    """

    preset: str
    task: str
    rows: int
    length: int
    dtype: str
    seconds: float
    tokens_per_second: float


def measure_speed(
    config: RunConfig, *, seconds: float, generating: HardwareConfig, rows: int | None = None
) -> Iterator[Measurement]:
    """Measure a decoder-only model with random weights on random tokens.

    Args:
        seconds: for each measurement, about.
        generating: hardware for generation.
        rows: sequences per training step [default: a few thousand tokens].
    """
    length = config.model.context_length
    rows = rows or max(1, min(batch_rows(config), _TRAINING_POSITIONS // length))
    run, hardware = random_run(config, rows=rows), select_hardware(generating)
    model = prepare_for_inference(build_model(config.model), hardware)
    prompt = random_prompt(config.model.vocab_size, max(1, length // 2))
    tokens = min(_NEW_TOKENS, length - len(prompt) - 1)
    tasks = [
        ("training", training_step_timer(run), rows, length, run.hardware),
        ("prefill", prefill_timer(model, prompt, hardware), 1, len(prompt), hardware),
    ]
    for texts in CONCURRENCY:
        timer = decode_timer(model, prompt, hardware, rows=texts, tokens=tokens)
        tasks.append(("decoding", timer, texts, tokens, hardware))
    for task, timer, sequences, each, used in tasks:
        configure_torch(used, trains=task == "training")
        took = float(np.median(time_interleaved([timer], seconds=seconds)))
        yield Measurement(str(config.preset), task, sequences, each, used.dtype, took, sequences * each / took)


def random_prompt(vocab_size: int, length: int) -> list[int]:
    return torch.randint(vocab_size, (length,), generator=torch.Generator().manual_seed(0)).tolist()


def prefill_timer(model: Any, prompt: Sequence[int], hardware: Hardware) -> Timer:
    """Time the prefill of a prompt by a decoder, including the logits of the next token."""
    return lambda: time_work(lambda: DecodeSession(plan_engines(model)).add([prompt]), hardware)


def decode_timer(model: Any, prompt: Sequence[int], hardware: Hardware, *, rows: int, tokens: int) -> Timer:
    """Time the generation of `tokens` tokens in each of `rows` concurrent rows, after prefill and the first token."""

    def work() -> float:
        greedy = Sampler(greedy=True)
        samples = [Sample(prompt, greedy, greedy.rng(number), 1 + tokens) for number in range(rows)]
        events = decode(DecodeSession(plan_engines(model)), samples, batch_size=rows)
        for _ in range(rows):
            next(events)
        return time_work(lambda: list(events), hardware)

    return work


MIN_PARAMETERS, _MIN_TRAINING_SECONDS = 1_000_000, 60.0
"""Of a run whose dtype is chosen without being asked: smaller models decode as fast in float32, and training that
takes seconds should not be followed by measurements that take as long.
"""
_MAX_BITS_PER_BYTE_RATIO = 1.001
"""The most bits/byte of another dtype, relative to float32."""
_MAX_MAIN_TIME, _MAX_OTHER_TIME = 0.9, 1.05
"""The greatest time, relative to float32, of the most common workload, and of all others."""
_THOROUGH, _BRIEF = 2.5, 0.25
"""Seconds per workload and dtype, about."""
_WINDOWS, _WINDOW = 8, 256
"""Number and tokens of the windows of stories that are scored."""


class DtypeMeasurement(NamedTuple):
    """Measurements of one dtype, relative to float32.

    Attributes:
        dtype: as a value of the setting `dtype`.
        time_ratios: time relative to float32 to generate each number of texts of `CONCURRENCY`.
        bits_per_byte_ratio: bits/byte relative to float32.
    """

    dtype: str
    time_ratios: Sequence[float]
    bits_per_byte_ratio: float

    def __str__(self) -> str:
        speed, change = 1 / self.time_ratios[0], self.bits_per_byte_ratio - 1
        return f"{self.dtype}: {speed:.2f} times as fast as float32, {change:+.3%} bits/byte"


def select_fastest_dtype(figures: Sequence[DtypeMeasurement]) -> str:
    """Return the dtype that generates one text fastest, is not slower for many, and costs no quality."""
    limits = _MAX_MAIN_TIME, _MAX_OTHER_TIME, _MAX_BITS_PER_BYTE_RATIO
    fit = [(one, dtype) for dtype, (one, many), bits in figures if all(map(le, (one, many, bits), limits))]
    return min(fit, default=(1.0, "float32"))[1]


def compare_dtypes(path: Path, config: HardwareConfig, *, seconds: float = _THOROUGH) -> list[DtypeMeasurement]:
    """Measure a run that continues texts in each dtype that this machine supports, relative to float32.

    Bits/byte are measured on stories of this package.

    Args:
        config: device and threads.
        seconds: per workload and dtype, about.

    Raises:
        InputError: the run is damaged, or its tokenizer has no tokens for the stories.
        UsageError: it does not continue texts.
    """
    checkpoint, config = find_checkpoint(path), config.replace(dtype="auto")
    hardware = select_hardware(config)
    model = load_config(checkpoint).model
    if model.purpose != "continues texts":
        raise UsageError(f"{path}: this run {model.purpose}; name one that continues texts, or none")
    dtypes = [name for name in inference_dtypes(hardware.device) if name != "int8" or code_cache.is_complete()]
    loaded = [load_model(checkpoint, select_hardware(config, auto=name)) for name in dtypes]
    nats = _sum_story_nats(loaded)
    prompt = random_prompt(model.vocab_size, min(_WINDOW, max(1, model.context_length // 2)))
    tokens, ratios = min(_NEW_TOKENS, model.context_length - len(prompt) - 1), []
    for rows in CONCURRENCY:
        timers = [decode_timer(each.model, prompt, hardware, rows=rows, tokens=tokens) for each in loaded]
        times = time_interleaved(timers, seconds=seconds)  # (rounds, dtypes)
        ratios.append(np.median(times / times[:, :1], axis=0).tolist())
    measured = zip(dtypes, zip(*ratios, strict=True), nats, strict=True)
    return [DtypeMeasurement(name, times, total / nats[0]) for name, times, total in measured][1:]


def measure_and_record_dtype(run: Path, config: HardwareConfig) -> DtypeMeasurement | None:
    """Measure for a few seconds in which dtype a new run decodes fastest, and record it in its checkpoint.

    Returns:
        The measurement of the recorded dtype; None if it is float32, or if nothing was measured: on a GPU, without
        compiled code, for a small model, after short training, or in a folder that can't be written.
    """
    checkpoint, device = find_checkpoint(run), select_device(config)
    described = load_config(checkpoint)
    last = find_checkpoint(run, which="last")
    is_short = described.plan is not None and load_state(last).training_seconds < _MIN_TRAINING_SECONDS
    can_differ = device == "cpu" and code_cache.is_complete() and compiled_engine_supports(described.model)
    if is_short or not can_differ or count_parameters(checkpoint) < MIN_PARAMETERS:
        return None
    try:
        measurements = compare_dtypes(checkpoint, config, seconds=_BRIEF)
        chosen = select_fastest_dtype(measurements)
        save_fastest_dtype(checkpoint, device, chosen)
    except LMError:  # a translation model, for example
        return None
    return next((measured for measured in measurements if measured.dtype == chosen), None)


def _sum_story_nats(loaded: Sequence[LoadedModel]) -> list[float]:
    """Sum the surprisal of the same tokens by each model; bits/byte are proportional to it."""
    ids = np.array(loaded[0].tokenizer.encode(corpora.path("stories/heldout.txt").read_text()))
    width = min(_WINDOW, loaded[0].model.config.context_length) + 1
    windows = ids[: _WINDOWS * width].reshape(_WINDOWS, width)
    batch, models = Batch(windows[:, :-1], windows[:, 1:]), list[Any](each.model for each in loaded)
    return [sum(float(row.sum()) for row in score_batch(model, batch)) for model in models]

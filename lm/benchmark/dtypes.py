"""Finds the fastest dtype in which a run generates or translates without a loss of quality."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from torch import Tensor

import corpora
from lm.benchmark import generation
from lm.checkpoint import LoadedModel
from lm.config.hardware import HardwareConfig
from lm.config.run_config import RunConfig
from lm.data.batch import Batch
from lm.data.training_data import TrainingData
from lm.decoding.translation import Translator
from lm.decoding.translation_input import TranslationModel
from lm.engine.fastest_dtype import load_with_dtype, save_fastest_dtype
from lm.engine.selection import find_unsupported
from lm.errors import InputError, LMError, UsageError
from lm.evaluation.batch_scoring import score_batch
from lm.hardware import Hardware, inference_dtypes, select_device, select_inference_hardware, time_work
from lm.kernels import code_cache
from lm.model.transformer import DecoderOnly, EncoderOnly
from lm.run_folder import count_parameters, find_checkpoint, load_config, load_state
from lm.training.step_timing import Timer, time_interleaved
from lm.training.training_corpus import data_key, open_data

_MAX_BITS_PER_BYTE_RATIO = 1.001
"""The most bits/byte of another dtype, relative to float32."""
_MAX_MAIN_TIME, _MAX_OTHER_TIME = 0.9, 1.05
"""The greatest time, relative to float32, of the most common workload, and of all others."""
_MAX_LOAD_DELAY = 1.0
"""The most additional seconds to load the model."""
_PARTS = 6
"""The fraction of the seconds per workload in which a few calls must fit."""
_BATCH_ROWS, _SAMPLE_WINDOW = 16, 256
MIN_PARAMETERS, _MIN_TRAINING_SECONDS = 1_000_000, 60.0
"""Of a run whose dtype is chosen without being asked: smaller models decode as fast in float32, and training that
takes seconds should not be followed by measurements that take as long.
"""


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
        seconds: per workload and dtype, about.
        targets: at most, to compare bits/byte.
        scoring_seconds: of float32 at most, likewise.
        texts: numbers of concurrent texts; the first is the most common workload.
        lines: the same of lines to translate.
        prompt: tokens of the prompt at most; half of the context at most.
    """

    seconds: float
    targets: int
    scoring_seconds: float
    texts: Sequence[int]
    lines: Sequence[int]
    prompt: int


THOROUGH = Effort(2.5, 8192, 60.0, (1, 16, 64), (32, 1), 1 << 20)
BRIEF = Effort(0.25, 2048, 0.5, (1, 16), (32, 1), 64)
"""A few seconds, at the end of training and of importing."""


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


def compare_dtypes(path: Path, config: HardwareConfig, effort: Effort | None = None) -> list[DtypeMeasurement]:
    """Measure a run in each dtype that this machine supports, relative to float32.

    Bits/byte are measured on the validation split, or for an imported model on the stories of this package.

    Args:
        effort: how long to measure [default: `THOROUGH`].

    Raises:
        InputError: the run is damaged, or its validation split is not available.
        UsageError: it does not generate or translate.
    """
    effort = effort or THOROUGH
    checkpoint = find_checkpoint(path)
    run = load_config(checkpoint)
    if run.model.purpose not in ("continues texts", "translates"):
        raise UsageError(f"{path}: this run {run.model.purpose}; name one that continues texts or translates, or none")
    is_imported = run.plan is None and not run.model.translates
    data = None if is_imported else _open_training_data(path, run)
    loaded, delays = {}, []
    for dtype in _candidate_dtypes(select_device(config)):
        start = time.perf_counter()
        loaded[dtype] = load_with_dtype(checkpoint, config, dtype)
        delays.append(time.perf_counter() - start)
    batches = _sample_batches(loaded["float32"]) if data is None else data.validation()
    nats = _compare_nats([*loaded.values()], batches, effort)
    workloads = _workloads(loaded, data, select_inference_hardware(config), effort)
    ratios = {work: _median_ratios(sides, effort.seconds) for work, sides in workloads}
    return [
        DtypeMeasurement(
            dtype,
            {work: ratios_of_work[index] for work, ratios_of_work in ratios.items()},
            nats[index] / nats[0],
            delays[index] - delays[0],
        )
        for index, dtype in enumerate(loaded)
    ][1:]


def measure_and_record_dtype(run: Path, config: HardwareConfig) -> DtypeMeasurement | None:
    """Measure for a few seconds in which dtype a new run decodes fastest, and record it in its checkpoint.

    Returns:
        The measurement of the recorded dtype; None if it is float32, or if nothing was measured: on a GPU, without
        compiled code, for a small model, after short training, or in a folder that can't be written.
    """
    checkpoint, device = find_checkpoint(run), select_device(config)
    described = load_config(checkpoint)
    if described.plan is not None:
        last = load_state(find_checkpoint(run, which="last"))
        if last.training_seconds < _MIN_TRAINING_SECONDS:
            return None
    if count_parameters(checkpoint) < MIN_PARAMETERS:
        return None
    if device != "cpu" or not code_cache.is_complete() or find_unsupported(described.model):
        return None
    try:
        measurements = compare_dtypes(checkpoint, config, BRIEF)
        chosen = select_fastest_dtype(measurements)
        save_fastest_dtype(checkpoint, device, chosen)
    except LMError:  # no validation split, for example
        return None
    return next((measured for measured in measurements if measured.dtype == chosen), None)


def _candidate_dtypes(device: str) -> list[str]:
    """Float32, and what may be faster; int8 only with compiled matmuls."""
    return [
        dtype for dtype in inference_dtypes(device) if dtype != "int8" or (device == "cpu" and code_cache.is_complete())
    ]


def _open_training_data(path: Path, run: RunConfig) -> TrainingData:
    """Open the data of a run; InputError unless they are its training data with a validation split."""
    plan = run.plan
    if plan is None or not Path(plan.data).is_dir() or data_key(Path(plan.data)) != plan.data_key:
        raise InputError(f"{path}: the corpus of this run is not available")
    data = open_data(Path(plan.data), run)
    if not data.validation_bytes:
        raise InputError(f"{path}: this run has no validation split")
    return data


def _sample_batches(loaded: LoadedModel) -> Iterator[Batch]:
    """Yield windows of the stories that this package contains."""
    ids = np.array(loaded.tokenizer.encode(corpora.path("stories/heldout.txt").read_text()))
    length = min(_SAMPLE_WINDOW, loaded.model.config.context_length)
    for begin in range(0, len(ids) - length, length):
        window = ids[None, begin : begin + length + 1]
        yield Batch(window[:, :-1], window[:, 1:])


def _compare_nats(loaded: Sequence[LoadedModel], batches: Iterator[Batch], effort: Effort) -> list[float]:
    """Sum the surprisal of the same targets with each model; bits/byte is proportional to it.

    The first model limits the targets by its time, so that large models take no longer.
    """
    totals, targets, scoring_seconds = [0.0] * len(loaded), 0, 0.0
    for batch in batches:
        for part in batch.split(_BATCH_ROWS):
            for index, model in enumerate(loaded):
                assert not isinstance(model.model, EncoderOnly)
                start = time.perf_counter()
                totals[index] += sum(float(row.sum()) for row in score_batch(model.model, part))
                scoring_seconds += 0.0 if index else time.perf_counter() - start
            targets += part.n_targets
            if targets >= effort.targets or scoring_seconds >= effort.scoring_seconds:
                return totals
    return totals


def _median_ratios(sides: Sequence[Timer], seconds: float) -> list[float]:
    """The time of each side relative to the first, as the median over rounds."""
    rounds = time_interleaved(sides, seconds=seconds)
    return [statistics.median(times[side] / times[0] for times in rounds) for side in range(len(sides))]


def _workloads(
    loaded: Mapping[str, LoadedModel], data: TrainingData | None, hardware: Hardware, effort: Effort
) -> Iterator[tuple[str, list[Timer]]]:
    if data is not None and next(iter(loaded.values())).model.config.translates:
        for lines in effort.lines:
            sides = [_translation_timer(loaded_model, data, lines, hardware) for loaded_model in loaded.values()]
            yield "1 line" if lines == 1 else f"{lines} lines", sides
        return
    models = [loaded_model.model for loaded_model in loaded.values() if isinstance(loaded_model.model, DecoderOnly)]
    prompt = generation.random_prompt(models[0].config)[:, : effort.prompt]
    for rows in effort.texts:
        timers = _generation_timers(models, prompt, rows, hardware, effort.seconds)
        yield "1 text" if rows == 1 else f"{rows} texts", timers
    yield "a prompt", [generation.prefill_timer(model, prompt, hardware) for model in models]


def _generation_timers(
    models: Sequence[DecoderOnly], prompt: Tensor, rows: int, hardware: Hardware, seconds: float
) -> list[Timer]:
    """Timers of generation, of as many tokens as the first model has time for."""

    def decoding(model: DecoderOnly, tokens: int) -> Timer:
        return generation.decode_timer(model, prompt, hardware, rows=rows, tokens=tokens)

    max_tokens = max(1, models[0].config.context_length - prompt.shape[1] - 1)
    tokens = generation.choose_timed_tokens(
        partial(decoding, models[0]), max_tokens=max_tokens, seconds=seconds / _PARTS
    )
    return [decoding(model, tokens) for model in models]


def _translation_timer(loaded: LoadedModel, data: TrainingData, lines: int, hardware: Hardware) -> Timer:
    first, *others = data.references(lines)
    references = [first, *(reference for reference in others if reference.tag == first.tag)]
    to = None if first.tag is None else first.tag.language
    translator = Translator([TranslationModel.from_loaded(loaded)], to=to)
    sources = [reference.source for reference in references]
    heads = None if first.heads is None else [reference.heads or () for reference in references]
    return lambda: time_work(lambda: list(translator.translate(sources, dependency_heads=heads)), hardware)

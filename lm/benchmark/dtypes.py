"""Finds the fastest dtype in which a run generates or translates without a loss of quality."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from lm.benchmark import generation
from lm.checkpoint import LoadedModel
from lm.config.hardware import HardwareConfig
from lm.config.run import RunConfig
from lm.data.batch import Batch
from lm.data.training_data import TrainingData
from lm.decoding.translation import Translator
from lm.decoding.translation_input import TranslationModel
from lm.engine.fastest_dtype import load_with_dtype
from lm.errors import InputError, UsageError
from lm.evaluation.scoring import score_batch
from lm.hardware import Hardware, inference_dtypes, select_device, select_inference_hardware, time_work
from lm.kernels import code_cache
from lm.model.transformer import DecoderOnly, EncoderOnly
from lm.run_folder import find_checkpoint, load_config
from lm.training.corpus import data_key, open_data
from lm.training.step_timing import Timer, time_interleaved

_MAX_BITS_RATIO = 1.001
"""The most bits/byte of another dtype, relative to float32."""
_MAX_MAIN_TIME, _MAX_OTHER_TIME = 0.9, 1.05
"""The greatest time, relative to float32, of the most common workload, and of all others."""
_MAX_LOAD_DELAY = 1.0
"""The most additional seconds to load the model."""
_SECONDS, _PARTS = 2.5, 6
"""Seconds per workload and dtype, about; and the fraction of that in which a few calls must fit."""
_MAX_TARGETS, _BATCH_ROWS = 8192, 16
_CONCURRENT_TEXTS, _CONCURRENT_LINES = (1, 16, 64), (32, 1)
"""Numbers of concurrent texts or lines; the first is the most common workload."""


@dataclass(frozen=True)
class DtypeMeasurement:
    """Measurements of one dtype, relative to float32.

    Attributes:
        dtype: as a value of the setting `dtype`.
        time_ratios: time relative to float32 for each workload, the most common one first, by name.
        bits_ratio: bits/byte relative to float32.
        load_delay: additional seconds to load.
    """

    dtype: str
    time_ratios: Mapping[str, float]
    bits_ratio: float
    load_delay: float

    @property
    def is_acceptable(self) -> bool:
        """Whether it is clearly faster in the most common workload, slower in none, and of the same quality."""
        first, *others = self.time_ratios.values()
        is_faster = first <= _MAX_MAIN_TIME and all(ratio <= _MAX_OTHER_TIME for ratio in others)
        return is_faster and self.bits_ratio <= _MAX_BITS_RATIO and self.load_delay <= _MAX_LOAD_DELAY


def select_fastest_dtype(figures: Sequence[DtypeMeasurement]) -> str:
    """Select the fastest acceptable dtype; float32 if there is none."""
    fit = [each for each in figures if each.is_acceptable]
    return min(fit, key=lambda each: next(iter(each.time_ratios.values()))).dtype if fit else "float32"


def compare_dtypes(path: Path, config: HardwareConfig) -> list[DtypeMeasurement]:
    """Measure a run in each dtype that this machine supports, relative to float32.

    Args:
        path: the run, or one of its checkpoints.
        config: the hardware.

    Raises:
        InputError: the run is damaged, or its validation split is not available.
        UsageError: it does not generate or translate.
    """
    checkpoint = find_checkpoint(path)
    run = load_config(checkpoint)
    if run.model.purpose not in ("continues texts", "translates"):
        raise UsageError(f"{path}: this run {run.model.purpose}; name one that continues texts or translates, or none")
    data = _open_training_data(path, run)
    loaded, delays = {}, []
    for dtype in _candidate_dtypes(select_device(config)):
        began = time.perf_counter()
        loaded[dtype] = load_with_dtype(checkpoint, config, dtype)
        delays.append(time.perf_counter() - began)
    batches = list(_limit_targets(data.validation()))
    nats = [_total_nats(each, batches) for each in loaded.values()]
    ratios = {
        work: _median_ratios(sides) for work, sides in _workloads(loaded, data, select_inference_hardware(config))
    }
    return [
        DtypeMeasurement(
            dtype, {work: of[index] for work, of in ratios.items()}, nats[index] / nats[0], delays[index] - delays[0]
        )
        for index, dtype in enumerate(loaded)
    ][1:]


def _candidate_dtypes(device: str) -> list[str]:
    """Float32, and what may be faster; int8 only with compiled matmuls."""
    return [
        dtype
        for dtype in inference_dtypes(device)
        if dtype != "int8" or (device == "cpu" and code_cache.is_ready("int8"))
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


def _limit_targets(batches: Iterator[Batch]) -> Iterator[Batch]:
    targets = 0
    for batch in batches:
        for part in batch.split(_BATCH_ROWS):
            yield part
            targets += part.predicted
            if targets >= _MAX_TARGETS:
                return


def _total_nats(loaded: LoadedModel, batches: Sequence[Batch]) -> float:
    """The summed surprisal of the targets; bits/byte is proportional to it."""
    assert not isinstance(loaded.model, EncoderOnly)
    return sum(float(row.sum()) for batch in batches for row in score_batch(loaded.model, batch))


def _median_ratios(sides: Sequence[Timer]) -> list[float]:
    """The time of each side relative to the first, as the median over rounds."""
    rounds = time_interleaved(sides, seconds=_SECONDS)
    return [statistics.median(times[side] / times[0] for times in rounds) for side in range(len(sides))]


def _workloads(
    loaded: Mapping[str, LoadedModel], data: TrainingData, hardware: Hardware
) -> Iterator[tuple[str, list[Timer]]]:
    if next(iter(loaded.values())).model.config.translates:
        for lines in _CONCURRENT_LINES:
            sides = [_translation_timer(each, data, lines, hardware) for each in loaded.values()]
            yield "1 line" if lines == 1 else f"{lines} lines", sides
        return
    models = [each.model for each in loaded.values() if isinstance(each.model, DecoderOnly)]
    prompt = generation.random_prompt(models[0].config)
    for rows in _CONCURRENT_TEXTS:
        yield "1 text" if rows == 1 else f"{rows} texts", _generation_timers(models, prompt, rows, hardware)
    yield "a prompt", [generation.prefill_timer(model, prompt, hardware) for model in models]


def _generation_timers(models: Sequence[DecoderOnly], prompt: Tensor, rows: int, hardware: Hardware) -> list[Timer]:
    """Timers of generation, of as many tokens as the first model has time for."""

    def decoding(model: DecoderOnly, tokens: int) -> Timer:
        return generation.decode_timer(model, prompt, hardware, rows=rows, tokens=tokens)

    room = max(1, models[0].config.context_length - prompt.shape[1] - 1)
    tokens = generation.choose_timed_tokens(partial(decoding, models[0]), room=room, seconds=_SECONDS / _PARTS)
    return [decoding(model, tokens) for model in models]


def _translation_timer(loaded: LoadedModel, data: TrainingData, lines: int, hardware: Hardware) -> Timer:
    first, *others = data.references(lines)
    references = [first, *(each for each in others if each.tag == first.tag)]
    to = None if first.tag is None else first.tag.language
    translator = Translator([TranslationModel.from_loaded(loaded)], to=to)
    sources = [each.source for each in references]
    heads = None if first.heads is None else [each.heads or () for each in references]
    return lambda: time_work(lambda: list(translator.translate(sources, heads=heads)), hardware)

"""In which type a run generates or translates fastest, without predicting text worse: measured at that work."""

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
from lm.hardware import Hardware, found_device, inference_hardware, timed, usable_types
from lm.kernels import code_cache
from lm.model.transformer import DecoderOnly, EncoderOnly
from lm.run_folder import find_checkpoint, load_config
from lm.training.corpus import data_key, open_data
from lm.training.measuring import Timed, alternate

_MOST_BITS = 1.001
"""Times the bits a byte of float32 that another type may have."""
_WORTH_IT, _AS_LONG = 0.9, 1.05
"""The share of float32's time that the most usual work must take at most, and all other work."""
_MOST_DELAY = 1.0
"""Seconds that a model may take longer to load."""
_SECONDS, _PARTS = 2.5, 6
"""For each kind of work in each type, about; and how small a part of that is still to be timed several times."""
_TARGETS, _ROWS_AT_ONCE = 8192, 16
_TEXTS, _LINES = (1, 16, 64), (32, 1)
"""Generated or translated side by side; the first of them is the most usual work."""


@dataclass(frozen=True)
class DtypeMeasurement:
    """What was measured of one type, against float32.

    Attributes:
        dtype: as `--dtype` calls it.
        time_ratios: of float32's time for each kind of work, the most usual one first, by what it is called.
        bits_ratio: times float32's bits a byte.
        load_delay: seconds that it took longer to load.
    """

    dtype: str
    time_ratios: Mapping[str, float]
    bits_ratio: float
    load_delay: float

    @property
    def is_acceptable(self) -> bool:
        """Whether it is clearly faster at the most usual work, slower at none, and predicts text as well."""
        first, *others = self.time_ratios.values()
        is_faster = first <= _WORTH_IT and all(share <= _AS_LONG for share in others)
        return is_faster and self.bits_ratio <= _MOST_BITS and self.load_delay <= _MOST_DELAY


def select_fastest_dtype(figures: Sequence[DtypeMeasurement]) -> str:
    """Of the types that are fit the one that takes the least time; float32 if none is."""
    fit = [each for each in figures if each.is_acceptable]
    return min(fit, key=lambda each: next(iter(each.time_ratios.values()))).dtype if fit else "float32"


def compare_dtypes(path: Path, config: HardwareConfig) -> list[DtypeMeasurement]:
    """Measure a run in each type that this machine can use for it, beside float32.

    Args:
        path: the run, or one of its checkpoints.
        config: the hardware.

    Raises:
        InputError: the run is damaged, or has no validation split at hand.
        UsageError: it does not generate or translate.
    """
    checkpoint = find_checkpoint(path)
    run = load_config(checkpoint)
    if run.model.purpose not in ("continues texts", "translates"):
        raise UsageError(f"{path}: this run {run.model.purpose}; name one that continues texts or translates, or none")
    data = _open_training_data(path, run)
    loaded, delays = {}, []
    for dtype in _candidate_dtypes(found_device(config)):
        began = time.perf_counter()
        loaded[dtype] = load_with_dtype(checkpoint, config, dtype)
        delays.append(time.perf_counter() - began)
    batches = list(_limit_targets(data.validation()))
    nats = [_total_nats(each, batches) for each in loaded.values()]
    shares = {work: _median_ratios(sides) for work, sides in _workloads(loaded, data, inference_hardware(config))}
    return [
        DtypeMeasurement(
            dtype, {work: of[place] for work, of in shares.items()}, nats[place] / nats[0], delays[place] - delays[0]
        )
        for place, dtype in enumerate(loaded)
    ][1:]


def _candidate_dtypes(device: str) -> list[str]:
    """Float32, and what may be faster; 8 bits are where compiled code multiplies them."""
    return [dtype for dtype in usable_types(device) if dtype != "int8" or (device == "cpu" and code_cache.is_ready())]


def _open_training_data(path: Path, run: RunConfig) -> TrainingData:
    """The data of a run; InputError unless they are those that it was trained on, and part of them was held out."""
    plan = run.plan
    if plan is None or not Path(plan.data).is_dir() or data_key(Path(plan.data)) != plan.data_key:
        raise InputError(f"{path}: the corpus of this run is not at hand")
    data = open_data(Path(plan.data), run)
    if not data.validation_bytes:
        raise InputError(f"{path}: this run has no validation split")
    return data


def _limit_targets(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The first of some batches, in parts, that have a bounded number of targets."""
    targets = 0
    for batch in batches:
        for part in batch.split(_ROWS_AT_ONCE):
            yield part
            targets += part.predicted
            if targets >= _TARGETS:
                return


def _total_nats(loaded: LoadedModel, batches: Sequence[Batch]) -> float:
    """Summed surprisal of the targets of some batches; bytes, and so bits a byte, are in proportion."""
    assert not isinstance(loaded.model, EncoderOnly)
    return sum(float(row.sum()) for batch in batches for row in score_batch(loaded.model, batch))


def _median_ratios(sides: Sequence[Timed]) -> list[float]:
    """The share of the first side's time that each takes, as the median of rounds."""
    rounds = alternate(sides, seconds=_SECONDS)
    return [statistics.median(taken[place] / taken[0] for taken in rounds) for place in range(len(sides))]


def _workloads(
    loaded: Mapping[str, LoadedModel], data: TrainingData, hardware: Hardware
) -> Iterator[tuple[str, list[Timed]]]:
    """Each kind of work, done by each of the models."""
    if next(iter(loaded.values())).model.config.translates:
        for lines in _LINES:
            sides = [_translation_timer(each, data, lines, hardware) for each in loaded.values()]
            yield "1 line" if lines == 1 else f"{lines} lines", sides
        return
    models = [each.model for each in loaded.values() if isinstance(each.model, DecoderOnly)]
    prompt = generation.random_prompt(models[0].config)
    for rows in _TEXTS:
        yield "1 text" if rows == 1 else f"{rows} texts", _generation_timers(models, prompt, rows, hardware)
    yield "a prompt", [generation.prefill_timer(model, prompt, hardware) for model in models]


def _generation_timers(models: Sequence[DecoderOnly], prompt: Tensor, rows: int, hardware: Hardware) -> list[Timed]:
    """As many tokens by each model as the first has time for."""

    def decoding(model: DecoderOnly, tokens: int) -> Timed:
        return generation.decode_timer(model, prompt, hardware, rows=rows, tokens=tokens)

    room = max(1, models[0].config.context_length - prompt.shape[1] - 1)
    tokens = generation.choose_timed_tokens(partial(decoding, models[0]), room=room, seconds=_SECONDS / _PARTS)
    return [decoding(model, tokens) for model in models]


def _translation_timer(loaded: LoadedModel, data: TrainingData, lines: int, hardware: Hardware) -> Timed:
    """Translating the first lines of the validation split that are into one language."""
    first, *others = data.references(lines)
    references = [first, *(each for each in others if each.tag == first.tag)]
    to = None if first.tag is None else first.tag.language
    translator = Translator([TranslationModel.from_loaded(loaded)], to=to)
    sources = [each.source for each in references]
    heads = None if first.heads is None else [each.heads or () for each in references]
    return lambda: timed(lambda: list(translator.translate(sources, heads=heads)), hardware)

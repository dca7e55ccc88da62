"""Loads the translator of `lm translate`: one run or an ensemble, with beam search or sampling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from cli.options import Options
from lm.config.decoding import SamplingConfig, TranslationConfig
from lm.config.hardware import HardwareConfig, WorkersConfig
from lm.decoding.sampling import Sampler, parse_logit_biases
from lm.decoding.translation import TranslatedLine, Translator
from lm.decoding.translation_input import SourceLine, TranslationModel
from lm.engine.fastest_dtype import load_for_decoding
from lm.hardware import divide_threads
from lm.processes import ParallelMap, open_process_map


def load_translator(
    runs: Sequence[Path],
    options: Options,
    *,
    to: str | None,
    sample: bool,
    line_by_line: bool,
    parallel_map: ParallelMap[list[SourceLine], list[TranslatedLine]] | None = None,
) -> Translator:
    """Load a run, or an ensemble of runs, as one translator.

    With `line_by_line`, each line is translated as soon as it is read, unless the settings say how many to read ahead.
    """
    config = options.build(TranslationConfig, **({"read_ahead": 1} if line_by_line else {}))
    sampling = options.build(SamplingConfig)
    hardware = options.build(HardwareConfig)
    models = [TranslationModel.from_loaded(load_for_decoding(run, hardware)) for run in runs]
    biases = parse_logit_biases(sampling.logit_bias, models[0].tokenizer)
    sampler = Sampler.from_config(sampling if sample else sampling.replace(temperature=0.0), biases)
    return Translator(models, config, sampler=sampler, to=to, parallel_map=parallel_map)


@contextmanager
def open_translator(
    runs: Sequence[Path], options: Options, *, to: str | None, sample: bool, line_by_line: bool
) -> Iterator[Translator]:
    """Load a translator that uses as many processes as configured; see `load_translator`."""
    processes, hardware = options.build(WorkersConfig).processes, options.build(HardwareConfig)
    if processes == 1:
        yield load_translator(runs, options, to=to, sample=sample, line_by_line=line_by_line)
        return
    options = options.with_values("hardware", threads=divide_threads(hardware, processes).threads)
    if sample:
        options = options.with_values("sampling", seed=Sampler.from_config(options.build(SamplingConfig)).seed)
    prepare = partial(_load_batch_translator, tuple(runs), options, to=to, sample=sample)
    with open_process_map(prepare, processes) as parallel_map:
        yield load_translator(runs, options, to=to, sample=sample, line_by_line=line_by_line, parallel_map=parallel_map)


def _load_batch_translator(
    runs: Sequence[Path], options: Options, *, to: str | None, sample: bool
) -> Callable[[list[SourceLine]], list[TranslatedLine]]:
    """Load the function with which a worker process translates batches."""
    return load_translator(runs, options, to=to, sample=sample, line_by_line=False).translate_batch

"""The translator that `lm translate` was asked for: one run or several, searching or sampling."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from cli.flags.options import Given
from lm.checkpoint import load_model
from lm.config.decoding import SamplingConfig, TranslationConfig
from lm.config.hardware import HardwareConfig
from lm.decoding.logit_bias import read_biases
from lm.decoding.sampling import Sampler
from lm.decoding.translation import Translator
from lm.decoding.translation_input import TranslationModel
from lm.hardware import inference_hardware


def load_translator(runs: Sequence[Path], given: Given, *, to: str | None, sample: bool, at_once: bool) -> Translator:
    """Load runs that translate together.

    Args:
        runs: one, or several that decide together.
        given: the settings.
        to: the language, for models that translate into several.
        sample: draw translations instead of searching for the best.
        at_once: answer each line as soon as it is there, unless the settings say how many to read ahead.

    Raises:
        InputError: a run does not exist, or is damaged.
        UsageError: a run does not translate, or not into this language, or the runs do not fit together.
    """
    config = TranslationConfig(**({"read_ahead": 1} if at_once else {}) | given["translation"])
    sampling = SamplingConfig(**given["sampling"])
    if sampling.greedy and not sample:
        config = dataclasses.replace(config, beam=1)
    hardware = inference_hardware(HardwareConfig(**given["hardware"]))
    models = [TranslationModel.of(load_model(run, hardware)) for run in runs]
    biases = read_biases(sampling.logit_bias, models[0].tokenizer)
    sampler = Sampler.of(dataclasses.replace(sampling, greedy=not sample), biases)
    return Translator(models, config, sampler=sampler, to=to)

"""A run that is given a time: the size of model that the time is enough for."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

from cli.console.messages import fact
from cli.console.numbers import count, duration, many, quantity, size
from cli.training import clock
from cli.training.pairs import PairCorpus
from cli.training.text import TextCorpus
from lm.config.durations import seconds
from lm.config.presets import configure, is_portable, named_by_depth, portable
from lm.config.run import RunConfig
from lm.errors import UsageError
from lm.training import measuring as benchmark
from lm.training import sizing

_SECONDS, _SHARE_TO_MEASURE = 1.5, 0.01
_FEWEST_STEPS = 50
_PREPARING = 1e-6  # seconds for a byte of text, about
_MEASURED = {False: (4, 4096), True: (3, 2048)}  # depth and tokens of a step; for text, and for pairs


def sized(
    corpus: TextCorpus | PairCorpus, budget: str, config: RunConfig, *, processes: int = 1
) -> tuple[str, dict[str, dict[str, Any]]]:
    """Choose a preset for a corpus and a time on this machine, and describe the choice on stderr.

    Args:
        corpus: to learn from.
        budget: the time as the user put it, such as 10m.
        config: what is known of corpus, tokenizer and hardware.
        processes: that train the run together, each as fast as this one.

    Returns:
        The preset, and the settings that differ from it, by section.

    Raises:
        UsageError: the time is too short to begin with.
    """
    seconds_left(budget)
    of_pairs, corpus_bytes = corpus.holds_pairs, corpus.text_bytes(config)
    if not corpus.prepared:
        _refuse_to_prepare_all_the_time(corpus_bytes, budget)
    rate = processes * _measured_rate(config, budget, pairs=of_pairs)
    left, fitting = seconds_left(budget), sizing.fitting
    if of_pairs:
        fitting = partial(sizing.fitting_pairs, in_one_stack=config.model.decoder_only)
    found = fitting(left, rate=rate, text_bytes=corpus_bytes, kind=config.tokenizer.kind)
    enough = _described(found, corpus_bytes, config)
    fact("budget", f"{duration(left)} of {budget} left, at {quantity(rate, 'FLOP/s')}: enough for {enough}")
    settings = found.settings()
    if not of_pairs and not corpus.prepared:
        settings["data"] = {"validation": f"{sizing.held_out(found.tokens, text_bytes=corpus_bytes):.2g}"}
    return _named_like(config, found.depth, pairs=of_pairs), settings


def _named_like(config: RunConfig, depth: int, *, pairs: bool) -> str:
    """The preset of so many layers, portable if that of a config is."""
    name = named_by_depth(depth, pairs=pairs)
    return portable(name) if is_portable(config.preset) else name


def _described(found: sizing.Size, corpus_bytes: int, config: RunConfig) -> str:
    """What a time is enough for."""
    number = found.depth * (2 if config.model.decoder_only else 1)
    layers = ("1 layer" if number == 1 else f"{number} layers") + " on each side" * config.model.is_encoder_decoder
    of_what = "pairs" if config.model.translates else "text"
    return f"{layers} and about {count(found.tokens)} tokens of {size(corpus_bytes)} of {of_what}"


def _measured_rate(config: RunConfig, budget: str, *, pairs: bool) -> float:
    """The FLOP/s at which this machine trains a model like those that a budget chooses."""
    depth, tokens = _MEASURED[pairs]
    given: dict[str, dict[str, Any]] = {
        "training": {"batch_tokens": tokens},
        "model": {"decoder_only": config.model.decoder_only},
    }
    like = configure(_named_like(config, depth, pairs=pairs), given)
    return benchmark.rate(dataclasses.replace(like, hardware=config.hardware), seconds=seconds_to_measure(budget))


def seconds_to_measure(budget: str) -> float:
    """Seconds for which a step is timed under a budget."""
    return min(_SECONDS, _SHARE_TO_MEASURE * seconds(budget))


def seconds_left(budget: str) -> float:
    """Seconds of a budget from now on; UsageError if there are none."""
    left = seconds(budget) - clock.elapsed()
    if left <= 0:
        gone = duration(clock.elapsed())
        raise UsageError(f"{budget} is too short: {gone} went into getting ready; give several times that (--budget)")
    return left


def _refuse_to_prepare_all_the_time(text: int, budget: str) -> None:
    """Raise UsageError if preparing so many bytes of text would take all of a budget."""
    preparing = text * _PREPARING
    if clock.elapsed() + preparing >= seconds(budget):
        takes = f"preparing {size(text)} of text takes about {duration(preparing)}"
        raise UsageError(f"{budget} is too short: {takes}; give more (--budget), or use lm prepare first")


def warn_of_few_steps(steps: float, enough_for: str) -> None:
    """Warn on stderr if there are, or were, so few steps that little can be learned in them.

    Args:
        steps: how many.
        enough_for: the beginning of the sentence, down to "enough for".
    """
    if steps < _FEWEST_STEPS:
        number = max(1, round(steps))
        only = f"{many(number, 'step')} only"
        advice = "more time would teach more, or a smaller model or batch (--budget, --preset, --batch-size)"
        fact("warning", f"{enough_for} {only}: {advice}")

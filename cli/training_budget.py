"""A run that is given a time: the size of model that it is enough for, and how long a step takes here."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli import clock
from lm.config import DataConfig, HardwareConfig, RunConfig

if TYPE_CHECKING:
    from lm.data.tokenizer import Tokenizer

_SECONDS = 1.5
_EVALUATIONS = 10
_MEASURED_DEPTH, _MEASURED_TOKENS = 4, 4096


def sized(
    corpus: Sequence[str], budget: str, *, data: DataConfig, hardware: HardwareConfig
) -> tuple[str, dict[str, dict[str, Any]]]:
    """The preset for a text and a time on this machine, and what of it is different; said with its reasons."""
    from cli.display import count, duration, fact, quantity, size
    from lm.benchmark.training import pace
    from lm.durations import seconds
    from lm.model.cost import training_flops
    from lm.presets import resolve
    from lm.training.data import batch_rows
    from lm.training.sizing import fitting

    text = _text_bytes(corpus, data)
    like = resolve(f"depth-{_MEASURED_DEPTH}", {"training": {"batch_tokens": _MEASURED_TOKENS}})
    like = dataclasses.replace(like, hardware=hardware)
    rows, length = batch_rows(like), like.model.context_length
    rate = training_flops(like.model, rows=rows, length=length) / pace(like, seconds=_SECONDS)
    left = seconds(budget) - clock.elapsed()
    found = fitting(left, rate=rate, text_bytes=text)
    seen = f"{count(found.tokens)} tokens, {found.epochs:.1f} times the {size(text)} of text"
    fact("budget", f"{duration(left)} at {quantity(rate, 'FLOP/s')}: enough for {found.depth} layers, which see {seen}")
    return f"depth-{found.depth}", found.settings()


def _text_bytes(corpus: Sequence[str], data: DataConfig) -> int:
    from cli.text_corpus import is_prepared
    from lm.data import corpus as corpora
    from lm.data import documents, shards

    if is_prepared(corpus):
        return sum(split.bytes for split in shards.read_manifest(Path(corpus[0])).splits.values())
    sources = documents.resolve(corpus, field=data.field, supervised=data.supervised)
    size = documents.text_size(sources)
    return corpora.survey(sources, data).bytes if size is None else size


def paced(config: RunConfig, tokenizer: Tokenizer, *, evaluate_every: int | None) -> tuple[RunConfig, float]:
    """A config with some evaluations within its budget, unless it is said how often, and the seconds of a step."""
    from lm.benchmark.training import pace
    from lm.durations import seconds

    model = dataclasses.replace(config.model, vocab_size=tokenizer.vocab_size)
    measured = pace(dataclasses.replace(config, model=model), seconds=_SECONDS)
    if evaluate_every is None:
        evaluate_every = max(1, round(seconds(str(config.training.budget)) / measured / _EVALUATIONS))
    training = dataclasses.replace(config.training, evaluate_every=evaluate_every)
    return dataclasses.replace(config, training=training), measured

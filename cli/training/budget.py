"""A run that is given a time: the size of model that it is enough for, and how long a step takes here."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.training import clock
from cli.training.pairs import ParallelFiles
from cli.training.text import TextCorpus
from lm.config.durations import seconds
from lm.config.run import RunConfig
from lm.errors import UsageError

if TYPE_CHECKING:
    from cli.training.settings import Settings
    from lm.benchmark.training import Pace
    from lm.data.kind import TrainingData
    from lm.tokenizer.tokenizer import Tokenizer
    from lm.training.evaluation import Cost

_SECONDS, _SHARE_TO_MEASURE = 1.5, 0.01
_MOST_EVALUATIONS, _EVALUATIONS_WITH_BLEU = 10, 4
_FEWEST_SENTENCES = 100
_SAVED_A_SECOND = 1.5e8  # bytes of a checkpoint, its sums and the disk's own time included
_FEWEST_STEPS = 50
_PREPARING = 1e-6  # seconds for a byte of text, about
_MUCH_LESS = 0.8
_TOKENS_TO_LEARN_FROM = 1_000_000  # before it has seen so many, a model does not do what can be expected
_TARGETS_TO_LEARN_FROM = 200_000  # before it has seen so many tokens of them, a model does not translate
_MEASURED = {False: (4, 4096), True: (3, 2048)}  # depth and tokens of a step; of pairs or not


def sized(corpus: TextCorpus | ParallelFiles, budget: str, config: RunConfig) -> tuple[str, dict[str, dict[str, Any]]]:
    """The preset for a text, or for pairs, and a time on this machine, and what of it is different; said with reasons.

    Args:
        corpus: to learn from.
        budget: as the user put it.
        config: what is said about corpus, tokenizer and hardware.
    """
    from cli.console.messages import fact
    from cli.console.numbers import count, duration, quantity, size
    from lm.benchmark.training import rate
    from lm.config.presets import named_by_depth, resolve
    from lm.training import sizing

    _left(budget)
    pairs, text = corpus.holds_pairs, corpus.text_bytes(config)
    if not corpus.prepared:
        _refuse_to_prepare_all_the_time(text, budget)
    depth, tokens = _MEASURED[pairs]
    like = resolve(named_by_depth(depth, pairs=pairs), {"training": {"batch_tokens": tokens}})
    speed = rate(dataclasses.replace(like, hardware=config.hardware), seconds=_to_measure(budget))
    left, fitting = _left(budget), sizing.fitting_pairs if pairs else sizing.fitting
    found = fitting(left, rate=speed, text_bytes=text, kind=config.tokenizer.kind)
    layers = "1 layer" if found.depth == 1 else f"{found.depth} layers"
    enough, of_text = f"{layers} on each side" if pairs else layers, f"{size(text)} of {'pairs' if pairs else 'text'}"
    enough += f" and about {count(found.tokens)} tokens of {of_text}"
    fact("budget", f"{duration(left)} of {budget} left, at {quantity(speed, 'FLOP/s')}: enough for {enough}")
    settings = found.settings()
    if not pairs and not corpus.prepared:
        settings["data"] = {"validation": f"{sizing.held_out(found.tokens, text_bytes=text):.2g}"}
    return named_by_depth(found.depth, pairs=pairs), settings


def _left(budget: str) -> float:
    """Seconds of a budget from now; UsageError if there are none."""
    from cli.console.numbers import duration

    left = seconds(budget) - clock.elapsed()
    if left <= 0:
        gone = duration(clock.elapsed())
        raise UsageError(f"{budget} is too short: {gone} went into getting ready; give several times that (--budget)")
    return left


def _refuse_to_prepare_all_the_time(text: int, budget: str) -> None:
    """UsageError if all of a budget would go into preparing the text: said before it has."""
    from cli.console.numbers import duration, size

    preparing = text * _PREPARING
    if clock.elapsed() + preparing >= seconds(budget):
        takes = f"preparing {size(text)} of text takes about {duration(preparing)}"
        raise UsageError(f"{budget} is too short: {takes}; give more (--budget), or use lm prepare first")


def paced(
    config: RunConfig, settings: Settings, data: Path, tokenizer: Tokenizer, source_tokenizer: Tokenizer | None
) -> tuple[RunConfig, Pace, TrainingData]:
    """What only the data and a look at the clock tell, said with its reasons, and how fast the run goes.

    Evaluations are so far apart that there is time for them; where the budget chose the model, it is held back from
    learning the text by heart too. What the user said stays as it is.

    Returns:
        The config, the pace, and the data, open as this config wants them.
    """
    from lm.benchmark.training import pace
    from lm.data.pairs.store import is_pairs
    from lm.data.training_data import open_data

    opened = open_data(data, config)  # refuses a text that is too short before a step is timed
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=tokenizer.vocab_size))
    budget = str(config.training.budget)
    found = pace(config, data, opened, tokenizer, source_tokenizer, seconds=_to_measure(budget))
    steps = max(1.0, _left(budget) / found.step)
    if is_pairs(data):
        epochs = steps / opened.steps_per_epoch
        if settings.is_sized:
            config = _regularised_for_pairs(config, settings, tokenizer, epochs=epochs, steps=steps)
            opened = open_data(data, config)  # anew, since BPE dropout makes other batches
        _warn_of_few(epochs * opened.tokens, seconds=steps * found.step)
    elif settings.is_sized and not config.data.supervised:
        config, passes = _regularised(config, settings, tokenizer, data, steps=steps)
        steps, found = steps / passes, dataclasses.replace(found, step=found.step * passes)
    if settings.is_sized and steps < 10 * config.training.warmup_steps:
        config = _where_nothing_is_said(config, settings, {"training": {"warmup_steps": round(steps / 10)}})
    warn_of_few_steps(steps, f"{budget} is enough for about")
    chosen, pause = _evaluations(config, found.evaluation, steps=steps)
    config = _where_nothing_is_said(config, settings, {"training": chosen})
    return config, dataclasses.replace(found, pause=pause), opened


def _evaluations(config: RunConfig, cost: Cost, *, steps: float) -> tuple[dict[str, Any], float]:
    """How often there is time to evaluate and save, how many sentences to translate each time; and what each takes."""
    from cli.console.messages import fact
    from cli.console.numbers import duration
    from lm.optimization.optimizers import training_bytes
    from lm.training.budget import aside

    left = aside(seconds(str(config.training.budget))) - clock.elapsed()
    each = cost.loss + training_bytes(config.model, config.training) / _SAVED_A_SECOND
    chosen: dict[str, Any] = {}
    if cost.sentence:
        affordable = (left / _EVALUATIONS_WITH_BLEU - each) / cost.sentence
        sentences = min(config.training.bleu_sentences, max(_FEWEST_SENTENCES, round(affordable)))
        each, chosen = each + sentences * cost.sentence, {"bleu_sentences": sentences}
    if each > left:
        taken = f"evaluating and saving takes {duration(each)} of {config.training.budget} even once"
        fact("warning", f"{taken}: hold out less (--validation), or give more time")
    count = max(1, min(_MOST_EVALUATIONS, int(left / each)))
    # the last one but the end's is half as far from the end as from the one before
    chosen["evaluate_every"] = 0 if count == 1 else max(1, math.ceil(steps / (count - 0.5)))
    return chosen, each


def _to_measure(budget: str) -> float:
    """Seconds for which a step is timed."""
    return min(_SECONDS, _SHARE_TO_MEASURE * seconds(budget))


def warn_of_few_steps(steps: float, enough_for: str) -> None:
    """Say so if a time is enough for so few steps, or was, that little can be learned in them."""
    from cli.console.messages import fact

    if steps < _FEWEST_STEPS:
        number = max(1, round(steps))
        only = f"{number} step{'' if number == 1 else 's'} only"
        advice = "more time would teach more, or a smaller model or batch (--budget, --preset, --batch-size)"
        fact("warning", f"{enough_for} {only}: {advice}")


def _regularised_for_pairs(
    config: RunConfig, settings: Settings, tokenizer: Tokenizer, *, epochs: float, steps: float
) -> RunConfig:
    """With what suits pairs that are seen as often, and steps that are as many, as there is time for."""
    from cli.console.messages import fact
    from lm.training.regularisation import regularisation_of_pairs

    found = regularisation_of_pairs(epochs, steps=steps, may_drop_merges=tokenizer.merge_rules is not None)
    config = _where_nothing_is_said(config, settings, found)
    dropped = f"dropout {config.model.dropout}, BPE dropout {config.parallel.bpe_dropout}"
    fact("", f"{epochs:.1f} epochs in {steps:,.0f} steps, so {dropped}")
    return config


def _warn_of_few(targets: float, *, seconds: float) -> None:
    """Say so if the tokens of targets that there are so many seconds of training for are too few to learn from."""
    from cli.console.messages import fact
    from cli.console.numbers import count, duration

    if targets < _TARGETS_TO_LEARN_FROM:
        enough = clock.elapsed() + seconds * _TARGETS_TO_LEARN_FROM / targets
        too_few = f"{count(targets)} tokens of targets teach hardly any translation"
        fact("warning", f"{too_few}: {duration(enough)} or more would be enough to begin with (--budget)")


def _regularised(
    config: RunConfig, settings: Settings, tokenizer: Tokenizer, data: Path, *, steps: float
) -> tuple[RunConfig, int]:
    """With what suits a text that is seen as often as there is time for, and how often a batch goes through then."""
    from cli.console.messages import fact
    from lm.data.batch import batch_rows
    from lm.data.shards import open_split
    from lm.evaluation.ngrams import bits_per_byte
    from lm.model.cost import parameters_by_part
    from lm.training.regularisation import expected_bits, novelty, regularisation_of_text

    train, held_out = open_split(data, "train"), open_split(data, "validation")
    is_told = tokenizer.kind == "bpe" and len(held_out)  # a few characters are too short to tell anything
    counted = bits_per_byte(train, held_out, vocab_size=tokenizer.vocab_size) if is_told else []
    seen = steps * batch_rows(config) * config.model.context_length
    epochs = seen / max(1, len(train))
    share = novelty(counted) if len(counted) > 1 else 1.0
    repeats_patterns = share < _MUCH_LESS
    passes_differ, is_open = settings.said["model"].get("dropout") != 0, "r_drop" not in settings.said["training"]
    found = regularisation_of_text(
        share * epochs,
        parameters_a_token=sum(parameters_by_part(config.model).values()) / max(1, len(train)),
        steps=steps,
        learning_rate=config.training.learning_rate,
        may_repeat=is_open and passes_differ and not repeats_patterns,
    )
    config = _where_nothing_is_said(config, settings, found.settings())
    said = f"{epochs:.1f} epochs"
    if repeats_patterns and epochs >= 1:
        said += f" (as good as {share * epochs:.1f}: the text repeats its patterns)"
    r_drop = f"R-Drop {found.r_drop} (each batch goes through twice), " if found.r_drop else ""
    fact("", f"{said}, so {r_drop}dropout {config.model.dropout}, weight decay {config.training.weight_decay}")
    if len(counted) > 1:
        measure = "about" if seen >= _TOKENS_TO_LEARN_FROM else "more than"
        expected = f"{measure} {expected_bits(counted):.2g} bits a byte of held-out text"
        fact("", f"expect {expected}, where counting n-grams gets {min(counted):.2g}")
    return config, found.passes


def _where_nothing_is_said(config: RunConfig, settings: Settings, chosen: Mapping[str, Mapping[str, Any]]) -> RunConfig:
    """With fields chosen, by section, save those that the user set."""
    changed = {}
    for section, fields in chosen.items():
        left_open = {name: value for name, value in fields.items() if name not in settings.said[section]}
        changed[section] = dataclasses.replace(getattr(config, section), **left_open)
    return dataclasses.replace(config, **changed)

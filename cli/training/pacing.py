"""A run that is given a time: how fast its steps are, and the settings that follow from how many there will be."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, NamedTuple

from cli.console.messages import fact
from cli.console.numbers import count, duration
from cli.training import clock
from cli.training.budget import seconds_left, seconds_to_measure, warn_of_few_steps
from cli.training.settings import Settings
from lm.config.durations import seconds
from lm.config.run import RunConfig
from lm.corpus.shards import open_split
from lm.data.batch import batch_rows
from lm.data.kinds import open_data
from lm.data.training_data import TrainingData
from lm.evaluation.ngram_models import bits_per_byte
from lm.model.cost import parameters_by_part
from lm.optimization.optimizers import training_bytes
from lm.tokenizer.tokenizer import Tokenizer
from lm.training.budget import Cost, Pace, aside
from lm.training.corpus import TrainingCorpus
from lm.training.measuring import pace
from lm.training.regularisation import expected_bits, novelty, regularisation_of_pairs, regularisation_of_text
from lm.training.resolve import fit_to_corpus

_MOST_EVALUATIONS, _EVALUATIONS_WITH_BLEU = 10, 4
_FEWEST_SENTENCES = 100
_SAVED_A_SECOND = 1.5e8  # bytes of a checkpoint, its sums and the disk's own time included
_MUCH_LESS = 0.8
_TOKENS_TO_LEARN_FROM = 1_000_000  # before it has seen so many, a model does not do what can be expected
_TARGETS_TO_LEARN_FROM = 200_000  # before it has seen so many tokens of them, a model does not translate


class Paced(NamedTuple):
    """A run that is about to start under a budget.

    Attributes:
        config: with what the number of steps tells.
        pace: how long a step, and an evaluation with its checkpoint, take.
        data: open as the config wants them.
    """

    config: RunConfig
    pace: Pace
    data: TrainingData


def paced(config: RunConfig, settings: Settings, corpus: TrainingCorpus, *, processes: int = 1) -> Paced:
    """Time steps on this machine, and choose what depends on how many there will be; described on stderr.

    Evaluations are so far apart that there is time for them. Where the budget chose the model, regularisation follows
    from how often the data will be seen. Fields that the user has set stay as they are. Of several processes, which
    share each step and each evaluation, one is timed with all of it.

    Raises:
        InputError: the data are too short.
        UsageError: there is no time left.
    """
    data, tokenizer = corpus.folder, corpus.tokenizer
    config = fit_to_corpus(config, corpus)
    opened = open_data(data, config)  # refuses a text that is too short before a step is timed
    budget = str(config.training.budget)
    found = pace(config, corpus, opened, seconds=seconds_to_measure(budget)).shared_by(processes)
    steps = max(1.0, seconds_left(budget) / found.step)
    if opened.holds_pairs:
        epochs = steps / opened.steps_per_epoch
        if settings.is_sized:
            config = _regularised_for_pairs(config, settings, corpus, epochs=epochs, steps=steps)
            opened = open_data(data, config)  # anew, since BPE dropout makes other batches
        _warn_of_few_targets(epochs * opened.tokens, seconds=steps * found.step)
    elif settings.is_sized and not config.data.supervised and not config.model.is_masked:
        config, passes = _regularised_for_text(config, settings, tokenizer, data, steps=steps)
        steps, found = steps / passes, dataclasses.replace(found, step=found.step * passes)
    if settings.is_sized and steps < 10 * config.training.warmup_steps:
        config = settings.where_open(config, {"training": {"warmup_steps": round(steps / 10)}})
    warn_of_few_steps(steps, f"{budget} is enough for about")
    chosen, pause = _evaluations(config, found.evaluation, steps=steps)
    return Paced(settings.where_open(config, {"training": chosen}), dataclasses.replace(found, pause=pause), opened)


def _evaluations(config: RunConfig, cost: Cost, *, steps: float) -> tuple[dict[str, Any], float]:
    """How often to evaluate and save, how many sentences to translate each time, and the seconds that each takes."""
    left = aside(seconds(str(config.training.budget))) - clock.elapsed()
    each = cost.loss + training_bytes(config.model, config.training, config.lora) / _SAVED_A_SECOND
    chosen: dict[str, Any] = {}
    if cost.sentence:
        affordable = (left / _EVALUATIONS_WITH_BLEU - each) / cost.sentence
        sentences = min(config.training.bleu_sentences, max(_FEWEST_SENTENCES, round(affordable)))
        each, chosen = each + sentences * cost.sentence, {"bleu_sentences": sentences}
    if each > left:
        taken = f"evaluating and saving takes {duration(each)} of {config.training.budget} even once"
        fact("warning", f"{taken}: hold out less (--validation), or give more time")
    number = max(1, min(_MOST_EVALUATIONS, int(left / each)))
    # the last one but the end's is half as far from the end as from the one before
    chosen["evaluate_every"] = 0 if number == 1 else max(1, math.ceil(steps / (number - 0.5)))
    return chosen, each


def _regularised_for_pairs(
    config: RunConfig, settings: Settings, corpus: TrainingCorpus, *, epochs: float, steps: float
) -> RunConfig:
    """The config with the regularisation for pairs that are seen so often, and for so many steps."""
    found = regularisation_of_pairs(epochs, steps=steps, may_drop_merges=corpus.has_merges)
    config = settings.where_open(config, found)
    dropped = f"dropout {config.model.dropout}, BPE dropout {config.parallel.bpe_dropout}"
    fact("", f"{epochs:.1f} epochs in {steps:,.0f} steps, so {dropped}")
    return config


def _warn_of_few_targets(targets: float, *, seconds: float) -> None:
    """Warn if training has time for too few tokens of targets to learn from.

    Args:
        targets: tokens of targets that will be seen.
        seconds: that training takes.
    """
    if targets < _TARGETS_TO_LEARN_FROM:
        enough = clock.elapsed() + seconds * _TARGETS_TO_LEARN_FROM / targets
        too_few = f"{count(targets)} tokens of targets teach hardly any translation"
        fact("warning", f"{too_few}: {duration(enough)} or more would be enough to begin with (--budget)")


def _regularised_for_text(
    config: RunConfig, settings: Settings, tokenizer: Tokenizer, data: Path, *, steps: float
) -> tuple[RunConfig, int]:
    """The config with the regularisation for a text, and how often each batch goes through the model then.

    A text is seen as often as `steps` take; where it repeats its patterns, each epoch counts for less.
    """
    train, held_out = open_split(data, "train"), open_split(data, "validation")
    is_told = tokenizer.kind == "bpe" and len(held_out)  # a few characters are too short to tell anything
    counted = bits_per_byte(train, held_out, vocab_size=tokenizer.vocab_size) if is_told else []
    seen = steps * batch_rows(config) * config.model.context_length
    epochs = seen / max(1, len(train))
    share = novelty(counted) if len(counted) > 1 else 1.0
    passes_differ, is_open = settings.fixed["model"].get("dropout") != 0, "r_drop" not in settings.fixed["training"]
    found = regularisation_of_text(
        share * epochs,
        parameters_a_token=sum(parameters_by_part(config.model).values()) / max(1, len(train)),
        steps=steps,
        learning_rate=config.training.learning_rate,
        may_repeat=is_open and passes_differ and share >= _MUCH_LESS,
    )
    config = settings.where_open(config, found.settings())
    _describe_regularisation(config, epochs, share, r_drop=found.r_drop)
    if len(counted) > 1:
        measure = "about" if seen >= _TOKENS_TO_LEARN_FROM else "more than"
        expected = f"{measure} {expected_bits(counted):.2g} bits a byte of held-out text"
        fact("", f"expect {expected}, where counting n-grams gets {min(counted):.2g}")
    return config, found.passes


def _describe_regularisation(config: RunConfig, epochs: float, share: float, *, r_drop: float) -> None:
    """What was chosen for a text, and why.

    Args:
        config: with what was chosen.
        epochs: how often the text will be seen.
        share: what an epoch counts for, where the text repeats its patterns.
        r_drop: the weight of R-Drop, or 0.
    """
    seen = f"{epochs:.1f} epochs"
    if share < _MUCH_LESS and epochs >= 1:
        seen += f" (as good as {share * epochs:.1f}: the text repeats its patterns)"
    twice = f"R-Drop {r_drop} (each batch goes through twice), " if r_drop else ""
    fact("", f"{seen}, so {twice}dropout {config.model.dropout}, weight decay {config.training.weight_decay}")

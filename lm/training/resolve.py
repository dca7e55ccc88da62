"""Choose everything about a run that its specification leaves open, and say what chose each value.

The stages follow one another, each a pure function of what the stages before it chose and of what has been measured
since, so that a better rule for one value is a change of one stage:

1. `from_spec`: the specification over the preset, or over the model of the run that is fine-tuned.
2. `size_for_budget`, under a budget or where no length is given: that length as a time, depth, vocabulary and batch,
   from the bytes of the corpus and the training speed of this machine.
3. `fit_to_corpus`: vocabulary sizes and labels, from the prepared corpus.
4. `fit_to_speed`, only under a budget: evaluations, and regularisation unless a published preset states it, from the
   time of a step and the statistics of the data.
5. `plan`: steps, arithmetic and memory, from the hardware.

A value that the person gave is never changed by a later stage.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from lm.config.model import ModelConfig
from lm.config.options import list_options
from lm.config.presets import (
    DEFAULT_PRESET,
    DEFAULT_TRANSLATION_PRESET,
    build_run_config,
    depth_preset_name,
    find_preset,
    has_training_recipe,
    is_portable_name,
    overlay,
    portable_name,
    preset_depth,
)
from lm.config.run import SECTIONS, RunConfig, RunPlan
from lm.config.run_spec import RunSpec, Settings
from lm.config.training import LENGTHS, TrainingConfig, parse_duration
from lm.data.batch import batch_rows
from lm.data.training_data import TrainingData
from lm.errors import UsageError
from lm.hardware import Hardware
from lm.model.cost import parameters_by_part
from lm.optim.optimizers import training_bytes
from lm.optim.schedules import steps_for_batches
from lm.training import sizing
from lm.training.budget import EvaluationCost, TrainingSpeed, evaluation_reserve
from lm.training.corpus import TrainingCorpus
from lm.training.regularisation import (
    Regularisation,
    choose_pair_regularisation,
    choose_text_regularisation,
    compute_novelty,
)

_MOST_STEPS = 1 << 53
"""Steps that a float64 can still count one by one."""
_PROBES = {False: (4, 4096), True: (3, 2048)}
"""Depth and tokens of a step of the model whose speed is measured for a budget; for text, and for pairs."""
_MOST_EVALUATIONS, _EVALUATIONS_WITH_BLEU = 20, 4
_EVALUATIONS_TO_STOP, _DECAY_PATIENCE, _PATIENCE = 8, 3, 2
_FEWEST_SENTENCES = 100
_SAVED_A_SECOND = 1.5e8  # bytes of a checkpoint, its checksums and the disk's own time included
NOVEL = 0.8
"""Novelty (`compute_novelty`) from which a text repeats its patterns too little for that to count."""


@dataclass(frozen=True)
class Resolution:
    """The settings of a run as far as they are chosen.

    Attributes:
        config: the settings; those that are still open have the preset's or default value.
        fixed: what the person, or the run that is fine-tuned, has set, by section.
        is_regularised: whether regularisation is chosen by how often a budget lets the model see the data.
        reasons: what chose each value, by its name, as in "training.steps".
    """

    config: RunConfig
    fixed: Settings
    is_regularised: bool = False
    reasons: Mapping[str, str] = field(default_factory=dict)

    def choose(self, reason: str, values: Mapping[str, Mapping[str, Any]]) -> Resolution:
        """The resolution with values chosen, by section, except for those that are fixed."""
        config, reasons = self.config, dict(self.reasons)
        for section, fields in values.items():
            left_open = {name: value for name, value in fields.items() if name not in self.fixed[section]}
            config = dataclasses.replace(config, **{section: getattr(config, section).replace(**left_open)})
            reasons |= {f"{section}.{name}": reason for name in left_open}
        return dataclasses.replace(self, config=config, reasons=reasons)

    def settle(self, reason: str, config: RunConfig) -> Resolution:
        """The resolution with another config; what differs is chosen for a reason."""
        differing = {
            f"{section}.{described.name}"
            for section, kind in SECTIONS.items()
            for described in list_options(kind)
            if getattr(getattr(config, section), described.name)
            != getattr(getattr(self.config, section), described.name)
        }
        return dataclasses.replace(self, config=config, reasons={**self.reasons, **dict.fromkeys(differing, reason)})


@dataclass(frozen=True)
class Outlook:
    """What a budget comes to, as measured before the first step.

    Attributes:
        steps: that there is time for.
        step_seconds: seconds of a step.
        epochs: passes over the data.
        is_regularised: whether regularisation was chosen from that.
        novelty: what an epoch counts for where a text repeats its patterns, as a fraction.
        ngram_bits: bits/byte of n-gram baselines of growing order on the held-out text; empty where not measured.
        tokens: that will be seen; of pairs, targets.
        r_drop: weight of R-Drop that was chosen, for which each batch goes through the model twice.
        evaluation_seconds: seconds to evaluate and save.
        evaluation_limit: seconds that all evaluations may take.
    """

    steps: float
    step_seconds: float
    epochs: float
    is_regularised: bool
    compute_novelty: float
    ngram_bits: tuple[float, ...]
    tokens: float
    r_drop: float
    evaluation_seconds: float
    evaluation_limit: float


def from_spec(spec: RunSpec, *, base: ModelConfig | None = None) -> Resolution:
    """Stage 1: the preset, or the model that is fine-tuned, with the settings of the specification.

    Args:
        spec: of a new run.
        base: the model of `spec.from_run`.

    Raises:
        UsageError: there is no such preset, or settings contradict each other.
    """
    fixed = {section: dict(values) for section, values in spec.settings.items()}
    if base is not None:
        fixed["model"] = {**base.settings(), **fixed["model"]}
    name = spec.preset or (DEFAULT_TRANSLATION_PRESET if spec.data.are_pairs else DEFAULT_PRESET)
    if spec.portable and base is None:
        name = portable_name(name)
    config = build_run_config(name, fixed)
    named = "default" if spec.preset is None else spec.sources.get("preset", "given")
    from_base = {f"model.{field}": "from_run" for field in fixed["model"]} if base is not None else {}
    is_regularised = base is None and config.training.budget is not None and not has_training_recipe(name)
    reasons = {**_of_preset(config), "preset": named, **from_base, **spec.sources}
    return Resolution(config, fixed, is_regularised, reasons)


def needs_time(spec: RunSpec) -> bool:
    """Whether the time to train is chosen: for a new model of a text, where nothing else says how long."""
    training, data = spec.settings["training"], spec.settings["data"]
    is_said = any(training.get(name) is not None for name in LENGTHS) or bool(
        spec.preset and has_training_recipe(spec.preset)
    )
    suits_a_time = training.get("schedule", "wsd") == "wsd" and training.get("decay_fraction", 0) < 1
    is_new = spec.from_run is None and not spec.data.are_pairs and not data.get("supervised")
    return is_new and suits_a_time and not is_said


def needs_size(spec: RunSpec) -> bool:
    """Whether the size of the model follows from corpus and time, since nothing, or only a depth, says it."""
    has_time = spec.settings["training"].get("budget") is not None or needs_time(spec)
    is_open = spec.preset is None or preset_depth(spec.preset) is not None
    return has_time and is_open and spec.from_run is None


def are_merges_open(spec: RunSpec, config: RunConfig) -> bool:
    """Whether nothing says what BPE merges, for a new model of a text whose size is chosen too.

    Other tools have no BPE within characters, so that portable models keep that of words.
    """
    is_text = not (spec.data.are_pairs or config.data.supervised or config.model.is_masked)
    is_open = spec.tokenizer is None and not {"kind", "vocab_size", "merges"} & spec.settings["tokenizer"].keys()
    return needs_size(spec) and is_text and is_open and not is_portable_name(config.preset)


def choose_time(resolution: Resolution, *, rate: float, text_bytes: int) -> Resolution:
    """Stage 2, first half: the time to train, where nothing says how long; arguments are those of `size_for_budget`."""
    config, is_open = resolution.config, resolution.reasons["preset"] == "default"
    seconds = sizing.default_seconds(
        rate=rate,
        text_bytes=text_bytes,
        kind=config.tokenizer.kind,
        parameters=None if is_open else sum(parameters_by_part(config.model).values()),
    )
    lengths = {**dict.fromkeys(LENGTHS), "budget": _written(seconds), "schedule": "wsd"}
    chosen = resolution.choose("size of the corpus", {"training": lengths})
    return dataclasses.replace(chosen, is_regularised=True)


def _written(seconds: int) -> str:
    """Seconds as a budget is written, as in 90s or 5m."""
    return f"{seconds}s" if seconds % 60 else f"{seconds // 60}m"


def _of_preset(config: RunConfig) -> dict[str, str]:
    """What chose each value of a preset: the preset, the default of the option, or a setting that it follows from."""
    row, reasons = find_preset(str(config.preset)), {}
    for section, kind in SECTIONS.items():
        values = getattr(row, section, {})
        for described in list_options(kind):
            value = getattr(getattr(config, section), described.name)
            by = "preset" if described.name in values and values[described.name] == value else "default"
            follows = by == "default" and value != described.default
            reasons[f"{section}.{described.name}"] = "other settings" if follows else by
    return reasons


def probe(resolution: Resolution, *, pairs: bool) -> RunConfig:
    """The settings of the small model whose training speed tells how large a model a budget is enough for."""
    config, (depth, tokens) = resolution.config, _PROBES[pairs]
    like = build_run_config(
        _named_like(config, depth, pairs=pairs),
        {"training": {"batch_tokens": tokens}, "model": {"decoder_only": config.model.decoder_only}},
    )
    return dataclasses.replace(like, hardware=config.hardware)


def _named_like(config: RunConfig, depth: int, *, pairs: bool) -> str:
    """The preset of so many layers, portable if that of a config is."""
    name = depth_preset_name(depth, pairs=pairs)
    return portable_name(name) if is_portable_name(config.preset) else name


def size_for_budget(
    resolution: Resolution, *, seconds: float, rate: float, text_bytes: int, pairs: bool, is_prepared: bool = False
) -> Resolution:
    """Stage 2: the largest model that sees enough tokens in a time on this machine.

    Args:
        resolution: of stage 1.
        seconds: of the budget that are left.
        rate: FLOP/s of training, as measured with `probe`, of all processes.
        text_bytes: of the corpus.
        pairs: whether it is of sentence pairs.
        is_prepared: whether the corpus is prepared already, so that nothing can be held out otherwise.
    """
    fitting, given, before = sizing.fitting, resolution.fixed, resolution.config
    if pairs:
        fitting = partial(sizing.fitting_pairs, in_one_stack=before.model.decoder_only)
    depth = None if resolution.reasons["preset"] == "default" else preset_depth(before.preset)
    found = fitting(seconds, rate=rate, text_bytes=text_bytes, kind=before.tokenizer.kind, depth=depth)
    chosen = found.settings()
    if "budget" not in given["training"]:
        chosen["training"]["budget"] = before.training.budget
    if not pairs and not is_prepared:
        chosen["data"] = {"validation": f"{sizing.held_out(found.tokens, text_bytes=text_bytes):.2g}"}
    name = _named_like(before, found.depth, pairs=pairs)
    config = build_run_config(name, {section: overlay(chosen.get(section, {}), given[section]) for section in SECTIONS})
    by_budget = {f"{section}.{name}": "budget" for section, values in chosen.items() for name in values}
    given_by = {name: by for name, by in resolution.reasons.items() if _is_fixed(name, given)}
    reasons = {**_of_preset(config), **by_budget, **given_by}
    reasons["preset"] = "budget" if depth is None else resolution.reasons["preset"]
    if "budget" not in given["training"]:
        reasons["training.budget"] = resolution.reasons["training.budget"]
    return Resolution(config, given, is_regularised=True, reasons=reasons)


def _is_fixed(name: str, fixed: Settings) -> bool:
    section, _, field = name.partition(".")
    return field in fixed.get(section, {})


def fit_to_corpus(config: RunConfig, corpus: TrainingCorpus) -> RunConfig:
    """Stage 3: an embedding for each token and, of a classifier, an output for each label, or a decoder's completions.

    Sources whose tokens are those of the targets, cut otherwise, use the same embedding. Without merges there is no BPE
    dropout, which presets and budgets choose before the tokenizers are known.
    """
    source = corpus.source_tokenizer
    source_size = None if source is None or source.has_same_ids(corpus.tokenizer) else source.vocab_size
    model = config.model.replace(
        vocab_size=corpus.vocab_size,
        source_vocab_size=source_size,
        labels=corpus.labels if config.model.is_masked and config.data.supervised else (),
    )
    has_completions = config.data.supervised and not config.model.is_masked
    completions = corpus.label_completions if has_completions else ()
    parallel = config.parallel
    if parallel.bpe_dropout and not corpus.has_merges:
        parallel = dataclasses.replace(parallel, bpe_dropout=0.0)
    return dataclasses.replace(config, model=model, parallel=parallel, label_completions=completions)


def fit_to_speed(
    resolution: Resolution,
    speed: TrainingSpeed,
    data: TrainingData,
    *,
    left: float,
    has_merges: bool = True,
    ngram_bits: Sequence[float] = (),
    train_tokens: int = 0,
) -> tuple[Resolution, TrainingSpeed, Outlook]:
    """Stage 4: what depends on how many steps a budget has time for.

    Evaluations are so far apart that there is time for them. Regularisation follows from how often the data will be
    seen, unless a published preset states it; where there are enough evaluations to see that the loss no longer falls,
    the learning rate then decays, and training stops when that helps no more.

    Args:
        resolution: fitted to the corpus.
        speed: seconds of a step and of an evaluation, with all processes.
        data: of the run, open.
        left: seconds of the budget that are left.
        has_merges: whether BPE dropout has merges to leave out.
        ngram_bits: bits/byte of n-gram baselines of order 1, 2, … on the held-out text, for a text.
        train_tokens: tokens of the training split of a text.
    """
    config, steps = resolution.config, max(1.0, left / speed.step_seconds)
    is_regularised = resolution.is_regularised and not config.data.supervised and not config.model.is_masked
    fraction, r_drop = compute_novelty(ngram_bits) if len(ngram_bits) > 1 else 1.0, 0.0
    if data.holds_pairs:
        epochs = steps / data.steps_per_epoch
        tokens = epochs * data.tokens
        if is_regularised := resolution.is_regularised:
            chosen = choose_pair_regularisation(epochs, steps=steps, can_drop_merges=has_merges)
            resolution = resolution.choose("epochs in the budget", chosen)
    else:
        tokens = steps * batch_rows(config) * config.model.context_length
        epochs = tokens / max(1, train_tokens)
        if is_regularised:
            found = _regularisation_of_text(resolution, epochs, fraction, steps=steps, train_tokens=train_tokens)
            resolution, r_drop = resolution.choose("epochs in the budget", found.settings()), found.r_drop
            steps, speed = (
                steps / found.passes,
                dataclasses.replace(speed, step_seconds=speed.step_seconds * found.passes),
            )
            epochs, tokens = epochs / found.passes, tokens / found.passes
    if resolution.is_regularised and steps < 10 * resolution.config.training.warmup_steps:
        resolution = resolution.choose("steps in the budget", {"training": {"warmup_steps": round(steps / 10)}})
    limit = evaluation_reserve(left)
    evaluated, evaluation_seconds = evaluations(resolution.config, speed.evaluation_cost, steps=steps, limit=limit)
    if is_regularised and not data.holds_pairs and data.validation_bytes:
        evaluated |= _stopping(steps, every=evaluated["evaluate_every"])
    outlook = Outlook(
        steps, speed.step_seconds, epochs, is_regularised, fraction, tuple(ngram_bits), tokens, r_drop,
        evaluation_seconds=evaluation_seconds, evaluation_limit=limit,
    )  # fmt: skip
    resolution = resolution.choose("time of an evaluation", {"training": evaluated})
    return resolution, dataclasses.replace(speed, evaluation_seconds=evaluation_seconds), outlook


def _stopping(steps: float, *, every: int) -> dict[str, int]:
    """When to decay the learning rate early, and then to stop; nothing where there are too few evaluations to tell."""
    if not every or steps / every < _EVALUATIONS_TO_STOP:
        return {}
    return {"decay_patience": _DECAY_PATIENCE, "patience": _PATIENCE}


def _regularisation_of_text(
    resolution: Resolution, epochs: float, fraction: float, *, steps: float, train_tokens: int
) -> Regularisation:
    """Regularisation for a text that is seen so often, where an epoch counts for a fraction of one."""
    config, fixed = resolution.config, resolution.fixed
    passes_differ, is_open = fixed["model"].get("dropout") != 0, "r_drop" not in fixed["training"]
    return choose_text_regularisation(
        fraction * epochs,
        parameters_per_token=sum(parameters_by_part(config.model).values()) / max(1, train_tokens),
        steps=steps,
        learning_rate=config.training.learning_rate,
        can_use_r_drop=is_open and passes_differ and fraction >= NOVEL,
    )


def evaluations(config: RunConfig, cost: EvaluationCost, *, steps: float, limit: float) -> tuple[dict[str, Any], float]:
    """How often to evaluate and save, how many sentences to translate each time, and the seconds that each takes.

    Args:
        config: of the run.
        cost: of an evaluation.
        steps: of the run.
        limit: seconds for all evaluations.
    """
    each = cost.loss_seconds + training_bytes(config.model, config.training, config.lora) / _SAVED_A_SECOND
    chosen: dict[str, Any] = {}
    if cost.sentence_seconds:
        affordable = (limit / _EVALUATIONS_WITH_BLEU - each) / cost.sentence_seconds
        sentences = min(config.training.bleu_sentences, max(_FEWEST_SENTENCES, round(affordable)))
        each, chosen = each + sentences * cost.sentence_seconds, {"bleu_sentences": sentences}
    number = max(1, min(_MOST_EVALUATIONS, int(limit / each)))
    # the last one but the end's is half as far from the end as from the one before
    chosen["evaluate_every"] = 0 if number == 1 else max(1, math.ceil(steps / (number - 0.5)))
    return chosen, each


def plan(
    config: RunConfig,
    hardware: Hardware,
    data: TrainingData,
    *,
    folder: Path,
    data_key: str,
    micro_batch_tokens: int | None = None,
    processes: int = 1,
    step_seconds: float = 1.0,
    spent: float = 0.0,
) -> RunConfig:
    """Stage 5: the settings with a plan.

    Args:
        config: fitted to the corpus.
        hardware: with the arithmetic that is fastest on it.
        data: of the run, open.
        folder: of the data.
        data_key: hash of everything that the data were made from.
        micro_batch_tokens: positions that fit into the memory of a GPU at once.
        processes: that train the run together.
        step_seconds: seconds of a step, for a budget.
        spent: seconds of the budget that are gone.
    """
    made = RunPlan(
        **vars(hardware),
        processes=processes,
        micro_batch_tokens=micro_batch_tokens,
        steps=planned_steps(config.training, data, step_seconds=step_seconds, spent=spent),
        data=str(folder.resolve()),
        data_key=data_key,
        deadline=None if config.training.budget is None else parse_duration(config.training.budget),
    )
    return dataclasses.replace(config, plan=made)


def planned_steps(config: TrainingConfig, data: TrainingData, *, step_seconds: float, spent: float = 0.0) -> int:
    """How many optimizer steps the steps, epochs or tokens asked for come to.

    A budget comes to what is left of it, at so many seconds a step.
    """
    epochs = config.epochs if config.tokens is None else config.tokens / data.tokens
    if epochs is not None:
        steps = max(1, steps_for_batches(epochs * data.steps_per_epoch, config=config))
        if steps > _MOST_STEPS:
            length = "epochs" if config.tokens is None else "tokens"
            problem = f"{length} come to {steps:.1e} steps, more than can be trained; give fewer"
            raise UsageError(problem, settings=(length,))
        return steps
    if config.budget is not None:
        return max(1, round((parse_duration(config.budget) - spent) / step_seconds))
    if config.steps is None:
        raise UsageError("say how long to train", settings=LENGTHS)
    return config.steps

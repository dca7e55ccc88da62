"""Resolve a run specification: choose all settings that it leaves open, and record the reason of each.

Each stage is a pure function of the previous one and of what has been measured since:

1. `resolve_spec`: the specification over the preset, or over the model that is fine-tuned.
2. `choose_size`, under a budget or without a length: training time, depth, vocabulary and batch size, from the
   size of the corpus and the training speed of this machine.
3. `fit_to_corpus`: vocabulary sizes and labels, from the prepared corpus.
4. `fit_to_speed`, under a budget: evaluation interval, and regularisation unless a published preset sets it, from the
   time of a step and the statistics of the data. Otherwise `fit_to_steps`: evaluation interval.
5. `add_plan`: steps, dtypes and memory, from the hardware.

A value that the user has set is never changed.
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
from lm.config.presets import (
    DEFAULT_PRESET,
    DEFAULT_TRANSLATION_PRESET,
    build_run_config,
    depth_preset_name,
    find_preset,
    has_training_recipe,
    is_portable_name,
    portable_name,
    preset_depth,
)
from lm.config.run_config import SECTIONS, RunConfig, RunPlan, setting_values
from lm.config.run_spec import RunSpec, Settings
from lm.config.settings import LENGTHS, list_all_settings, list_settings, overlay
from lm.config.tokenizer import TokenizerConfig
from lm.config.training import TrainingConfig, parse_duration
from lm.data.batch import batch_rows
from lm.data.training_data import TrainingData
from lm.errors import UsageError
from lm.hardware import Hardware
from lm.model.cost import total_parameters
from lm.optim.optimizers import training_state_bytes
from lm.optim.schedules import steps_for_batches
from lm.training.planning import sizing
from lm.training.planning.budget import EvaluationCost, TrainingSpeed, evaluation_reserve, suggest_budget
from lm.training.planning.regularisation import (
    Regularisation,
    choose_pair_regularisation,
    choose_text_regularisation,
    compute_novelty,
    count_useful_epochs,
)
from lm.training.training_corpus import TrainingCorpus

_MAX_STEPS = 1 << 53
"""Largest number of steps that float64 counts exactly."""
_PROBE_SIZES = {False: (4, 4096), True: (3, 2048)}
"""Depth and batch tokens of the model whose speed is measured, for text (False) and pairs (True)."""
_MIN_EVALUATIONS, _MAX_EVALUATIONS, _EVALUATIONS_WITH_BLEU = 4, 20, 4
_MIN_EVALUATIONS_TO_STOP, _DECAY_PATIENCE, _PATIENCE = 8, 3, 2
_MIN_SENTENCES = 100
_SAVE_BYTES_PER_SECOND = 1.5e8  # bytes of a checkpoint per second, including checksums and fsync
_CHOSEN_BY_TIME = (("training", "schedule"), ("training", "optimizer"), ("parallel", "bpe_dropout"))
_NOVEL = 0.8
"""Novelty (`compute_novelty`) from which a text counts as having few repeated patterns."""


@dataclass(frozen=True)
class Resolution:
    """The settings chosen so far.

    Attributes:
        config: settings; open ones have the value of the preset or the default.
        fixed: settings given by the user or by the run that is fine-tuned, by section.
        is_regularised: whether regularisation is chosen from the number of epochs in the budget.
        reasons: of each setting, by names such as "training.steps".
    """

    config: RunConfig
    fixed: Settings
    is_regularised: bool = False
    reasons: Mapping[str, str] = field(default_factory=dict)

    def known_values(self, *, is_open: bool) -> dict[str, Any]:
        """Return the values of settings, such as "lora.rank"; `is_open`: without those that a time still chooses."""
        values = setting_values(self.config)
        for section, name in _CHOSEN_BY_TIME if is_open or self.is_regularised else ():
            if name not in self.fixed[section]:
                del values[f"{section}.{name}"]
        return values

    def choose(self, reason: str, values: Mapping[str, Mapping[str, Any]]) -> Resolution:
        """Return the resolution with values chosen, by section, except for fixed ones."""
        config, reasons = self.config, dict(self.reasons)
        for section, fields in values.items():
            left_open = {name: value for name, value in fields.items() if name not in self.fixed[section]}
            config = dataclasses.replace(config, **{section: getattr(config, section).replace(**left_open)})
            reasons |= {f"{section}.{name}": reason for name in left_open}
        return dataclasses.replace(self, config=config, reasons=reasons)

    def replace_config(self, reason: str, config: RunConfig) -> Resolution:
        """Return the resolution with another config; `reason` is recorded for all differences."""
        before = setting_values(self.config)
        differing = {name for name, value in setting_values(config).items() if value != before[name]}
        return dataclasses.replace(self, config=config, reasons={**self.reasons, **dict.fromkeys(differing, reason)})


@dataclass(frozen=True)
class BudgetForecast:
    """What a budget is enough for, estimated before the first step.

    Attributes:
        epochs: passes over the data.
        ngram_bits: bits/byte of n-gram baselines of order 1, 2, … on held-out text; empty if not measured.
        tokens: training tokens; for pairs, target tokens.
        max_steps: number of steps beyond which a longer budget would only overfit; None without a limit.
    """

    steps: float
    epochs: float
    ngram_bits: tuple[float, ...]
    tokens: float
    max_steps: int | None = None


def resolve_spec(spec: RunSpec, *, base: ModelConfig | None = None) -> Resolution:
    """Stage 1: return the preset, or the model that is fine-tuned, with the settings of the specification.

    Args:
        base: model of `spec.from_run`.

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
    named = "default" if spec.preset is None else spec.set_by.get("preset", "given")
    from_base: dict[str, str] = {}
    if base is not None:
        from_base = {f"model.{field}": "from_run" for field in fixed["model"]}
        if spec.tokenizer is None:
            from_base |= {setting.key: "from_run" for setting in list_settings("tokenizer", TokenizerConfig)}
    is_regularised = base is None and config.training.budget is not None and not has_training_recipe(name)
    reasons = {**_preset_reasons(config), "preset": named, **from_base, **spec.set_by}
    return Resolution(config, fixed, is_regularised, reasons)


def should_choose_time(spec: RunSpec) -> bool:
    """Whether the training time is chosen: for a new model whose length is not given, except of examples."""
    training = spec.settings["training"]
    is_said = any(training.get(name) is not None for name in LENGTHS) or bool(
        spec.preset and has_training_recipe(spec.preset)
    )
    suits_a_time = training.get("schedule", "wsd") == "wsd" and training.get("decay_fraction", 0) < 1
    is_new = spec.from_run is None and spec.kind != "examples"
    return is_new and suits_a_time and not is_said


def should_choose_size(spec: RunSpec) -> bool:
    """Whether the model size is chosen from corpus and time, because at most the depth is given."""
    has_time = spec.settings["training"].get("budget") is not None or should_choose_time(spec)
    is_open = spec.preset is None or preset_depth(spec.preset) is not None
    return has_time and is_open and spec.from_run is None


def should_choose_merges(spec: RunSpec, config: RunConfig) -> bool:
    """Whether BPE merges within words or characters are chosen: for a new language model of chosen size.

    Portable models keep merges within words, because other tools don't support merges within characters.
    """
    is_text = spec.kind == "text" and not config.model.is_masked
    is_open = spec.tokenizer is None and not {"kind", "vocab_size", "merges"} & spec.settings["tokenizer"].keys()
    return should_choose_size(spec) and is_text and is_open and not is_portable_name(config.preset)


def choose_time(
    resolution: Resolution,
    *,
    flops_per_second: float,
    text_bytes: int,
    pairs: bool = False,
    startup_seconds: float = 0.0,
) -> Resolution:
    """Stage 2a: choose the training time if no length is given; see `choose_size` for the other arguments.

    Start-up takes at most a quarter of it.
    """
    config, is_open = resolution.config, resolution.reasons["preset"] == "default"
    seconds = sizing.choose_default_seconds(
        flops_per_second=flops_per_second,
        text_bytes=text_bytes,
        kind=config.tokenizer.kind,
        parameters=None if is_open else total_parameters(config.model),
        pairs=pairs,
        decoder_only=config.model.decoder_only,
    )
    budget = max(_format_budget(seconds), suggest_budget(startup_seconds), key=parse_duration)
    reason = "size of the corpus" if parse_duration(budget) == seconds else "start-up"
    lengths = {**dict.fromkeys(LENGTHS), "budget": budget, "schedule": "wsd"}
    chosen = resolution.choose(reason, {"training": lengths})
    return dataclasses.replace(chosen, is_regularised=True)


def _format_budget(seconds: int) -> str:
    """Format seconds as a budget, such as 90s or 5m."""
    return f"{seconds}s" if seconds % 60 else f"{seconds // 60}m"


def _preset_reasons(config: RunConfig) -> dict[str, str]:
    """Return the reason of each value of a preset: preset, default, or other settings."""
    row, reasons = find_preset(str(config.preset)), {}
    given = setting_values(config)
    for setting in list_all_settings(SECTIONS):
        values, value = getattr(row, setting.section, {}), given[setting.key]
        by = "preset" if setting.name in values and values[setting.name] == value else "default"
        reasons[setting.key] = "other settings" if by == "default" and value != setting.default else by
    return reasons


def probe_config(resolution: Resolution, *, pairs: bool) -> RunConfig:
    """Return the config of the small model whose training speed is measured."""
    config, (depth, tokens) = resolution.config, _PROBE_SIZES[pairs]
    like = build_run_config(
        _preset_of_depth(config, depth, pairs=pairs),
        {"training": {"batch_tokens": tokens}, "model": {"decoder_only": config.model.decoder_only}},
    )
    return dataclasses.replace(like, hardware=config.hardware)


def _preset_of_depth(config: RunConfig, depth: int, *, pairs: bool) -> str:
    """Return the preset of a depth, portable if that of the config is."""
    name = depth_preset_name(depth, pairs=pairs)
    return portable_name(name) if is_portable_name(config.preset) else name


def choose_size(
    resolution: Resolution,
    *,
    seconds: float,
    flops_per_second: float,
    text_bytes: int,
    pairs: bool,
    is_prepared: bool = False,
    has_tokenizer: bool = False,
) -> Resolution:
    """Stage 2b: choose the largest model that sees enough tokens in the time.

    Args:
        flops_per_second: FLOP/s of training, measured with `probe_config`, of all processes.
        is_prepared: whether the corpus is prepared, so that the held-out split is fixed.
        has_tokenizer: whether there is a tokenizer already, so that the size of its vocabulary is fixed.
    """
    fitting, fixed, before = sizing.size_language_model, resolution.fixed, resolution.config
    if pairs:
        fitting = partial(sizing.size_translation_model, decoder_only=before.model.decoder_only)
    depth = None if resolution.reasons["preset"] == "default" else preset_depth(before.preset)
    size = fitting(
        seconds, flops_per_second=flops_per_second, text_bytes=text_bytes, kind=before.tokenizer.kind, depth=depth
    )
    chosen = size.settings()
    if has_tokenizer or before.tokenizer.kind != "bpe":
        del chosen["tokenizer"]
    if "budget" not in fixed["training"]:
        chosen["training"]["budget"] = before.training.budget
    name = _preset_of_depth(before, size.depth, pairs=pairs)
    config = build_run_config(name, {section: overlay(chosen.get(section, {}), fixed[section]) for section in SECTIONS})
    by_budget = {f"{section}.{name}": "budget" for section, values in chosen.items() for name in values}
    fixed_names = {f"{section}.{name}" for section, values in fixed.items() for name in values}
    given_by = {name: by for name, by in resolution.reasons.items() if name in fixed_names}
    reasons = {**_preset_reasons(config), **by_budget, **given_by}
    reasons["preset"] = "budget" if depth is None else resolution.reasons["preset"]
    if "budget" not in fixed["training"]:
        reasons["training.budget"] = resolution.reasons["training.budget"]
    sized = Resolution(config, fixed, is_regularised=True, reasons=reasons)
    if pairs or is_prepared:
        return sized
    fraction = sizing.choose_held_out_fraction(text_bytes)
    return sized.choose("size of the corpus", {"data": {"validation": f"{fraction:.2g}"}})


def fit_to_corpus(config: RunConfig, corpus: TrainingCorpus) -> RunConfig:
    """Stage 3: return the config with vocabulary sizes and labels of the corpus.

    Sources with the same token IDs as the targets use the same embedding. BPE dropout is dropped if a tokenizer has no
    merges.
    """
    source = corpus.source_tokenizer
    source_size = None if source is None or source.has_same_ids(corpus.tokenizer) else source.vocab_size
    model = config.model.replace(
        vocab_size=corpus.vocab_size,
        source_vocab_size=source_size,
        labels=corpus.labels if config.model.is_masked and corpus.kind == "examples" else (),
    )
    completions = () if config.model.is_masked else corpus.label_completions
    parallel = config.parallel
    if parallel.bpe_dropout and not corpus.has_merges:
        parallel = dataclasses.replace(parallel, bpe_dropout=0.0)
    return dataclasses.replace(
        config, model=model, parallel=parallel, data_kind=corpus.kind, label_completions=completions
    )


def fit_to_speed(
    resolution: Resolution,
    speed: TrainingSpeed,
    data: TrainingData,
    *,
    seconds_left: float,
    has_merges: bool = True,
    ngram_bits: Sequence[float] = (),
    train_tokens: int = 0,
) -> tuple[Resolution, TrainingSpeed, BudgetForecast]:
    """Stage 4: choose what depends on the number of steps in the budget.

    Evaluations are spaced so that they are affordable. Regularisation is chosen from the number of epochs; if there are
    enough evaluations to see a plateau, the learning rate decays at the plateau, and training ends when that no longer
    helps.

    Args:
        speed: with all processes.
        has_merges: whether BPE dropout is possible.
        ngram_bits: bits/byte of n-gram baselines of order 1, 2, … on the held-out text.
        train_tokens: tokens of the training split of a text; 0 if not known.
    """
    config, steps, max_steps = resolution.config, max(1.0, seconds_left / speed.step_seconds), None
    is_text = not config.model.is_masked and config.data_kind != "examples"
    is_regularised = resolution.is_regularised and is_text
    fraction = compute_novelty(ngram_bits) if len(ngram_bits) > 1 else 1.0
    if data.holds_pairs:
        epochs = steps / data.steps_per_epoch
        tokens = epochs * data.tokens
        if resolution.is_regularised:
            chosen = choose_pair_regularisation(epochs, steps=steps, can_drop_merges=has_merges)
            resolution = resolution.choose("epochs in the budget", chosen)
    else:
        tokens = steps * batch_rows(config) * config.model.context_length
        epochs = tokens / max(1, train_tokens)
        if data.holds_conversations or not train_tokens:  # conversations have a row each, with padding
            epochs = steps / data.steps_per_epoch
            tokens = epochs * data.tokens
        if is_regularised:
            useful = count_useful_epochs(fraction) / epochs
            if useful < 1:
                epochs, steps, tokens = epochs * useful, steps * useful, tokens * useful
            regularised = _choose_text_regularisation(
                resolution, epochs, fraction, steps=steps, train_tokens=train_tokens
            )
            resolution = resolution.choose("epochs in the budget", regularised.settings())
            if regularised.batch_fraction < 1:
                smaller = round(regularised.batch_fraction * (config.training.batch_tokens or 0))
                resolution = resolution.choose("budget", {"training": {"batch_tokens": smaller}})
            cost = regularised.forward_passes * batch_rows(resolution.config) / batch_rows(config)
            steps, speed = steps / cost, dataclasses.replace(speed, step_seconds=speed.step_seconds * cost)
            epochs, tokens = epochs / regularised.forward_passes, tokens / regularised.forward_passes
            max_steps = math.ceil(steps) if useful < 1 else None
    if resolution.is_regularised and steps < 10 * resolution.config.training.warmup_steps:
        resolution = resolution.choose("steps in the budget", {"training": {"warmup_steps": round(steps / 10)}})
    limit = evaluation_reserve(seconds_left)
    evaluated, evaluation_seconds = choose_evaluations(
        resolution.config, speed.evaluation_cost, steps=steps, limit=limit, epochs=epochs
    )
    if is_regularised and not data.holds_pairs and data.validation_bytes:
        evaluated |= _choose_patience(steps, evaluate_every=evaluated["evaluate_every"])
    forecast = BudgetForecast(steps, epochs, tuple(ngram_bits), tokens, max_steps)
    resolution = resolution.choose("time of an evaluation", {"training": evaluated})
    return resolution, dataclasses.replace(speed, evaluation_seconds=evaluation_seconds), forecast


def _choose_patience(steps: float, *, evaluate_every: int) -> dict[str, int]:
    """Return the patience of decay and stopping; nothing with too few evaluations."""
    if not evaluate_every or steps / evaluate_every < _MIN_EVALUATIONS_TO_STOP:
        return {}
    return {"decay_patience": _DECAY_PATIENCE, "patience": _PATIENCE}


def _choose_text_regularisation(
    resolution: Resolution, epochs: float, fraction: float, *, steps: float, train_tokens: int
) -> Regularisation:
    """Choose the regularisation of a language model from its effective epochs."""
    config, fixed = resolution.config, resolution.fixed
    passes_differ, is_open = fixed["model"].get("dropout") != 0, "r_drop" not in fixed["training"]
    return choose_text_regularisation(
        fraction * epochs,
        parameters_per_token=total_parameters(config.model) / max(1, train_tokens),
        steps=steps,
        learning_rate=config.training.learning_rate,
        can_use_r_drop=is_open and passes_differ and fraction >= _NOVEL,
        can_shrink_batch=resolution.reasons.get("training.batch_tokens") == "budget",
    )


def choose_evaluations(
    config: RunConfig, cost: EvaluationCost, *, steps: float, limit: float, epochs: float = 0.0
) -> tuple[dict[str, Any], float]:
    """Choose the evaluation interval and number of sentences to translate; return them and the seconds per evaluation.

    Args:
        limit: seconds for all evaluations.
        epochs: of the run; one evaluation each if there are many, to see where it begins to overfit.
    """
    seconds = (
        cost.loss_seconds + training_state_bytes(config.model, config.training, config.lora) / _SAVE_BYTES_PER_SECOND
    )
    chosen: dict[str, Any] = {}
    if cost.sentence_seconds:
        affordable = (limit / _EVALUATIONS_WITH_BLEU - seconds) / cost.sentence_seconds
        sentences = min(config.training.bleu_sentences, max(_MIN_SENTENCES, round(affordable)))
        seconds, chosen = seconds + sentences * cost.sentence_seconds, {"bleu_sentences": sentences}
    number = max(1, min(max(_MAX_EVALUATIONS, round(epochs)), int(limit / seconds)))
    # the last interval is half as long
    chosen["evaluate_every"] = 0 if number == 1 else max(1, math.ceil(steps / (number - 0.5)))
    return chosen, seconds


def fit_to_steps(resolution: Resolution, data: TrainingData) -> Resolution:
    """Stage 4 without a budget: choose an interval of evaluations and checkpoints that suits few steps.

    Pairs are excepted, because their evaluations translate, which may take longer than the steps.
    """
    training = resolution.config.training
    interval = math.ceil(compute_steps(training, data, step_seconds=1.0) / _MIN_EVALUATIONS)
    if data.holds_pairs or interval >= training.evaluate_every:
        return resolution
    return resolution.choose("number of steps", {"training": {"evaluate_every": interval}})


def add_plan(
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
    max_steps: int | None = None,
) -> RunConfig:
    """Stage 5: return the config with a plan.

    Args:
        config: fitted to the corpus.
        data_key: hash of everything that the data were made from.
        micro_batch_tokens: tokens that fit into GPU memory in one pass.
        step_seconds: for a budget.
        spent: seconds of the budget used before.
        max_steps: limit of the number of steps in a budget.
    """
    steps = compute_steps(config.training, data, step_seconds=step_seconds, spent=spent)
    plan = RunPlan(
        **vars(hardware),
        processes=processes,
        micro_batch_tokens=micro_batch_tokens,
        steps=steps if max_steps is None else min(steps, max_steps),
        max_steps=max_steps,
        data=str(folder.resolve()),
        data_key=data_key,
        budget_seconds=None if config.training.budget is None else parse_duration(config.training.budget),
    )
    return dataclasses.replace(config, plan=plan)


def compute_steps(config: TrainingConfig, data: TrainingData, *, step_seconds: float, spent: float = 0.0) -> int:
    """Return the number of optimizer steps for the configured steps, epochs, tokens or budget.

    For a budget, the rest of it is divided by `step_seconds`.
    """
    epochs = config.epochs if config.tokens is None else config.tokens / data.tokens
    if epochs is not None:
        steps = max(1, steps_for_batches(epochs * data.steps_per_epoch, config=config))
        if steps > _MAX_STEPS:
            length = "epochs" if config.tokens is None else "tokens"
            problem = f"{length} come to {steps:.1e} steps, more than can be trained; give fewer"
            raise UsageError(problem)
        return steps
    if config.budget is not None:
        return max(1, round((parse_duration(config.budget) - spent) / step_seconds))
    if config.steps is None:
        raise UsageError("say how long to train")
    return config.steps

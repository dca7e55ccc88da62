"""Plan a run: choose all settings that its specification leaves open, and record the reason of each.

`plan_spec` starts from the preset, or the model that is fine-tuned; `plan_model` chooses time, model size and
vocabulary before the corpus is tokenized; `plan_corpus` takes vocabulary sizes and labels from the corpus;
`plan_length` chooses rates, regularisation and evaluations from measurements. All are pure functions. A value that the
user has set is never changed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lm.config.presets import (
    DEFAULT_PRESET,
    DEFAULT_TRANSLATION_PRESET,
    build_run_config,
    depth_preset_name,
    find_preset,
    has_training_recipe,
    is_portable_name,
    muon_learning_rate,
    portable_name,
    preset_depth,
)
from lm.config.run_config import SECTIONS, RunConfig, RunPlan, setting_values
from lm.config.run_spec import RunSpec, Settings
from lm.config.settings import LENGTHS, list_all_settings, list_settings, overlay
from lm.config.tokenizer import TokenizerConfig
from lm.config.training import TrainingConfig, parse_duration
from lm.data.batch import TrainingData, batch_rows
from lm.errors import UsageError
from lm.hardware import Hardware
from lm.model.cost import total_parameters
from lm.training.planning import sizing
from lm.training.planning.budget import EvaluationCost, TrainingSpeed, evaluation_reserve, suggest_budget
from lm.training.planning.memory import training_state_bytes
from lm.training.planning.regularisation import (
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
_MIN_ROWS = 4
_OPEN = ("default", "preset", "budget", "other settings", "from_run")
"""Reasons of a value that nobody has given."""
_SAVE_BYTES_PER_SECOND = 1.5e8  # bytes of a checkpoint per second, including checksums and fsync
_CHOSEN_BY_TIME = (("training", "schedule"), ("training", "optimizer"), ("parallel", "bpe_dropout"))
_NOVEL = 0.8
"""Novelty (`compute_novelty`) from which a text counts as having few repeated patterns."""

_ADAMW_RATE = 3e-3
"""Peak learning rate of AdamW from random weights at width 128; scaled with 1 / width (Yang et al. 2022)."""
_ADAPTER_RATE = 4e-2
"""The same for low-rank adapters."""
_LOSS_GAPS, _FRACTIONS = (0.0, 3.0), (0.1, 0.7)
"""First loss on the new data minus the expected one, in nats per token, and the learning rate for it as a fraction of
the peak from random weights; interpolated linearly in its logarithm (docs/lab/recipe.md). The expected loss is that of
the parent on its own data, or of an n-gram model of the new data if that is lower."""
_DEFAULT_FRACTION = 0.1
"""The fraction if one of the losses is not known."""
_TUNED_EPOCHS, _MAX_TUNED_EPOCHS, _MIN_TUNED_STEPS, _MAX_TUNED_STEPS = 3.0, 10.0, 50, 2000
"""Small data sets are seen more often, until there are enough steps; large ones less often."""
_TUNED_WARMUP, _TUNED_EVALUATIONS, _TUNED_PATIENCE = 0.1, 10, 3


@dataclass(frozen=True)
class Plan:
    """The settings chosen so far.

    Attributes:
        config: settings; open ones have the value of the preset or the default.
        reasons: of each setting, by names such as "training.steps".
        fixed: settings given by the user or by the run that is fine-tuned, by section.
        is_regularised: whether regularisation is chosen from the number of epochs in the budget.
    """

    config: RunConfig
    reasons: Mapping[str, str] = field(default_factory=dict)
    fixed: Settings = field(default_factory=lambda: {section: {} for section in SECTIONS})
    is_regularised: bool = False

    def known_values(self, *, is_open: bool) -> dict[str, Any]:
        """Return the values of settings, such as "lora.rank"; `is_open`: without those that a time still chooses."""
        values = setting_values(self.config)
        for section, name in _CHOSEN_BY_TIME if is_open or self.is_regularised else ():
            if name not in self.fixed[section]:
                del values[f"{section}.{name}"]
        return values

    def choose(self, reason: str, values: Mapping[str, Mapping[str, Any]]) -> Plan:
        """Return the plan with values chosen, by section, except for fixed ones."""
        config, reasons = self.config, dict(self.reasons)
        for section, fields in values.items():
            left_open = {name: value for name, value in fields.items() if name not in self.fixed[section]}
            config = dataclasses.replace(config, **{section: getattr(config, section).replace(**left_open)})
            reasons |= {f"{section}.{name}": reason for name in left_open}
        return dataclasses.replace(self, config=config, reasons=reasons)

    def replace_config(self, reason: str, config: RunConfig) -> Plan:
        """Return the plan with another config; `reason` is recorded for all differences."""
        before = setting_values(self.config)
        differing = {name for name, value in setting_values(config).items() if value != before[name]}
        return dataclasses.replace(self, config=config, reasons={**self.reasons, **dict.fromkeys(differing, reason)})


@dataclass(frozen=True)
class Survey:
    """What is known of a corpus before it is tokenized.

    Attributes:
        text_bytes: of UTF-8 text; of both sides of pairs.
        is_prepared: whether it is prepared, so that the held-out split is fixed.
        has_tokenizer: whether there is a tokenizer already, so that the size of its vocabulary is fixed.
    """

    text_bytes: int
    pairs: bool = False
    is_prepared: bool = False
    has_tokenizer: bool = False


@dataclass(frozen=True)
class Measured:
    """What was measured on the prepared corpus, on this machine.

    Attributes:
        speed: of all processes; needed under a budget.
        seconds_left: of the budget.
        ngram_bits: bits/byte of n-gram baselines of order 1, 2, … on the held-out text.
        train_tokens: tokens of the training split of a text; 0 if not known.
        losses: nats per token, if known: of the initial weights on the new held-out data, of the parent on its own, and
            of the best n-gram model of the new data. None if the weights are random.
    """

    speed: TrainingSpeed | None = None
    seconds_left: float = 0.0
    ngram_bits: tuple[float, ...] = ()
    train_tokens: int = 0
    losses: tuple[float | None, float | None, float | None] | None = None


def plan_spec(spec: RunSpec, *, parent: RunConfig | None = None) -> Plan:
    """Return the preset, or the model that is fine-tuned, with the settings of the specification.

    Args:
        parent: config of `spec.from_run`.

    Raises:
        UsageError: there is no such preset, or settings contradict each other.
    """
    fixed = {section: dict(values) for section, values in spec.settings.items()}
    if parent is not None:
        fixed["model"] = {**parent.model.settings(), **fixed["model"]}
    name = spec.preset or (DEFAULT_TRANSLATION_PRESET if spec.data.are_pairs else DEFAULT_PRESET)
    if spec.portable and parent is None:
        name = portable_name(name)
    config = build_run_config(name, fixed)
    named = "default" if spec.preset is None else spec.set_by.get("preset", "given")
    from_parent: dict[str, str] = {}
    if parent is not None:
        from_parent = {f"model.{field}": "from_run" for field in fixed["model"]}
        if spec.tokenizer is None:
            from_parent |= {setting.key: "from_run" for setting in list_settings("tokenizer", TokenizerConfig)}
    is_regularised = parent is None and config.training.budget is not None and not has_training_recipe(name)
    plan = Plan(
        config, {**_preset_reasons(config), "preset": named, **from_parent, **spec.set_by}, fixed, is_regularised
    )
    if parent is None or spec.preset is not None or config.lora:
        return plan
    return plan.choose("from_run", {"training": {"optimizer": parent.training.optimizer}})


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


def probe_config(plan: Plan, *, pairs: bool) -> RunConfig:
    """Return the config of the small model whose training speed is measured."""
    config, (depth, tokens) = plan.config, _PROBE_SIZES[pairs]
    settings: Settings = {"training": {"batch_tokens": tokens}, "model": {"decoder_only": config.model.decoder_only}}
    like = build_run_config(_preset_of_depth(config, depth, pairs=pairs), settings)
    return dataclasses.replace(like, hardware=config.hardware)


def plan_model(plan: Plan, spec: RunSpec, survey: Survey, *, flops_per_second: float, elapsed: float) -> Plan:
    """Choose the training time, if none is given, and the largest model that sees enough tokens in it.

    Args:
        flops_per_second: FLOP/s of training, measured with `probe_config`, of all processes.
        elapsed: seconds of the budget used before; of a chosen time start-up takes at most a quarter.
    """
    before, kind = plan.config, plan.config.tokenizer.kind
    like: dict[str, Any] = {
        "flops_per_second": flops_per_second, "text_bytes": survey.text_bytes, "kind": kind, "pairs": survey.pairs,
        "decoder_only": before.model.decoder_only,
    }  # fmt: skip
    if before.training.budget is None:
        parameters = None if plan.reasons["preset"] == "default" else total_parameters(before.model)
        seconds = sizing.choose_default_seconds(**like, parameters=parameters)
        by_corpus = f"{seconds}s" if seconds % 60 else f"{seconds // 60}m"
        budget = max(by_corpus, suggest_budget(elapsed), key=parse_duration)
        lengths = {**dict.fromkeys(LENGTHS), "budget": budget, "schedule": "wsd"}
        plan = plan.choose("size of the corpus" if budget == by_corpus else "start-up", {"training": lengths})
        plan = dataclasses.replace(plan, is_regularised=True)
    if not should_choose_size(spec):
        return plan
    before, fixed, budget = plan.config, plan.fixed, str(plan.config.training.budget)
    depth = None if plan.reasons["preset"] == "default" else preset_depth(before.preset)
    size = sizing.choose_size(parse_duration(budget) - elapsed, **like, depth=depth)
    chosen = size.settings()
    if survey.has_tokenizer or kind != "bpe":
        del chosen["tokenizer"]
    if "budget" not in fixed["training"]:
        chosen["training"]["budget"] = budget
    name = _preset_of_depth(before, size.depth, pairs=survey.pairs)
    config = build_run_config(name, {section: overlay(chosen.get(section, {}), fixed[section]) for section in SECTIONS})
    by_budget = {f"{section}.{name}": "budget" for section, values in chosen.items() for name in values}
    fixed_names = {f"{section}.{name}" for section, values in fixed.items() for name in values}
    given_by = {name: by for name, by in plan.reasons.items() if name in (*fixed_names, "training.budget")}
    reasons = {**_preset_reasons(config), **by_budget, **given_by}
    reasons["preset"] = "budget" if depth is None else plan.reasons["preset"]
    sized = Plan(config, reasons, fixed, is_regularised=True)
    if survey.pairs or survey.is_prepared:
        return sized
    fraction = sizing.choose_held_out_fraction(survey.text_bytes)
    return sized.choose("size of the corpus", {"data": {"validation": f"{fraction:.2g}"}})


def plan_corpus(plan: Plan, corpus: TrainingCorpus) -> Plan:
    """Take vocabulary sizes and labels from the corpus.

    Sources with the same token IDs as the targets use the same embedding. BPE dropout is dropped if a tokenizer has no
    merges.
    """
    config, source = plan.config, corpus.source_tokenizer
    model = config.model.replace(
        vocab_size=corpus.vocab_size,
        source_vocab_size=None if source is None or source.has_same_ids(corpus.tokenizer) else source.vocab_size,
        labels=corpus.labels if config.model.is_masked and corpus.kind == "examples" else (),
    )
    completions = () if config.model.is_masked else corpus.label_completions
    parallel = config.parallel
    if parallel.bpe_dropout and not corpus.has_merges:
        parallel = dataclasses.replace(parallel, bpe_dropout=0.0)
    fitted = dataclasses.replace(
        config, model=model, parallel=parallel, data_kind=corpus.kind, label_completions=completions
    )
    return _plan_context(plan.replace_config("corpus", fitted), corpus)


def _plan_context(plan: Plan, corpus: TrainingCorpus) -> Plan:
    """Choose the context of a model of conversations, unless it is given: that of the longest one.

    It is limited by the positions of the model that is fine-tuned, and to a quarter of the tokens of a batch.
    """
    config, by = plan.config, plan.reasons.get("model.context_length")
    model = config.model
    context = min(corpus.longest_conversation - 1, batch_rows(config) * model.context_length // _MIN_ROWS)
    is_limited = by == "from_run" and (model.position_limit is not None or model.rope_scaling != "none")
    if by not in _OPEN or is_limited or context <= model.context_length:
        return plan
    longer = dataclasses.replace(config, model=model.replace(context_length=context))
    return plan.replace_config("longest conversation", longer)


def plan_length(
    plan: Plan, corpus: TrainingCorpus, data: TrainingData, measured: Measured
) -> tuple[Plan, TrainingSpeed | None, int | None]:
    """Choose what depends on measurements: rates of fine-tuning, evaluations, and regularisation under a budget.

    Returns:
        The plan; the speed with the settings chosen; and the number of steps beyond which a longer budget would only
            overfit, if there is a limit.
    """
    if measured.losses is not None:
        plan = _plan_fine_tuning(plan, data, *measured.losses)
    if plan.config.training.budget is None:
        is_new = measured.losses is None
        return (_plan_evaluations_of_steps(plan, data) if is_new else plan), None, None
    assert measured.speed is not None
    return _plan_budget(plan, corpus, data, measured, measured.speed)


def add_run_plan(
    plan: Plan,
    corpus: TrainingCorpus,
    data: TrainingData,
    hardware: Hardware,
    *,
    data_key: str,
    micro_batch_tokens: int | None = None,
    processes: int = 1,
    step_seconds: float = 1.0,
    spent: float = 0.0,
    max_steps: int | None = None,
) -> Plan:
    """Add what is fixed for the run: its hardware, number of steps and data.

    Args:
        data_key: hash of everything that the data were made from.
        micro_batch_tokens: tokens that fit into GPU memory in one pass.
        step_seconds: for a budget.
        spent: seconds of the budget used before.
        max_steps: limit of the number of steps in a budget.
    """
    training = plan.config.training
    steps = compute_steps(training, data, step_seconds=step_seconds, spent=spent)
    steps = steps if max_steps is None else min(steps, max_steps)
    run_plan = RunPlan(
        **vars(hardware),
        processes=processes,
        micro_batch_tokens=micro_batch_tokens,
        steps=steps,
        epochs=steps / data.steps_per_epoch,
        max_steps=max_steps,
        data=str(corpus.folder.resolve()),
        data_key=data_key,
        budget_seconds=None if training.budget is None else parse_duration(training.budget),
    )
    return dataclasses.replace(plan, config=dataclasses.replace(plan.config, plan=run_plan))


def compute_steps(config: TrainingConfig, data: TrainingData, *, step_seconds: float = 1.0, spent: float = 0.0) -> int:
    """Return the number of optimizer steps for the configured steps, epochs, tokens or budget.

    For a budget, the rest of it is divided by `step_seconds`.
    """
    epochs = config.epochs if config.tokens is None else config.tokens / data.tokens
    if epochs is not None:
        steps = max(1, math.ceil(epochs * data.steps_per_epoch))
        if steps > _MAX_STEPS:
            raise UsageError(f"{steps:.1e} steps are more than can be trained")
        return steps
    if config.budget is not None:
        return max(1, round((parse_duration(config.budget) - spent) / step_seconds))
    if config.steps is None:
        raise UsageError("say how long to train")
    return config.steps


def peak_learning_rate(config: RunConfig) -> float:
    """Return the peak learning rate for training the model from random weights."""
    width = config.model.d_model
    if config.lora:
        return _ADAPTER_RATE * (128 / width) ** 0.5
    if config.training.optimizer == "muon":
        return muon_learning_rate(width, translates=config.model.translates)
    return _ADAMW_RATE * 128 / width


def choose_evaluations(
    config: RunConfig, cost: EvaluationCost, *, steps: float, limit: float, epochs: float = 0.0
) -> tuple[dict[str, Any], float]:
    """Choose the evaluation interval and number of sentences to translate; return them and the seconds per evaluation.

    Args:
        limit: seconds for all evaluations.
        epochs: of the run; one evaluation each if there are many, to see where it begins to overfit.
    """
    seconds, chosen = cost.loss_seconds + training_state_bytes(config) / _SAVE_BYTES_PER_SECOND, dict[str, Any]()
    if cost.sentence_seconds:
        affordable = (limit / _EVALUATIONS_WITH_BLEU - seconds) / cost.sentence_seconds
        sentences = min(config.training.bleu_sentences, max(_MIN_SENTENCES, round(affordable)))
        seconds, chosen = seconds + sentences * cost.sentence_seconds, {"bleu_sentences": sentences}
    number = max(1, min(max(_MAX_EVALUATIONS, round(epochs)), int(limit / seconds)))
    # the last interval is half as long
    chosen["evaluate_every"] = 0 if number == 1 else max(1, math.ceil(steps / (number - 0.5)))
    return chosen, seconds


def _preset_reasons(config: RunConfig) -> dict[str, str]:
    """Return the reason of each value of a preset: preset, default, or other settings."""
    row, reasons = find_preset(str(config.preset)), {}
    given = setting_values(config)
    for setting in list_all_settings(SECTIONS):
        values, value = getattr(row, setting.section, {}), given[setting.key]
        by = "preset" if setting.name in values and values[setting.name] == value else "default"
        reasons[setting.key] = "other settings" if by == "default" and value != setting.default else by
    return reasons


def _preset_of_depth(config: RunConfig, depth: int, *, pairs: bool) -> str:
    """Return the preset of a depth, portable if that of the config is."""
    name = depth_preset_name(depth, pairs=pairs)
    return portable_name(name) if is_portable_name(config.preset) else name


def _plan_fine_tuning(
    plan: Plan, data: TrainingData, initial_loss: float | None, parent_loss: float | None, ngram_loss: float | None
) -> Plan:
    """Choose learning rate, warm-up and length of a run that starts from another run's weights.

    The learning rate is a fraction of the peak from random weights; the fraction grows with the difference of the loss
    on the new data from what can be expected there.
    """
    fraction, reason = _DEFAULT_FRACTION, "continued training"
    if initial_loss is not None and parent_loss is not None:
        expected = parent_loss if ngram_loss is None else min(parent_loss, ngram_loss)
        fraction = float(np.exp(np.interp(initial_loss - expected, _LOSS_GAPS, np.log(_FRACTIONS))))
        reason = f"loss {initial_loss:.2f} at step 0, and {parent_loss:.2f} where it was trained"
        reason += "" if ngram_loss is None else f"; {ngram_loss:.2f} by n-grams"
    rate = float(f"{fraction * peak_learning_rate(plan.config):.2g}")
    plan = plan.choose(reason, {"training": {"learning_rate": rate}})
    if not (has_length := any(plan.fixed["training"].get(name) is not None for name in LENGTHS)):
        epochs = min(max(_TUNED_EPOCHS, _MIN_TUNED_STEPS / data.steps_per_epoch), _MAX_TUNED_EPOCHS)
        steps = max(1, min(round(epochs * data.steps_per_epoch), _MAX_TUNED_STEPS))
        plan = plan.choose("size of the new data", {"training": {"steps": steps, "epochs": None, "tokens": None}})
    if plan.config.training.budget is not None:
        return plan
    steps = compute_steps(plan.config.training, data)
    rhythm = {
        "warmup_steps": min(plan.config.training.warmup_steps, round(_TUNED_WARMUP * steps)),
        "evaluate_every": max(1, -(-steps // _TUNED_EVALUATIONS)),
        **({} if has_length else {"patience": _TUNED_PATIENCE}),
    }
    return plan.choose("steps of continued training", {"training": rhythm})


def _plan_evaluations_of_steps(plan: Plan, data: TrainingData) -> Plan:
    """Choose an interval of evaluations and checkpoints that suits few steps.

    Pairs are excepted, because their evaluations translate, which may take longer than the steps.
    """
    training = plan.config.training
    interval = math.ceil(compute_steps(training, data) / _MIN_EVALUATIONS)
    if data.holds_pairs or interval >= training.evaluate_every:
        return plan
    return plan.choose("number of steps", {"training": {"evaluate_every": interval}})


def _plan_budget(
    plan: Plan, corpus: TrainingCorpus, data: TrainingData, measured: Measured, speed: TrainingSpeed
) -> tuple[Plan, TrainingSpeed, int | None]:
    """Choose what depends on the number of steps in a budget.

    Evaluations are spaced so that they are affordable. Regularisation is chosen from the number of epochs; if there are
    enough evaluations to see a plateau, the learning rate decays at the plateau, and training ends when that no longer
    helps.
    """
    config, steps, max_steps = plan.config, max(1.0, measured.seconds_left / speed.step_seconds), None
    learns_text = not config.model.is_masked and config.data_kind != "examples"
    epochs = steps / data.steps_per_epoch
    if not (data.holds_pairs or data.holds_conversations) and measured.train_tokens:
        # a window of the context has a token more than it predicts
        epochs = steps * batch_rows(config) * config.model.context_length / measured.train_tokens
    if data.holds_pairs and plan.is_regularised:
        chosen = choose_pair_regularisation(epochs, steps=steps, can_drop_merges=corpus.has_merges)
        plan = plan.choose("epochs in the budget", chosen)
    elif plan.is_regularised and learns_text:
        novelty = compute_novelty(measured.ngram_bits) if len(measured.ngram_bits) > 1 else 1.0
        if (useful := count_useful_epochs(novelty) / epochs) < 1:
            epochs, steps = epochs * useful, steps * useful
        passes_may_differ = plan.fixed["model"].get("dropout") != 0 and "r_drop" not in plan.fixed["training"]
        regularised = choose_text_regularisation(
            novelty * epochs,
            parameters_per_token=total_parameters(config.model) / max(1, measured.train_tokens),
            steps=steps,
            learning_rate=config.training.learning_rate,
            can_use_r_drop=passes_may_differ and novelty >= _NOVEL,
            can_shrink_batch=plan.reasons.get("training.batch_tokens") == "budget",
        )
        plan = plan.choose("epochs in the budget", regularised.settings())
        if regularised.batch_fraction < 1:
            smaller = round(regularised.batch_fraction * (config.training.batch_tokens or 0))
            plan = plan.choose("budget", {"training": {"batch_tokens": smaller}})
        cost = regularised.forward_passes * batch_rows(plan.config) / batch_rows(config)
        steps, speed = steps / cost, dataclasses.replace(speed, step_seconds=speed.step_seconds * cost)
        epochs /= regularised.forward_passes
        max_steps = math.ceil(steps) if useful < 1 else None
    if plan.is_regularised and steps < 10 * plan.config.training.warmup_steps:
        plan = plan.choose("steps in the budget", {"training": {"warmup_steps": round(steps / 10)}})
    limit = evaluation_reserve(measured.seconds_left)
    evaluated, evaluation_seconds = choose_evaluations(
        plan.config, speed.evaluation_cost, steps=steps, limit=limit, epochs=epochs
    )
    watches_loss = plan.is_regularised and learns_text and not data.holds_pairs and data.validation_bytes > 0
    if watches_loss and evaluated["evaluate_every"] and steps / evaluated["evaluate_every"] >= _MIN_EVALUATIONS_TO_STOP:
        evaluated |= {"decay_patience": _DECAY_PATIENCE, "patience": _PATIENCE}
    reason, bits = "time of an evaluation", measured.ngram_bits
    plan = plan.choose(
        f"{reason}; n-gram baseline {min(bits):.2f} bits/byte" if bits else reason, {"training": evaluated}
    )
    return plan, dataclasses.replace(speed, evaluation_seconds=evaluation_seconds), max_steps

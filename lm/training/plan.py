"""Plan a run: choose all settings that its specification leaves open, and record the reason of each.

`plan_spec` starts from the preset, or the model that is fine-tuned; `plan_model` chooses time, model size and
vocabulary before the corpus is tokenized; `plan_corpus` takes vocabulary sizes and labels from the corpus;
`plan_length` chooses rates, regularisation and evaluations from measurements; `extend` plans the rest of a run that is
resumed with another length. All are pure functions. A value that the user has set is never changed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lm.config.presets import (
    DEFAULT_PRESET,
    DEFAULT_TRANSLATION_PRESET,
    PORTABLE,
    adamw_learning_rate,
    build_run_config,
    depth_preset_name,
    has_training_recipe,
    muon_learning_rate,
    portable_name,
    preset_depth,
)
from lm.config.run_config import SECTIONS, RunConfig, RunPlan, TrainingConfig, parse_duration, setting_values
from lm.config.run_spec import RunSpec, Settings, is_user_given
from lm.config.settings import LENGTHS, overlay
from lm.data import TrainingData, batch_rows
from lm.hardware import Hardware
from lm.model.cost import total_parameters
from lm.run_folder import TrainingState
from lm.training import rules
from lm.training.objective import training_state_bytes
from lm.training.optimizers import learning_rate
from lm.training.rules import TrainingSpeed, evaluation_reserve
from lm.training.training_corpus import TrainingCorpus

_MIN_EVALUATIONS, _MAX_EVALUATIONS, _EVALUATIONS_WITH_BLEU = 4, 20, 4
_MIN_EVALUATIONS_TO_DECAY, _DECAY_PATIENCE = 8, 3
_MIN_SENTENCES = 100
_MIN_ROWS = 4
_STARTUP_FACTOR = 4  # of a time that is chosen, to the seconds of start-up
_SAVE_BYTES_PER_SECOND = 1.5e8  # bytes of a checkpoint per second, including checksums and fsync
_SHAPE = {"architecture", "d_model", "d_ff", "n_heads", "n_layers", "experts"}
"""Settings of a model that no ensemble is planned for, as its size is not the one chosen."""
_CHOSEN_BY_TIME = ("training.schedule", "training.optimizer", "parallel.bpe_dropout")

_ADAPTER_RATE = 7e-3
"""Learning rate of low-rank adapters at width 128, on near and distant texts (docs/lab/recipe.md); with 1 / √width."""
_TUNED_EPOCHS, _MAX_TUNED_EPOCHS, _MIN_TUNED_STEPS, _MAX_TUNED_STEPS = 3.0, 10.0, 50, 2000
"""Small data sets are seen more often, until there are enough steps; large ones less often."""
_TUNED_WARMUP, _TUNED_EVALUATIONS, _TUNED_PATIENCE = 0.1, 10, 3
_EXTENSION_RATE = 0.1
"""Minimum learning rate from which an extended run decays, as a fraction of the peak."""


@dataclass(frozen=True)
class Plan:
    """The settings chosen so far.

    Attributes:
        config: settings; open ones have the value of the preset or the default.
        reasons: of each setting, by names such as "training.steps"; "default" for those of the preset too.
        fixed: settings given by the user or by the run that is fine-tuned, by section.
        is_regularised: whether regularisation is chosen from the number of epochs in the budget.
    """

    config: RunConfig
    reasons: Mapping[str, str] = field(default_factory=dict)
    fixed: Settings = field(default_factory=lambda: {section: {} for section in SECTIONS})
    is_regularised: bool = False

    def known_values(self, *, is_open: bool) -> dict[str, Any]:
        """Return the values of settings, such as "lora.rank"; `is_open`: without those that a time still chooses."""
        open_keys = _CHOSEN_BY_TIME if is_open or self.is_regularised else ()
        return {key: value for key, value in setting_values(self.config).items() if key not in open_keys}

    def choose(self, reason: str, **values: Mapping[str, Any]) -> Plan:
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
        differing = [name for name, value in setting_values(config).items() if value != before[name]]
        return dataclasses.replace(self, config=config, reasons={**self.reasons, **dict.fromkeys(differing, reason)})


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
    pairs, is_default = spec.kind == "pairs", spec.preset is None and spec.depth is None
    name = spec.preset or (DEFAULT_TRANSLATION_PRESET if pairs else DEFAULT_PRESET)
    if spec.depth is not None:
        name = depth_preset_name(spec.depth, pairs=pairs)
    inherited = [] if parent is None or spec.tokenizer else ["tokenizer.vocab_size"]
    if parent is not None:
        fixed["model"] = {**parent.model.settings(), **fixed["model"]}
        inherited += [f"model.{field}" for field in fixed["model"]]
    elif spec.portable:
        name = portable_name(name)
    config = build_run_config(name, fixed)
    reasons = {
        **dict.fromkeys(setting_values(config), "default"),
        "preset": "default" if is_default else "given",
        **dict.fromkeys(inherited, "from_run"),
        **spec.set_by,
    }
    is_regularised = parent is None and config.training.budget is not None and not has_training_recipe(name)
    plan = Plan(config, reasons, fixed, is_regularised)
    if parent is None or not is_default or config.lora:
        return plan
    return plan.choose("from_run", training={"optimizer": parent.training.optimizer})


def should_choose_time(spec: RunSpec) -> bool:
    """Whether the training time is chosen: for a new model whose length is not given, except of examples."""
    training = spec.settings["training"]
    has_length = any(training.get(name) is not None for name in LENGTHS)
    has_recipe = spec.preset is not None and has_training_recipe(spec.preset)
    suits_a_time = training.get("schedule", "wsd") == "wsd" and training.get("decay_fraction", 0) < 1
    return spec.from_run is None and spec.kind != "examples" and suits_a_time and not (has_length or has_recipe)


def should_choose_size(spec: RunSpec) -> bool:
    """Whether the model size is chosen from corpus and time, because at most the depth is given."""
    has_time = spec.settings["training"].get("budget") is not None or should_choose_time(spec)
    is_open = spec.preset is None or preset_depth(spec.preset) is not None
    return has_time and is_open and spec.from_run is None


def probe_config(plan: Plan, *, pairs: bool) -> RunConfig:
    """Return the config of the small model whose training speed is measured."""
    config, (depth, tokens) = plan.config, (3, 2048) if pairs else (4, 4096)
    settings: Settings = {"training": {"batch_tokens": tokens}, "model": {"decoder_only": config.model.decoder_only}}
    like = build_run_config(_preset_of_depth(config, depth, pairs=pairs), settings)
    return dataclasses.replace(like, hardware=config.hardware)


def plan_model(
    plan: Plan,
    spec: RunSpec,
    *,
    text_bytes: int,
    flops_per_second: float,
    elapsed: float,
) -> Plan:
    """Choose the training time, if none is given, and the largest model that sees enough tokens in it.

    A time that is enough for several models of a text trains an ensemble, unless other systems are to run the model
    (portable), or it learns from teachers. Small vocabularies of text have inline casing, unless other systems read it.

    Args:
        text_bytes: of UTF-8 text; of both sides of pairs.
        flops_per_second: FLOP/s of training, measured with `probe_config`, of all processes.
        elapsed: seconds of the budget used before; of a chosen time start-up takes at most a quarter.
    """
    before, fixed, is_default = plan.config, plan.fixed, plan.reasons["preset"] == "default"
    pairs = spec.kind == "pairs"
    corpus: dict[str, Any] = {
        "text_bytes": text_bytes, "pairs": pairs, "kind": before.tokenizer.kind,
        "decoder_only": before.model.decoder_only,
    }  # fmt: skip
    if before.training.budget is None:
        parameters = None if is_default else total_parameters(before.model)
        by_corpus = rules.choose_default_seconds(flops_per_second, parameters=parameters, **corpus)
        seconds = max(by_corpus, 60 * math.ceil(_STARTUP_FACTOR * elapsed / 60))
        budget = f"{seconds}s" if seconds % 60 else f"{seconds // 60}m"
        lengths = {**dict.fromkeys(LENGTHS), "budget": budget, "schedule": "wsd"}
        plan = dataclasses.replace(plan.choose("size of the corpus", training=lengths), is_regularised=True)
    if not should_choose_size(spec):
        return plan
    budget, depth = str(plan.config.training.budget), None if is_default else preset_depth(before.preset)
    flops = max(1.0, parse_duration(budget) - elapsed) * flops_per_second
    is_own = spec.kind == "text" and not (_is_portable(before) or before.model.is_masked)
    is_one = not is_own or before.training.teacher or _SHAPE & fixed["model"].keys()
    members = fixed["model"].get("members", 1 if is_one else rules.choose_members(flops, depth=depth, **corpus))
    size = rules.choose_size(flops / members, depth=depth, **corpus)
    chosen = {"training": {"batch_tokens": size.batch_tokens, "budget": budget}, "model": {"members": members}}
    if before.tokenizer.kind == "bpe":
        vocab_size = fixed["tokenizer"].get("vocab_size", size.vocab_size)
        is_cased = is_own and vocab_size <= rules.MAX_CASED_VOCAB_SIZE
        chosen["tokenizer"] = {"vocab_size": vocab_size, "inline_casing": is_cased}
    name = _preset_of_depth(before, size.depth, pairs=pairs)
    config = build_run_config(name, {section: overlay(chosen.get(section, {}), fixed[section]) for section in SECTIONS})
    training = config.training.replace(teacher=before.training.teacher)
    config = dataclasses.replace(config, data=before.data, training=training)  # which don't follow from the size
    by_budget = [f"{section}.{name}" for section in chosen for name in chosen[section].keys() - fixed[section]]
    reasons = {**plan.reasons, **dict.fromkeys(by_budget, "budget"), "training.budget": plan.reasons["training.budget"]}
    if depth is None:
        reasons["preset"] = "budget"
    return Plan(config, reasons, fixed, is_regularised=True)


def plan_corpus(plan: Plan, corpus: TrainingCorpus) -> Plan:
    """Take vocabulary sizes and labels from the corpus; of conversations also the context, that of the longest one.

    Sources with the same token IDs as the targets use the same embedding. BPE dropout is dropped if a tokenizer has no
    merges. A context that is given stays; it is limited by the positions of the model that is fine-tuned, and to a
    quarter of the tokens of a batch.
    """
    config, source, by = plan.config, corpus.source_tokenizer, plan.reasons.get("model.context_length")
    model, is_masked, context = config.model, config.model.is_masked, config.model.context_length
    is_limited = by == "from_run" and (model.position_limit is not None or model.rope_scaling != "none")
    if by in ("default", "budget", "from_run") and not is_limited:
        context = max(context, min(corpus.longest_conversation - 1, batch_rows(config) * context // _MIN_ROWS))
    fitted = dataclasses.replace(
        config,
        model=model.replace(
            context_length=context,
            vocab_size=corpus.vocab_size,
            source_vocab_size=None if source is None or source.has_same_ids(corpus.tokenizer) else source.vocab_size,
            labels=corpus.labels if is_masked and corpus.kind == "examples" else (),
        ),
        tokenizer=config.tokenizer.replace(kind=corpus.tokenizer.kind, inline_casing=bool(corpus.tokenizer.marks)),
        parallel=config.parallel.replace(bpe_dropout=config.parallel.bpe_dropout if corpus.has_merges else 0.0),
        data_kind=corpus.kind,
        label_completions=() if is_masked else corpus.label_completions,
    )
    return plan.replace_config("corpus", fitted)


def plan_length(
    plan: Plan, corpus: TrainingCorpus, data: TrainingData, measured: Measured
) -> tuple[Plan, TrainingSpeed | None, int | None]:
    """Choose what depends on measurements: rates of fine-tuning, evaluations, and regularisation under a budget.

    Returns:
        The plan; the speed with the settings chosen; and the number of steps beyond which a longer budget would only
            overfit, if there is a limit.
    """
    if measured.losses is not None:
        plan = _plan_fine_tuning(plan, data, measured.losses)
    training = plan.config.training
    if training.budget is not None:
        assert measured.speed is not None
        return _plan_budget(plan, corpus, data, measured, measured.speed)
    if measured.losses is None:
        steps = compute_steps(training, data)
        most = {"warmup_steps": steps // 2}
        if not data.holds_pairs:  # whose evaluations translate, which may take longer than the steps
            most["evaluate_every"] = math.ceil(steps / _MIN_EVALUATIONS)
        lower = {name: value for name, value in most.items() if value < getattr(training, name)}
        plan = plan.choose("number of steps", training=lower)
    return plan, None, None


def _plan_fine_tuning(plan: Plan, data: TrainingData, losses: tuple[float | None, float | None, float | None]) -> Plan:
    """Choose learning rate, warm-up and length of a run that starts from another run's weights."""
    fraction, reason = rules.choose_rate_fraction(*losses), "loss on the new data"
    if plan.config.lora:
        fraction, reason = 1.0, "default"
    rate = float(f"{fraction * peak_learning_rate(plan.config):.2g}")
    plan = plan.choose(reason, training={"learning_rate": rate})
    has_length = any(plan.fixed["training"].get(name) is not None for name in LENGTHS)
    if not has_length:
        epochs = min(max(_TUNED_EPOCHS, _MIN_TUNED_STEPS / data.steps_per_epoch), _MAX_TUNED_EPOCHS)
        steps = max(1, min(round(epochs * data.steps_per_epoch), _MAX_TUNED_STEPS))
        plan = plan.choose("size of the new data", training={"steps": steps, "epochs": None, "tokens": None})
    if plan.config.training.budget is not None:
        return plan
    steps = compute_steps(plan.config.training, data)
    rhythm = {
        "warmup_steps": min(plan.config.training.warmup_steps, round(_TUNED_WARMUP * steps)),
        "evaluate_every": max(1, -(-steps // _TUNED_EVALUATIONS)),
        **({} if has_length else {"patience": _TUNED_PATIENCE}),
    }
    return plan.choose("steps of continued training", training=rhythm)


def peak_learning_rate(config: RunConfig) -> float:
    """Return the peak learning rate for training the model, or its adapters, from random weights."""
    width = config.model.d_model
    if config.lora:
        return _ADAPTER_RATE * (128 / width) ** 0.5
    if config.training.optimizer == "muon":
        return muon_learning_rate(width, translates=config.model.translates)
    return adamw_learning_rate(width)


def _plan_budget(
    plan: Plan, corpus: TrainingCorpus, data: TrainingData, measured: Measured, speed: TrainingSpeed
) -> tuple[Plan, TrainingSpeed, int | None]:
    """Choose what depends on the number of steps in a budget.

    Evaluations are spaced so that they are affordable. Regularisation is chosen from the number of epochs; if there are
    enough evaluations to see a plateau, the learning rate decays at the plateau. A text of patterns can be seen more
    often before it is memorised: epochs are multiplied by its novelty, the bits/byte of the best n-gram model as a
    fraction of those of bigrams (nearly 1 for prose, a third for patterns).
    """
    config, bits, max_steps = plan.config, measured.ngram_bits, None
    steps = max(1.0, measured.seconds_left / speed.step_seconds)
    epochs = steps / data.steps_per_epoch
    if measured.train_tokens:
        # a window of the context has a token more than it predicts
        epochs = steps * batch_rows(config) * config.model.context_length / measured.train_tokens
    learns_text = not config.model.is_masked and config.data_kind != "examples" and not data.holds_pairs
    if data.holds_pairs and plan.is_regularised:
        chosen = rules.choose_pair_regularisation(epochs, can_drop_merges=corpus.has_merges)
        plan = plan.choose("epochs in the budget", **chosen)
    elif plan.is_regularised and learns_text:
        novelty = min(bits[1:]) / bits[1] if len(bits) > 1 else 1.0
        if (useful := rules.USEFUL_EPOCHS / novelty / epochs) < 1:
            epochs, steps = epochs * useful, steps * useful
            max_steps = math.ceil(steps)
        chosen = rules.choose_text_regularisation(
            novelty * epochs, steps=steps, learning_rate=config.training.learning_rate, members=config.model.members
        )
        plan = plan.choose("epochs in the budget", **chosen)
    if steps < 10 * plan.config.training.warmup_steps:
        plan = plan.choose("steps in the budget", training={"warmup_steps": round(steps / 10)})
    limit = evaluation_reserve(measured.seconds_left)
    evaluated, seconds = choose_evaluations(plan.config, speed, steps=steps, limit=limit, epochs=epochs)
    interval, watches_loss = evaluated["evaluate_every"], plan.is_regularised and learns_text and data.validation_bytes
    if watches_loss and interval and steps / interval >= _MIN_EVALUATIONS_TO_DECAY:
        evaluated["decay_patience"] = _DECAY_PATIENCE
    plan = plan.choose("time of an evaluation", training=evaluated)
    return plan, speed._replace(evaluation_seconds=seconds), max_steps


def choose_evaluations(
    config: RunConfig, speed: TrainingSpeed, *, steps: float, limit: float, epochs: float = 0.0
) -> tuple[dict[str, Any], float]:
    """Choose the evaluation interval and number of sentences to translate; return them and the seconds per evaluation.

    Args:
        limit: seconds for all evaluations.
        epochs: of the run; one evaluation each if there are many, to see where it begins to overfit.
    """
    seconds, chosen = speed.loss_seconds + training_state_bytes(config) / _SAVE_BYTES_PER_SECOND, dict[str, Any]()
    if speed.sentence_seconds:
        affordable = (limit / _EVALUATIONS_WITH_BLEU - seconds) / speed.sentence_seconds
        sentences = min(config.training.bleu_sentences, max(_MIN_SENTENCES, round(affordable)))
        seconds, chosen = seconds + sentences * speed.sentence_seconds, {"bleu_sentences": sentences}
    number = max(1, min(max(_MAX_EVALUATIONS, round(epochs)), int(limit / seconds)))
    # the last interval is half as long
    chosen["evaluate_every"] = 0 if number == 1 else max(1, math.ceil(steps / (number - 0.5)))
    return chosen, seconds


def add_run_plan(
    plan: Plan,
    spec: RunSpec,
    corpus: TrainingCorpus,
    data: TrainingData,
    hardware: Hardware,
    *,
    tokenizer: str = "",
    processes: int = 1,
    step_seconds: float = 1.0,
    spent: float = 0.0,
    max_steps: int | None = None,
) -> Plan:
    """Add what is fixed for the run: its hardware, number of steps and data.

    Args:
        tokenizer: what the tokenizer was taken of; "" if it was trained.
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
        steps=steps,
        epochs=steps / data.steps_per_epoch,
        max_steps=max_steps,
        data=str(corpus.folder.resolve()),
        data_key=corpus.manifest.key,
        files=tuple(spec.data.names),
        reasons=dict(plan.reasons),
        tokenizer=tokenizer,
        budget_seconds=None if training.budget is None else parse_duration(training.budget),
    )
    return dataclasses.replace(plan, config=dataclasses.replace(plan.config, plan=run_plan))


def compute_steps(config: TrainingConfig, data: TrainingData, *, step_seconds: float = 1.0, spent: float = 0.0) -> int:
    """Return the number of optimizer steps for the configured steps, epochs, tokens or budget.

    For a budget, the rest of it is divided by `step_seconds`.
    """
    if config.budget is not None:
        return max(1, round((parse_duration(config.budget) - spent) / max(step_seconds, 1e-3)))
    epochs = config.epochs if config.tokens is None else config.tokens / data.tokens
    if epochs is not None:
        return max(1, math.ceil(epochs * data.steps_per_epoch))
    assert config.steps is not None
    return config.steps


def _preset_of_depth(config: RunConfig, depth: int, *, pairs: bool) -> str:
    """Return the preset of a depth, portable if that of the config is."""
    name = depth_preset_name(depth, pairs=pairs)
    return portable_name(name) if _is_portable(config) else name


def _is_portable(config: RunConfig) -> bool:
    return (config.preset or "").startswith(PORTABLE)


def extend(
    config: RunConfig,
    state: TrainingState,
    length: TrainingConfig,
    *,
    data: TrainingData,
    spent: float = 0.0,
) -> RunConfig:
    """Return config and plan of a run that is resumed with another length.

    If a decay has started, the learning rate of an extended run continues from its value, or from a tenth of the peak
    if that is higher, instead of jumping back. Unless the user has set them, dropout is chosen if the data are seen
    many times, and evaluations that were spaced for a shorter run are spaced for this one.

    Args:
        state: of the last checkpoint.
        length: with the new steps, epochs or tokens of the whole run, or a budget for the rest of it.
        spent: seconds of that budget used before.
    """
    plan, model = config.plan, config.model
    assert plan is not None
    names = (*LENGTHS, "schedule") if length.budget is not None else LENGTHS
    reasons = plan.reasons | {f"training.{name}": "given" for name in LENGTHS if getattr(length, name) is not None}
    training = config.training.replace(**{name: getattr(length, name) for name in names})
    steps = compute_steps(training, data, step_seconds=state.training_seconds / max(1, state.step), spent=spent)
    changes: dict[str, Any] = {"budget_seconds": None}
    if length.budget is not None:
        steps += state.step
        changes["budget_seconds"] = state.budget_seconds_used + parse_duration(length.budget)
    epochs, by = steps / data.steps_per_epoch, plan.reasons.get("training.evaluate_every")
    if by != "default" and not is_user_given(by):
        rarest = math.ceil((steps - state.step) / _MAX_EVALUATIONS)
        training = training.replace(evaluate_every=max(training.evaluate_every or state.step, rarest))
    if length.budget is not None or plan.budget_seconds is not None or steps > plan.steps:
        peak, total = config.training.learning_rate, plan.steps if plan.budget_seconds is None else None
        rate = learning_rate(state.step, config=config.training, steps=total, decay_start=plan.decay_start)
        is_endless = plan.decay_start is None and training.schedule == "inverse-sqrt"
        # before the decay the schedule can be stretched
        has_decayed = not (is_endless or state.step < config.training.warmup_steps or rate >= peak)
        changes |= {
            "extended_at": state.step, "decay_step": state.step if has_decayed else None,
            "decay_scale": max(rate / peak, _EXTENSION_RATE) if has_decayed else 1.0,
        }  # fmt: skip
        if has_decayed and not is_user_given(plan.reasons.get("model.dropout")):
            dropout = rules.choose_dropout(epochs, pairs=data.holds_pairs, members=model.members)
            model = model.replace(dropout=max(model.dropout, dropout))
    plan = dataclasses.replace(
        plan, steps=steps, epochs=epochs, max_steps=None, on_plateau=False, reasons=reasons, **changes
    )
    return dataclasses.replace(config, model=model, training=training, plan=plan)

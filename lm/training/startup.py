"""Starting and resuming runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypedDict, Unpack

import torch

from lm import checkpoint, run_folder
from lm.adapter_base import find_base_weights, link_base, with_base_hash
from lm.config.run_config import CHANGEABLE_ON_RESUME, SECTIONS, RunConfig, RunPlan
from lm.config.run_spec import is_user_given
from lm.config.settings import LENGTHS
from lm.config.training import TrainingConfig
from lm.data.training_data import TrainingData
from lm.distributed.world import SINGLE_PROCESS, World
from lm.errors import InputError, UsageError
from lm.hardware import MAX_THREADS
from lm.locks import LockFile
from lm.model.lora import load_frozen
from lm.run_folder import TrainingState
from lm.safetensors_io import load_tensors
from lm.training.evaluation import check_samples
from lm.training.initial_weights import check_tokenizers, has_matching_head, load_initial_weights
from lm.training.planning import continued_training, resolve
from lm.training.planning.budget import TrainingSpeed
from lm.training.planning.hardware_selection import select_training_hardware
from lm.training.planning.memory import estimate_micro_batch_tokens
from lm.training.run import Run, RunSetup, Tensors, locked, run_lock
from lm.training.run_log import RunLog
from lm.training.training_corpus import TrainingCorpus, data_key, open_data, source_files, verify_data

_FIXED_PLAN_FIELDS = ("device", "dtype", "optimizer_dtype", "data_key")
"""Fields of a plan that never change during a run."""

Clock = Callable[[], float]


class StartOptions(TypedDict, total=False):
    """Keywords of `start_planned_run` that `start_run` passes on."""

    weights: Tensors | None
    base: Path | None
    speed: TrainingSpeed | None
    spent: float
    reasons: Mapping[str, str]
    adjustable_settings: frozenset[str]
    clock: Clock | None


def plan_run(
    config: RunConfig,
    corpus: TrainingCorpus,
    data: TrainingData,
    *,
    speed: TrainingSpeed | None = None,
    spent: float = 0.0,
    max_steps: int | None = None,
    world: World = SINGLE_PROCESS,
) -> RunConfig:
    """Return the config of a new run with its plan: hardware, dtypes, memory and steps.

    Args:
        config: of the run; vocabulary sizes and labels are taken from the corpus.
        max_steps: limit of the number of steps in a budget.
    """
    config = resolve.fit_to_corpus(config, corpus)
    hardware = (
        select_training_hardware(config, next(data.batch(0).split(config.training.micro_batch_size)))
        if speed is None
        else speed.hardware
    )
    fitted = config.training.micro_batch_size is None
    return resolve.add_plan(
        config,
        hardware,
        data,
        folder=corpus.folder,
        data_key=data_key(corpus.folder),
        micro_batch_tokens=estimate_micro_batch_tokens(config, hardware, processes=world.size) if fitted else None,
        processes=world.size,
        step_seconds=1.0 if speed is None else speed.step_seconds,
        spent=spent,
        max_steps=max_steps,
    )


def start_run(
    folder: Path,
    config: RunConfig,
    corpus: TrainingCorpus,
    *,
    data: TrainingData | None = None,
    max_steps: int | None = None,
    world: World = SINGLE_PROCESS,
    **options: Unpack[StartOptions],
) -> Run:
    """Plan and start a new run; see `plan_run` and `start_planned_run` for the arguments."""
    run_folder.refuse_existing(folder)
    data = data or open_data(corpus.folder, resolve.fit_to_corpus(config, corpus))
    speed, spent = options.get("speed"), options.get("spent", 0.0)
    planned = plan_run(config, corpus, data, speed=speed, spent=spent, max_steps=max_steps, world=world)
    return start_planned_run(folder, planned, corpus, data=data, world=world, **options)


def start_planned_run(
    folder: Path,
    config: RunConfig,
    corpus: TrainingCorpus,
    *,
    data: TrainingData,
    weights: Tensors | None = None,
    base: Path | None = None,
    speed: TrainingSpeed | None = None,
    spent: float = 0.0,
    reasons: Mapping[str, str] = MappingProxyType({}),
    adjustable_settings: frozenset[str] = frozenset(),
    world: World = SINGLE_PROCESS,
    clock: Clock | None = None,
) -> Run:
    """Start a planned run in a new folder, and write down its plan and the reason of each setting.

    Args:
        folder: to be created; InputError if it holds a run or another process is creating one.
        weights: initial weights [default: random]; UsageError if they don't fit the model. They are evaluated before
            the first step, unless a part of the model starts at random.
        base: checkpoint of the base weights, for a run with adapters.
        reasons: of each setting, by name.
        adjustable_settings: training settings that may still be adapted to the measured speed.
        world: the ranks; those other than 0 call `join_run` at the same time.
    """
    if base is not None:
        check_tokenizers(base, corpus.tokenizer, corpus.source_tokenizer)
        config = with_base_hash(config, base)
    is_comparable = weights is not None and has_matching_head(config.model, weights)
    state = TrainingState(evaluation_due=is_comparable and data.validation_bytes > 0)
    setup = RunSetup(
        folder, config, state, corpus, spent,
        speed=speed, adjustable_settings=adjustable_settings, has_weights=weights is not None,
    )  # fmt: skip
    run = _build_run(world.broadcast(setup), world, data=data, weights=weights, clock=clock)
    check_samples(run)
    with locked(run.lock):
        run_folder.refuse_existing(folder)  # again: another process may have created a run meanwhile
        checkpoint.clean_up(folder)
        (folder / run_folder.CHECKPOINTS).mkdir(exist_ok=True)
        if base is not None:
            link_base(folder, base)
        run.log.clear()
        run.log.log_decisions(0, config, reasons)
        run.write_config()
    return run


def resume_run(
    path: Path,
    *,
    new_length: TrainingConfig | None = None,
    data: Path | None = None,
    changed: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    spent: float = 0.0,
    world: World = SINGLE_PROCESS,
    clock: Clock | None = None,
) -> Run:
    """Resume a run from its last or a given checkpoint, as if it had never been interrupted.

    Later checkpoints than the given one, and their logs, are kept until this run has saved its first checkpoint.

    Args:
        new_length: its steps, epochs or tokens replace the run's own; a budget is for the rest of the run. If the last
            checkpoint has overfit, an extended run continues from the weights of the best one; the step count
            continues.
        data: folder of the prepared data, if it was moved.
        changed: new values of settings in `CHANGEABLE_ON_RESUME`, by section.
        spent: seconds of the remaining budget used before.
        world: the ranks; those other than 0 call `join_run` at the same time.

    Raises:
        InputError: there is no such run, it or its data are damaged, or another process is training it.
        UsageError: the run has finished, and no greater length is given.
    """
    folder = run_folder.find_run(path)
    lock = run_lock(folder)
    with locked(lock):
        checkpoint.clean_up(folder)
        RunLog(folder).restore_backup()
        last = run_folder.find_checkpoint(path, which="last")
        run_folder.verify_checkpoint(last)
        before = config = run_folder.load_config(last)
        _refuse_edited(folder, last, config)
        plan, state = _require_plan(config, last), _drop_missing_best(folder, run_folder.load_state(last))
        if state.best_step is not None and last == run_folder.find_checkpoint(folder, which="last"):
            # killed between writing the checkpoint and pointing to it
            checkpoint.set_pointer(run_folder.checkpoint_folder(folder, state.best_step), "best")
        started_on = Path(plan.data)
        if data is not None:
            plan = dataclasses.replace(plan, data=str(data.resolve()))
        _check_data(plan, started_on=started_on)
        training_data = open_data(Path(plan.data), config)
        source, by, overfit = last, "resume", None
        if new_length is not None:
            chosen_by = RunLog(folder).last_reason("model.dropout")
            config, plan = continued_training.extend_run(
                config,
                plan,
                state,
                new_length,
                data=training_data,
                spent=spent,
                can_choose_dropout=not is_user_given(chosen_by),
            )
            if plan.extended_at == state.step and path == folder:
                overfit = continued_training.find_overfit(state, RunLog(folder).last_validation_loss(state.step))
        if overfit is not None:
            source = run_folder.checkpoint_folder(folder, overfit.step)
            run_folder.verify_checkpoint(source)
            state = dataclasses.replace(state, evaluation_due=False)
            by = f"extended from the weights of {source.name}, as {last.name} has overfit"
        parts = {name: dataclasses.replace(getattr(config, name), **fields) for name, fields in changed.items()}
        config = dataclasses.replace(config, **parts)
        _refuse_finished(folder, plan, state, is_longer=new_length is not None)
        if world.size != plan.processes:  # the threads are divided again
            plan = dataclasses.replace(plan, processes=world.size, threads=MAX_THREADS)
        config = dataclasses.replace(config, plan=plan)
        other_branch = run_folder.checkpoints_after(folder, state.step)
        corpus = TrainingCorpus(Path(plan.data), *checkpoint.load_tokenizers(last))
        setup = RunSetup(folder, config, state, corpus, spent, checkpoint=source)
        run = _build_run(
            world.broadcast(setup),
            world,
            data=training_data,
            lock=lock,
            weights=load_tensors(source / run_folder.MODEL),
            optimizer=load_tensors(source / run_folder.OPTIMIZER),
            base=load_tensors(find_base_weights(last, config)) if config.lora else None,
            clock=clock,
        )
        run.log.log_changes(state.step, before, config, by=by)
        run.write_config()
        run.stale_checkpoints, run.overfit_checkpoint = other_branch, overfit
        if other_branch:
            run.log.back_up()
        run.log.truncate(state.step, evaluation_due=state.evaluation_due)
    return run


def join_run(world: World) -> Run:
    """Build the run that rank 0 starts or resumes, on another rank."""
    return _build_run(world.broadcast(None), world)


def _build_run(
    setup: RunSetup,
    world: World,
    *,
    data: TrainingData | None = None,
    lock: LockFile | None = None,
    weights: Tensors | None = None,
    optimizer: Tensors | None = None,
    base: Tensors | None = None,
    clock: Clock | None = None,
) -> Run:
    """Build a run with its weights, which rank 0 broadcasts; collective.

    Args:
        lock: of the run, if it is held already.
        weights: initial weights, or those of a checkpoint.

    Raises:
        UsageError: weights of another run don't fit.
        InputError: weights of a checkpoint don't fit.
    """
    data = data or open_data(setup.corpus.folder, setup.config)
    run = Run(setup, data=data, lock=lock, world=world, clock=clock)
    if setup.has_weights:
        load_initial_weights(run, world.broadcast_tensors(weights))
    if setup.checkpoint is not None:
        frozen = world.broadcast_tensors(base) if setup.config.lora else {}
        weights, optimizer = world.broadcast_tensors(weights), world.broadcast_tensors(optimizer)
        try:
            if frozen:
                load_frozen(run.model, frozen)
            run.restore(weights, optimizer)
        except torch.OutOfMemoryError:
            raise
        except (KeyError, RuntimeError):
            wrong = "its weights are not of this run's model; resume from another checkpoint"
            raise InputError(f"{setup.checkpoint}: {wrong}") from None
    return run


def _require_plan(config: RunConfig, checkpoint: Path) -> RunPlan:
    """Return the plan of a run; InputError if it has none, like an average of checkpoints."""
    if config.plan is None:
        wrong = "has no plan, so this run cannot be resumed; start a new one from its weights"
        raise InputError(f"{checkpoint / run_folder.CONFIG}: {wrong}")
    return config.plan


def _check_data(plan: RunPlan, *, started_on: Path) -> None:
    """Raise InputError unless the data are those that the run was started on."""
    again = "name its corpus again"
    if not Path(plan.data).is_dir():
        raise InputError(f"{plan.data}: the tokens of this run are gone; {again}")
    if data_key(Path(plan.data)) == plan.data_key:
        verify_data(Path(plan.data), advice=again)
        return
    if started_on == Path(plan.data):
        raise InputError(f"{plan.data}: not the tokens that this run was started on; {again}")
    other = ", ".join(source_files(Path(plan.data))[:3])
    if started_on.is_dir() and data_key(started_on) == plan.data_key:
        again = f"that was {', '.join(source_files(started_on)[:3])}, and resuming needs no corpus"
    again = f"{again}; for another corpus, start a new run from the weights"
    raise InputError(f"{other}: not the corpus that this run was started on; {again}")


def _refuse_finished(run: Path, plan: RunPlan, state: TrainingState, *, is_longer: bool) -> None:
    """Raise UsageError if no steps are left."""
    if plan.budget_seconds is None and state.step >= plan.steps and not state.evaluation_due:
        raise UsageError(f"{run}: finished after {state.step} steps; give more to train on")
    if state.finished and not is_longer:
        ended = f"ended after {state.step} of {plan.steps} steps, when patience ran out"
        raise UsageError(f"{run}: {ended}; give more to train on all the same")


def _drop_missing_best(run: Path, state: TrainingState) -> TrainingState:
    """Return the state without its best scores if the best checkpoint is missing."""
    if state.best_step in [run_folder.checkpoint_step(folder) for folder in run_folder.list_checkpoints(run)]:
        return state
    return dataclasses.replace(state, best_loss=None, best_bleu=None, best_step=None)


def _refuse_edited(run: Path, checkpoint: Path, config: RunConfig) -> None:
    """Raise InputError if the config in the run folder differs from that of the checkpoint.

    Length and hardware may differ: a resumed run writes them before its first checkpoint. With the length, schedule and
    dropout may change.
    """
    path, restore = (
        run / run_folder.CONFIG,
        f"restore it: cp {checkpoint / run_folder.CONFIG} {run / run_folder.CONFIG}",
    )
    if not path.exists():
        return
    try:
        now = run_folder.load_config(run)
    except InputError as error:
        raise InputError(f"{error}; {restore}") from None
    length = {name for name in LENGTHS if getattr(now.training, name) != getattr(config.training, name)}
    changeable = {section: {*names} for section, names in CHANGEABLE_ON_RESUME.items()}
    changeable["training"] |= {*LENGTHS, *(("schedule",) if length else ())}
    changeable["model"] = {"dropout"} if length else set()
    fields = [
        (section, field.name)
        for section, kind in SECTIONS.items()
        for field in dataclasses.fields(kind)
        if field.name not in changeable.get(section, ())
    ]
    if now.plan is not None and config.plan is not None:
        fields += [("plan", name) for name in _FIXED_PLAN_FIELDS]
    differing = [
        f"{section}.{name} is {ours!r} and was {theirs!r}"
        for section, name in fields
        for ours, theirs in [(getattr(getattr(saved, section), name) for saved in (now, config))]
        if ours != theirs
    ]
    if differing:
        problem = "differs from the settings that the run was started with"
        raise InputError(f"{path}: {problem}: {'; '.join(differing)}; {restore}, or start a new run")

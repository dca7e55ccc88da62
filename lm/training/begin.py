"""How a run begins: new, with random weights or another run's, or resumed from a checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypedDict, Unpack

import torch

from lm import checkpoint, run_folder
from lm.base import adapting, base_weights, keep_weights, refer
from lm.config.run import CHANGEABLE_ON_RESUME, SECTIONS, RunConfig, RunPlan
from lm.config.run_spec import is_user_given
from lm.config.training import LENGTHS, TrainingConfig
from lm.data.training_data import TrainingData
from lm.distributed.world import ALONE, World
from lm.errors import InputError, UsageError
from lm.hardware import MOST_THREADS
from lm.locks import LockFile
from lm.model.lora import load_frozen
from lm.run_folder import TrainingState
from lm.tensors import load_tensors
from lm.training import continuation, resolve
from lm.training.arithmetic import training_hardware
from lm.training.budget import Pace
from lm.training.corpus import TrainingCorpus, data_files, data_key, open_data, verify
from lm.training.evaluation import check_samples
from lm.training.initial_weights import check_tokenizers, has_head_of, start_from
from lm.training.journal import Journal
from lm.training.memory import fitting_tokens
from lm.training.run import Run, RunSetup, Tensors, claimed, lock_of

_SETTLED = ("device", "dtype", "optimizer_dtype", "data_key")
"""What of a plan stays the same from the start of a run to its end."""

Now = Callable[[], float]


class StartOptions(TypedDict, total=False):
    """Keywords of `start_planned` that `start` passes on."""

    weights: Tensors | None
    base: Path | None
    pace: Pace | None
    spent: float
    reasons: Mapping[str, str]
    open_settings: frozenset[str]
    now: Now | None


def plan(
    config: RunConfig,
    corpus: TrainingCorpus,
    data: TrainingData,
    *,
    pace: Pace | None = None,
    spent: float = 0.0,
    world: World = ALONE,
) -> RunConfig:
    """Return the settings of a new run with its plan: hardware, arithmetic, memory and steps.

    Args:
        config: what to train; the vocabulary sizes are taken from the tokenizers, labels from the examples.
        corpus: what to learn from.
        data: the same, open.
        pace: how fast the run goes, where that was measured, as a budget wants it.
        spent: seconds of a budget that are gone already.
        world: the processes that train the run.
    """
    config = resolve.fit_to_corpus(config, corpus)
    hardware = (
        training_hardware(config, next(data.batch(0).split(config.training.micro_batch_size)))
        if pace is None
        else pace.hardware
    )
    fitted = config.training.micro_batch_size is None
    return resolve.plan(
        config,
        hardware,
        data,
        folder=corpus.folder,
        data_key=data_key(corpus.folder),
        micro_batch_tokens=fitting_tokens(config, hardware, processes=world.size) if fitted else None,
        processes=world.size,
        step_seconds=1.0 if pace is None else pace.step,
        spent=spent,
    )


def start(
    folder: Path,
    config: RunConfig,
    corpus: TrainingCorpus,
    *,
    data: TrainingData | None = None,
    world: World = ALONE,
    **options: Unpack[StartOptions],
) -> Run:
    """Plan a new run and start it in a folder of its own; see `plan` and `start_planned` for the arguments."""
    run_folder.refuse_existing(folder)
    data = data or open_data(corpus.folder, resolve.fit_to_corpus(config, corpus))
    planned = plan(config, corpus, data, pace=options.get("pace"), spent=options.get("spent", 0.0), world=world)
    return start_planned(folder, planned, corpus, data=data, world=world, **options)


def start_planned(
    folder: Path,
    config: RunConfig,
    corpus: TrainingCorpus,
    *,
    data: TrainingData,
    weights: Tensors | None = None,
    base: Path | None = None,
    pace: Pace | None = None,
    spent: float = 0.0,
    reasons: Mapping[str, str] = MappingProxyType({}),
    open_settings: frozenset[str] = frozenset(),
    world: World = ALONE,
    now: Now | None = None,
) -> Run:
    """Start a planned run in a folder of its own; its plan and what chose its settings are written down.

    Args:
        folder: to be made; InputError if it holds a run already or another process is about to make one there.
        config: what to train, with its plan.
        corpus: what to learn from.
        data: the same, open.
        weights: to start from, instead of random ones; UsageError if they don't fit the model. Unless a part of the
            model starts at random all the same, they are evaluated before the first step, and are the first best.
        base: the checkpoint that they are of, where the run has adapters to them.
        pace: how fast the run goes, where that was measured, as a budget wants it.
        spent: seconds of a budget that are gone already.
        reasons: what chose each setting, by its name.
        open_settings: those of training that may be chosen again once the pace is known better.
        world: the processes that train the run; in the others, `follow` builds it at the same time.
        now: the clock of a budget.
    """
    if base is not None:
        check_tokenizers(base, corpus.tokenizer, corpus.source_tokenizer)
        config = adapting(config, base)
    is_comparable = weights is not None and has_head_of(config.model, weights)
    state = TrainingState(evaluation_due=is_comparable and data.validation_bytes > 0)
    setup = RunSetup(
        folder, config, state, corpus, spent,
        pace=pace, open_settings=open_settings, has_weights=weights is not None,
    )  # fmt: skip
    run = _built(world.told(setup), world, data=data, weights=weights, now=now)
    check_samples(run)
    with claimed(run.lock):
        run_folder.refuse_existing(folder)  # again: another process may have been faster
        checkpoint.remove_leftovers(folder)
        (folder / run_folder.CHECKPOINTS).mkdir(exist_ok=True)
        if base is not None:
            refer(folder, base)
        run.journal.clear()
        run.journal.decide(0, config, reasons)
        run.write_config()
    return run


def resume(
    path: Path,
    *,
    longer: TrainingConfig | None = None,
    data: Path | None = None,
    changed: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    spent: float = 0.0,
    world: World = ALONE,
    now: Now | None = None,
) -> Run:
    """Resume a run from its last checkpoint (or the one given), as if it had never stopped.

    Where that is an older checkpoint, those after it belong to another branch from now on. They stay until this branch
    has saved something, and so does the journal: a run that is killed before that has lost nothing.

    Args:
        path: a run folder, or one of its checkpoints; those after it go as soon as this run saves again.
        longer: steps, epochs or tokens of this replace the run's own length; a budget is for what is still to come.
            Where the last checkpoint has overfit, an extended run, and not one of its checkpoints, continues with
            the weights of its best one; steps and samples are counted on, so that all checkpoints stay as they are.
        data: folder of the prepared data, where they are no longer where the run's plan says.
        changed: by section, settings of `CHANGEABLE_ON_RESUME` that are not as before; losses differ by rounding then.
        spent: seconds that are gone already of what a run under a budget has left.
        world: the processes that train the run from now on; in the others, `follow` builds it at the same time.
        now: the clock of a budget.

    Raises:
        InputError: there is no such run, it or its data are damaged, or another process is training it.
        UsageError: it has finished, and no greater length is given.
    """
    folder = run_folder.run_of(path)
    lock = lock_of(folder)
    with claimed(lock):
        checkpoint.remove_leftovers(folder)
        Journal(folder).restore()
        found = run_folder.find_checkpoint(path, which="last")
        run_folder.verify(found)
        before = config = run_folder.load_config(found)
        _refuse_edited(folder, found, config)
        plan, state = _plan(config, found), _without_lost_best(folder, run_folder.load_state(found))
        if state.best_step is not None and found == run_folder.find_checkpoint(folder, which="last"):
            checkpoint.point_to(run_folder.checkpoint_folder(folder, state.best_step), "best")
        plan = _with_data(plan, data, run=folder)
        opened = open_data(Path(plan.data), config)
        source, by, overfit = found, "resume", None
        if longer is not None:
            chosen_by = Journal(folder).chosen_by("model.dropout")
            config, plan = continuation.prolong(
                config, plan, state, longer, data=opened, spent=spent, may_drop=not is_user_given(chosen_by)
            )
            if plan.extended_at == state.step and path == folder:
                overfit = continuation.overfit(state, Journal(folder).validation_loss(state.step))
        if overfit is not None:
            source = run_folder.checkpoint_folder(folder, overfit.step)
            run_folder.verify(source)
            state = dataclasses.replace(state, evaluation_due=False)
            by = f"extended from the weights of {source.name}, as {found.name} has overfit"
        parts = {name: dataclasses.replace(getattr(config, name), **fields) for name, fields in changed.items()}
        config = dataclasses.replace(config, **parts)
        _refuse_finished(folder, plan, state, is_longer=longer is not None)
        config = dataclasses.replace(config, plan=_shared_by(world, plan))
        other_branch = run_folder.later_than(folder, state.step)
        corpus = TrainingCorpus(Path(plan.data), *checkpoint.load_tokenizers(found))
        setup = RunSetup(folder, config, state, corpus, spent, checkpoint=source)
        run = _built(
            world.told(setup),
            world,
            data=opened,
            lock=lock,
            weights=load_tensors(source / run_folder.MODEL),
            optimizer=load_tensors(source / run_folder.OPTIMIZER),
            base=load_tensors(keep_weights(folder, base_weights(found, config))) if config.lora else None,
            now=now,
        )
        run.journal.revise(state.step, before, config, by=by)
        run.write_config()
        run.other_branch, run.overfit = other_branch, overfit
        if other_branch:
            run.journal.set_aside()
        run.journal.forget_after(state.step, evaluation_due=state.evaluation_due)
    return run


def follow(world: World) -> Run:
    """The run that the first process starts or resumes, in one that follows it."""
    return _built(world.told(None), world)


def _built(
    setup: RunSetup,
    world: World,
    *,
    data: TrainingData | None = None,
    lock: LockFile | None = None,
    weights: Tensors | None = None,
    optimizer: Tensors | None = None,
    base: Tensors | None = None,
    now: Now | None = None,
) -> Run:
    """The run of a set-up with its weights, which the first process has and broadcasts.

    Args:
        setup: what to build.
        world: all processes of the run, which build it at the same time.
        data: that the run learns from, if they are open.
        lock: of the run, if it is held already.
        weights: to start from, of another run or a checkpoint.
        optimizer: the state of the optimizers, of a checkpoint.
        base: what the adapters of a checkpoint belong to, if it has some.
        now: the clock of a budget.

    Raises:
        UsageError: weights of another run don't fit.
        InputError: those of a checkpoint don't.
    """
    data = data or open_data(setup.corpus.folder, setup.config)
    run = Run(setup, data=data, lock=lock, world=world, now=now)
    if setup.has_weights:
        start_from(run, world.told_tensors(weights))
    if setup.checkpoint is not None:
        frozen = world.told_tensors(base) if setup.config.lora else {}
        weights, optimizer = world.told_tensors(weights), world.told_tensors(optimizer)
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


def _plan(config: RunConfig, found: Path) -> RunPlan:
    """The plan of a run; InputError where it has none, as the mean of several checkpoints."""
    if config.plan is None:
        wrong = "has no plan, so this run cannot be resumed; start a new one from its weights"
        raise InputError(f"{found / run_folder.CONFIG}: {wrong}", settings=("from_run",))
    return config.plan


def _with_data(plan: RunPlan, data: Path | None, *, run: Path) -> RunPlan:
    """The plan with the data where they are now; InputError unless they are those that the run was started on."""
    moved = plan if data is None else dataclasses.replace(plan, data=str(data.resolve()))
    _check_data(run, moved, started_on=Path(plan.data))
    return moved


def _check_data(run: Path, plan: RunPlan, *, started_on: Path) -> None:
    """The tokens must be those that the run was started on, or its order of windows would mean others."""
    again, settings = "name its corpus again", (f"resume={run}",)
    if not Path(plan.data).is_dir():
        raise InputError(f"{plan.data}: the tokens of this run are gone; {again}", settings=settings)
    if data_key(Path(plan.data)) == plan.data_key:
        verify(Path(plan.data), advice=again, settings=settings)
        return
    if started_on == Path(plan.data):
        raise InputError(f"{plan.data}: not the tokens that this run was started on; {again}", settings=settings)
    other = ", ".join(data_files(Path(plan.data))[:3])
    if started_on.is_dir() and data_key(started_on) == plan.data_key:
        again = f"that was {', '.join(data_files(started_on)[:3])}, and resuming needs no corpus"
    raise InputError(f"{other}: not the corpus that this run was started on; {again}", settings=settings)


def _refuse_finished(run: Path, plan: RunPlan, state: TrainingState, *, is_longer: bool) -> None:
    """UsageError if a run has come to its end, and none of its steps is left to take."""
    if plan.deadline is None and state.step >= plan.steps and not state.evaluation_due:
        raise UsageError(f"{run}: finished after {state.step} steps; give more to train on", settings=("steps",))
    if state.finished and not is_longer:
        ended = f"ended after {state.step} of {plan.steps} steps, when patience ran out"
        raise UsageError(f"{run}: {ended}; give more to train on all the same", settings=("steps",))


def _shared_by(world: World, plan: RunPlan) -> RunPlan:
    """The plan for as many processes as there are now: where others began, each has its share of the threads here."""
    if world.size == plan.processes:
        return plan
    return dataclasses.replace(plan, processes=world.size, threads=MOST_THREADS)


def _without_lost_best(run: Path, state: TrainingState) -> TrainingState:
    """The state of a run that is resumed: where its best checkpoint is gone, the next evaluation is the best so far."""
    if state.best_step in [run_folder.step_of(folder) for folder in run_folder.checkpoints(run)]:
        return state
    return dataclasses.replace(state, best_loss=None, best_bleu=None, best_step=None)


def _refuse_edited(run: Path, found: Path, config: RunConfig) -> None:
    """InputError if the settings in a run's folder are not those of the checkpoint that it resumes from.

    How long the run is and how it is computed may differ: a resumed run writes that before its first checkpoint. The
    schedule changes with a budget, and dropout with the length.
    """
    path, restore = run / run_folder.CONFIG, f"restore it: cp {found / run_folder.CONFIG} {run / run_folder.CONFIG}"
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
    places = [
        (section, each.name)
        for section, kind in SECTIONS.items()
        for each in dataclasses.fields(kind)
        if each.name not in changeable.get(section, ())
    ]
    if now.plan is not None and config.plan is not None:
        places += [("plan", name) for name in _SETTLED]
    differing = [
        f"{section}.{name} is {ours!r} and was {theirs!r}"
        for section, name in places
        for ours, theirs in [(getattr(getattr(each, section), name) for each in (now, config))]
        if ours != theirs
    ]
    if differing:
        problem = "differs from the settings that the run was started with"
        raise InputError(f"{path}: {problem}: {'; '.join(differing)}; {restore}, or start a new run")

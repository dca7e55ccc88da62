"""A run in progress: started with a plan, or resumed as if it had never stopped."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lm import checkpoint, files
from lm.checkpoint import TrainingState
from lm.config import durations
from lm.config.model import ModelConfig
from lm.config.options import options
from lm.config.run import Plan, RunConfig
from lm.config.training import LENGTHS, TrainingConfig
from lm.data.batch import TrainingData
from lm.data.training_data import data_files, data_key, open_data
from lm.errors import InputError, TrainingError, UsageError
from lm.hardware import Hardware
from lm.locks import LockFile
from lm.model.transformer import build_model
from lm.optimization.moving_average import MovingAverage
from lm.optimization.optimizers import make_optimizers, optimizer_tensors, restore_optimizers
from lm.optimization.schedules import learning_rate, steps_for
from lm.tokenizer.tokenizer import Tokenizer
from lm.training.ahead import Ahead
from lm.training.arithmetic import training_hardware
from lm.training.budget import Clock
from lm.training.compiling import compiled
from lm.training.journal import Journal
from lm.training.objective import final_states

_TRAINED = "trained."
"""In the optimizer's file, before the names of the weights that are trained while their average is the model."""


class Run:
    """A run in progress: model, optimizer, data and how far it has come. Made by `start` or `resume`.

    Attributes:
        other_branch: checkpoints later than the one gone on with, which go as soon as this run has saved its own.
        lock: held from the start to the end of training.
    """

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        plan: Plan,
        state: TrainingState,
        *,
        data: TrainingData,
        tokenizer: Tokenizer,
        source_tokenizer: Tokenizer | None,
        lock: LockFile | None = None,
        spent: float,
        pause: float = 0.0,
    ) -> None:
        self.other_branch: list[Path] = []
        self.lock = LockFile(folder / checkpoint.LOCK) if lock is None else lock
        self.folder, self.config, self.plan, self.state, self.data = folder, config, plan, state, data
        self.tokenizer, self.source_tokenizer = tokenizer, source_tokenizer
        self.hardware = Hardware(plan.device, plan.dtype, plan.threads, plan.optimizer_dtype)
        torch.set_num_threads(plan.threads)
        device = self.hardware.torch_device
        self.model = build_model(config.model, seed=config.training.seed).to(device)
        self.states = compiled(self.model, device) if config.training.compile else final_states(self.model)
        self.optimizers = make_optimizers(self.model, config.training, dtype=self.hardware.torch_optimizer_dtype)
        decay = config.training.ema
        self.average = MovingAverage(self.model, decay=decay) if decay else None
        self.data.plan(plan.steps)
        self.ahead = Ahead(data) if plan.device == "cuda" else None
        left = None if plan.deadline is None else plan.deadline - state.elapsed - spent
        self.clock = None if left is None else Clock(left, spent=spent, pause=pause)

    @property
    def is_complete(self) -> bool:
        """Whether the last step has been taken."""
        return self.plan.deadline is None and self.state.step >= self.plan.steps

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        steps = self.plan.steps if self.plan.deadline is None else None
        return learning_rate(self.state.step, config=self.config.training, steps=steps, falls_from=self.plan.falls_from)

    def settle_length(self) -> bool:
        """Under a budget, make the number of steps final if the decay has to begin now; returns whether it does.

        In a decay that would end far too soon or too late, since the machine is busier than it was or less so, the end
        is moved, and the learning rate falls from where it is.
        """
        if self.clock is None:
            return False
        step, training = self.state.step, self.config.training
        if begins := self.plan.deadline is not None:
            steps, share = self.clock.steps_in_all(step, config=training), 1.0
        else:
            steps = self.clock.moved_end(step, self.plan.steps, config=training)
            share = self.rate / training.learning_rate if training.learning_rate else 1.0
        if steps is None:
            return False
        self._settle(dataclasses.replace(self.plan, steps=steps, deadline=None, decay_step=step, decay_share=share))
        return begins

    def _settle(self, plan: Plan) -> None:
        self.plan = plan
        self.config = dataclasses.replace(self.config, plan=plan)
        self.data.plan(plan.steps)
        if self.ahead is not None:
            self.ahead.forget()
        files.write_json(self.folder / checkpoint.CONFIG, self.config.to_dict())

    @property
    def epoch(self) -> float:
        """Passes over the training split so far."""
        return self.state.samples / self.data.samples


def claim(lock: LockFile) -> None:
    """Keep other processes from training a run until its lock is released; InputError if one is at it already."""
    try:
        lock.acquire()
    except BlockingIOError:
        raise InputError(
            f"{lock.path.parent}: another process is training this run; wait for it to end, or use another folder"
        ) from None


@contextmanager
def _claimed(lock: LockFile) -> Iterator[None]:
    """Claim a lock, and keep it beyond the block, unless that fails."""
    claim(lock)
    with ExitStack() as stack:
        stack.callback(lock.release)
        yield
        stack.pop_all()


def refuse_trained(folder: Path) -> None:
    """InputError if another process trains in a folder just now; `start` says so too, but only when all is prepared."""
    lock = LockFile(folder / checkpoint.LOCK)
    if lock.path.exists():
        claim(lock)
        lock.release()


def start(
    folder: Path,
    config: RunConfig,
    tokenizer: Tokenizer,
    data: Path,
    *,
    opened: TrainingData | None = None,
    source_tokenizer: Tokenizer | None = None,
    weights: Mapping[str, Tensor] | None = None,
    spent: float = 0.0,
    pace: float = 1.0,
    pause: float = 0.0,
    hardware: Hardware | None = None,
) -> Run:
    """A new run in a folder of its own, its plan written down.

    Args:
        folder: to be made; InputError if it holds a run already or another process is about to make one there.
        config: what to train; the vocabulary size is taken from the tokenizer.
        tokenizer: that made the data; of the targets, where sources have their own.
        data: folder of the prepared data.
        opened: the same, if they are open already.
        source_tokenizer: of the sources of an encoder-decoder, if they have their own.
        weights: to start from, instead of random ones; UsageError if they don't fit the model.
        spent: seconds of a budget that are gone already.
        pace: seconds that a step takes, about; for a budget.
        pause: seconds that it takes to evaluate and save, about; for a budget.
        hardware: what to train on, where that was measured already.
    """
    checkpoint.refuse_existing(folder)
    model = dataclasses.replace(
        config.model,
        vocab_size=tokenizer.vocab_size,
        source_vocab_size=None if source_tokenizer is None else source_tokenizer.vocab_size,
    )
    config = dataclasses.replace(config, model=model)
    opened = opened or open_data(data, config)
    if hardware is None:
        hardware = training_hardware(config, next(opened.batch(0).split(config.training.micro_batch_size)))
    plan = Plan(
        **vars(hardware),
        steps=planned_steps(config.training, opened, pace=pace, spent=spent),
        data=str(data.resolve()),
        data_key=data_key(data),
        deadline=None if config.training.budget is None else durations.seconds(config.training.budget),
    )
    config = dataclasses.replace(config, plan=plan)
    run = Run(
        folder,
        config,
        plan,
        TrainingState(),
        data=opened,
        tokenizer=tokenizer,
        source_tokenizer=source_tokenizer,
        spent=spent,
        pause=pause,
    )
    if weights is not None:
        _load_weights(run, weights)
    with _claimed(run.lock):
        checkpoint.refuse_existing(folder)  # again: another process may have been faster
        checkpoint.remove_leftovers(folder)
        (folder / "checkpoints").mkdir(exist_ok=True)
        files.write_json(folder / checkpoint.CONFIG, config.to_dict())
        Journal(folder).settle()
        Journal(folder).forget_after(0)
    return run


def check_weights(model: ModelConfig, path: Path) -> None:
    """UsageError unless a model can start from the weights of a run or checkpoint, their vocabularies aside."""
    theirs = checkpoint.load_config(checkpoint.find_checkpoint(path)).model
    ours = dataclasses.replace(model, vocab_size=theirs.vocab_size, source_vocab_size=theirs.source_vocab_size)
    if _shapes(ours) == _shapes(theirs):
        return
    differing = [
        f"{described.name} is {getattr(ours, described.name)} here and {getattr(theirs, described.name)} in {path} "
        f"({described.flag})"
        for described in options(ModelConfig)
        if _reshapes(theirs, {described.name: getattr(ours, described.name)})
    ]
    raise UsageError(f"the weights to start from don't fit this model: {'; '.join(differing)}")


def _shapes(model: ModelConfig) -> dict[str, torch.Size]:
    with torch.device("meta"):
        return {name: value.shape for name, value in build_model(model).state_dict().items()}


def _reshapes(model: ModelConfig, change: dict[str, Any]) -> bool:
    """Whether a model's weights have other shapes with a setting changed."""
    try:
        return _shapes(dataclasses.replace(model, **change)) != _shapes(model)
    except UsageError:  # it goes only with another setting that differs too
        return True


def _load_weights(run: Run, weights: Mapping[str, Tensor]) -> None:
    try:
        run.model.load_state_dict(weights)
    except RuntimeError as error:
        problem = str(error).splitlines()[-1].strip()
        raise UsageError(f"the weights to start from don't fit this model: {problem} (--from, --tokenizer)") from None
    if run.average is not None:
        run.average.load(weights)


def resume(
    path: Path,
    *,
    longer: TrainingConfig | None = None,
    data: Path | None = None,
    compiled: bool | None = None,
    spent: float = 0.0,
) -> Run:
    """Go on with a run from its last checkpoint (or the one given), as if it had never stopped.

    Args:
        path: a run folder, or one of its checkpoints; those after it go as soon as this run saves again.
        longer: steps, epochs or tokens of this replace the run's own length; a budget is for what is still to come.
        data: the shards, where they are no longer where the run's plan says.
        compiled: whether to compile the model, if not as before; losses differ by rounding then.
        spent: seconds that are gone already of what a run under a budget has left.

    Raises:
        InputError: there is no such run, it or its data are damaged, or another process is training it.
        UsageError: it has finished, and no greater length is given.
    """
    folder = _run_of(path)
    lock = LockFile(folder / checkpoint.LOCK)
    with _claimed(lock):
        checkpoint.remove_leftovers(folder)
        Journal(folder).restore()
        found = checkpoint.find_checkpoint(path, which="last")
        return _resumed(found, lock, longer=longer, data=data, compiled=compiled, spent=spent)


def _run_of(path: Path) -> Path:
    """The folder of the run that a path names, or a checkpoint of which it names; InputError if there is none."""
    if (path / "checkpoints").is_dir():
        return path
    found = checkpoint.find_checkpoint(path, which="last")
    if found.parent.name != "checkpoints":
        raise InputError(f"{path}: not in the checkpoints/ of a run; --resume takes a run or a checkpoint in one")
    return found.parent.parent


def _resumed(
    found: Path,
    lock: LockFile,
    *,
    longer: TrainingConfig | None,
    data: Path | None,
    compiled: bool | None,
    spent: float,
) -> Run:
    checkpoint.verify(found)
    config = checkpoint.load_config(found)
    if config.plan is None:
        raise InputError(f"{found / checkpoint.CONFIG}: has no plan, so this run cannot be resumed")
    folder, state, plan = found.parent.parent, checkpoint.load_state(found), config.plan
    if data is not None:
        plan = dataclasses.replace(plan, data=str(data.resolve()))
    _check_data(folder, plan, started_on=Path(config.plan.data))
    opened = open_data(Path(plan.data), config)
    if longer is not None:
        lengths = {name: getattr(longer, name) for name in LENGTHS}
        if longer.budget is not None:
            lengths["schedule"] = longer.schedule  # the one that goes with a budget
        config = dataclasses.replace(config, training=dataclasses.replace(config.training, **lengths))
        pace = state.seconds / max(1, state.step)
        steps = planned_steps(config.training, opened, pace=pace, spent=spent)
        deadline = None
        if longer.budget is not None:
            steps, deadline = state.step + steps, state.elapsed + durations.seconds(longer.budget)
        plan = dataclasses.replace(plan, steps=steps, deadline=deadline, decay_step=None, decay_share=1.0)
    if compiled is not None:
        config = dataclasses.replace(config, training=dataclasses.replace(config.training, compile=compiled))
    if plan.deadline is None and state.step >= plan.steps and not state.evaluation_due:
        raise UsageError(f"{folder}: finished after {state.step} steps; give a larger --steps to train on")
    if state.finished and longer is None:
        ended = f"ended after {state.step} of {plan.steps} steps, when --patience ran out"
        raise UsageError(f"{folder}: {ended}; give --steps to train on all the same")
    tokenizer, source_tokenizer = checkpoint.load_tokenizers(found)
    run = Run(
        folder,
        dataclasses.replace(config, plan=plan),
        plan,
        state,
        data=opened,
        tokenizer=tokenizer,
        source_tokenizer=source_tokenizer,
        lock=lock,
        spent=spent,
    )
    weights, optimizer = (checkpoint.load_tensors(found / name) for name in (checkpoint.MODEL, checkpoint.OPTIMIZER))
    try:
        _restore(run, weights, optimizer)
    except torch.OutOfMemoryError:
        raise
    except (KeyError, RuntimeError):
        raise InputError(f"{found}: its weights are not of this run's model; go on from another checkpoint") from None
    files.write_json(folder / checkpoint.CONFIG, run.config.to_dict())
    _branch(run)
    Journal(folder).forget_after(state.step, evaluation_due=state.evaluation_due)
    return run


def _branch(run: Run) -> None:
    """Where a run goes on from an older checkpoint, note which ones belong to another branch from now on.

    They stay until this branch has saved something, and so does the journal: a run that is killed before that has lost
    nothing. Where the best so far is gone, this branch finds its own.
    """
    run.other_branch = checkpoint.later_than(run.folder, run.state.step)
    if not run.other_branch:
        return
    Journal(run.folder).set_aside()
    if run.state.best_step not in [checkpoint.step_of(folder) for folder in checkpoint.complete(run.folder)]:
        run.state = dataclasses.replace(run.state, best_loss=None, best_bleu=None, best_step=None)


def _restore(run: Run, weights: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]) -> None:
    """Put back what `save` wrote: where there is a moving average, that is the model on the disk."""
    if run.average is not None:
        run.average.load(weights)
        weights = {name: optimizer[_TRAINED + name] for name in weights}
    run.model.load_state_dict(weights)
    restore_optimizers(run.optimizers, run.model, optimizer)


def _check_data(run: Path, plan: Plan, *, started_on: Path) -> None:
    """The tokens must be those that the run was started on, or its order of windows would mean others."""
    again = f"name its corpus again: lm train CORPUS --resume {run}"
    if not Path(plan.data).is_dir():
        raise InputError(f"{plan.data}: the tokens of this run are gone; {again}")
    if data_key(Path(plan.data)) == plan.data_key:
        return
    if started_on == Path(plan.data):
        raise InputError(f"{plan.data}: not the tokens that this run was started on; {again}")
    other = ", ".join(data_files(Path(plan.data))[:3])
    if started_on.is_dir() and data_key(started_on) == plan.data_key:
        again = f"that was {', '.join(data_files(started_on)[:3])}, and lm train --resume {run} needs no corpus"
    raise InputError(f"{other}: not the corpus that this run was started on; {again}")


def planned_steps(config: TrainingConfig, data: TrainingData, *, pace: float, spent: float = 0.0) -> int:
    """How many optimizer steps the steps, epochs or tokens asked for come to.

    A budget comes to what is left of it, at so many seconds a step.
    """
    epochs = config.epochs if config.tokens is None else config.tokens / data.tokens
    if epochs is not None:
        return max(1, steps_for(epochs * data.steps_per_epoch, config=config))
    if config.budget is not None:
        return max(1, round((durations.seconds(config.budget) - spent) / pace))
    if config.steps is None:
        raise UsageError("say how long to train: --steps, --epochs, --tokens or --budget")
    return config.steps


def diverged(run: Run, problem: str, *, step: int | None = None) -> TrainingError:
    """What to raise when a quantity of a step, by default the one just taken, is no longer a number."""
    return TrainingError(
        f"{run.folder}: {problem} at step {run.state.step if step is None else step}; "
        "saved checkpoints are untouched: try a lower --learning-rate or --dtype float32"
    )


def save(run: Run, *, is_best: bool) -> Path:
    """Write a checkpoint of the run as it is, and remove those that are not to be kept; returns its folder.

    Raises:
        TrainingError: a weight is no longer finite, which the loss of the next step would show too late.
    """
    weights, optimizer = run.model.state_dict(), optimizer_tensors(run.optimizers, run.model)
    if broken := next((name for name, value in weights.items() if not value.isfinite().all()), None):
        raise diverged(run, f"{broken} is no longer finite")
    if run.clock is not None and run.plan.deadline is not None:
        run.state = dataclasses.replace(run.state, elapsed=run.plan.deadline - run.clock.left)
    if run.average is not None:
        optimizer |= {_TRAINED + name: value for name, value in weights.items()}
        weights = run.average.weights
    folder = checkpoint.save_checkpoint(
        run.folder,
        config=run.config,
        tokenizer=run.tokenizer,
        source_tokenizer=run.source_tokenizer,
        model=weights,
        optimizer=optimizer,
        state=run.state,
        is_best=is_best,
    )
    if run.other_branch:
        Journal(run.folder).settle()
        checkpoint.leave(run.folder, run.other_branch, best_step=run.state.best_step)
        run.other_branch = []
    checkpoint.remove_old(run.folder, keep=run.config.training.keep)
    return folder

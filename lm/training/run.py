"""A run in progress: the model, what trains it, how far it has come, and its checkpoints."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lm import checkpoint, files, run_folder
from lm.config.run import RunConfig, RunPlan
from lm.data.training_data import TrainingData
from lm.distributed.world import ALONE, World
from lm.errors import InputError, TrainingError
from lm.hardware import Hardware, set_matmul_precision
from lm.locks import LockFile
from lm.model.lora import build_model_with_lora, load_trainable, trainable_weights
from lm.model.transformer import choose_kernels, set_activation_checkpointing
from lm.optim.moving_average import MovingAverage
from lm.optim.optimizers import make_optimizers, optimizer_tensors, restore_optimizers
from lm.optim.schedules import learning_rate, steps_in_all
from lm.run_folder import TrainingState
from lm.training.ahead import Ahead
from lm.training.budget import Clock, Pace, aside
from lm.training.compiling import compiled
from lm.training.continuation import Overfit
from lm.training.corpus import TrainingCorpus
from lm.training.events import Decay, EndMoved, Replanned, Saved
from lm.training.journal import Journal
from lm.training.objective import Objective, final_states
from lm.training.regularisation import adapted_weight_decay
from lm.training.writer import Writer

_TRAINED = "trained."
"""In the optimizer's file, before the names of the weights that are trained while their average is the model."""

_ENDLESS = 1 << 40
_FAR_OFF = 1.25
"""Ratio of the seconds of a step to those measured before, from which the plan is adapted."""

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class RunSetup:
    """What every process needs to build the same run; the first one broadcasts it.

    Attributes:
        folder: of the run.
        config: with a plan.
        state: how far the run has come.
        corpus: what it learns from.
        spent: seconds of a budget that are gone, besides those that `state` knows of.
        pace: how fast it is, as measured for a budget.
        open_settings: those of training that may be chosen again once the pace is known better.
        has_weights: whether it starts from those of another run.
        checkpoint: of its own, that it resumes from.
    """

    folder: Path
    config: RunConfig
    state: TrainingState
    corpus: TrainingCorpus
    spent: float = 0.0
    pace: Pace | None = None
    open_settings: frozenset[str] = frozenset()
    has_weights: bool = False
    checkpoint: Path | None = None


class Run:
    """A run in progress: model, optimizer, data and how far it has come. Made by `lm.training.begin`.

    Attributes:
        folder: where the run is kept.
        config: its settings and its plan, as `config.json` has them.
        state: how far it has come.
        resumed_at: the step of the checkpoint that it was resumed from; 0 for a new run.
        saved_at: the step of the last checkpoint.
        other_branch: checkpoints later than the resumed one, which go as soon as this run has saved its own.
        overfit: of a run that is extended from the weights of its best checkpoint, why; else None.
        lock: held from the start to the end of training.
        clock: of a run under a budget, what says when the learning rate falls; else None.
        world: the processes that train it together.
        placement: where they have its weights.
        last_loss: validation loss of the last evaluation; None before the first.
        journal: of the run; of several processes, only one writes it.
        writer: of its checkpoints.
    """

    def __init__(
        self,
        setup: RunSetup,
        *,
        data: TrainingData,
        lock: LockFile | None = None,
        world: World = ALONE,
        now: Callable[[], float] | None = None,
    ) -> None:
        """Build the model with its initial weights, as the plan in the config says. Nothing is written.

        Args:
            setup: what to build.
            data: of the corpus, open.
            lock: of the run, if it is held already.
            world: the processes that train the run together; all of them build it at the same time.
            now: seconds on the clock that a budget is measured by [default: `time.monotonic`].
        """
        self.folder, self.config, self.state, self.data = setup.folder, setup.config, setup.state, data
        self.tokenizer, self.source_tokenizer = setup.corpus.tokenizer, setup.corpus.source_tokenizer
        self.resumed_at, self.saved_at = setup.state.step, setup.state.step
        self.other_branch: list[Path] = []
        self.last_loss: float | None = None
        self.overfit: Overfit | None = None
        self.lock = lock_of(setup.folder) if lock is None else lock
        self.world, self.journal = world, Journal(setup.folder, writes=world.writes)
        self.writer = Writer(writes=world.writes, now=now)
        self._build()
        self.data.plan(self.plan.steps)
        self.ahead = Ahead(data) if self.plan.device == "cuda" else None
        self.clock: Clock | None = None
        if self.plan.deadline is not None:
            left = self.plan.deadline - setup.state.elapsed - setup.spent
            pause = 0.0 if setup.pace is None else setup.pace.pause
            self.clock = Clock(left, spent=setup.spent, pause=pause, now=lambda: world.now(now))
        self._measured, self._open_settings = setup.pace, setup.open_settings

    def __repr__(self) -> str:
        """Its folder, and how far it has come."""
        return f"<Run {self.folder}: step {self.state.step:,} of {self.plan.steps:,}>"

    def _build(self) -> None:
        """The model and what trains it, on the hardware that the plan names."""
        plan, training = self.plan, self.config.training
        self.hardware = Hardware(plan.device, plan.dtype, plan.threads, plan.optimizer_dtype)
        torch.set_num_threads(plan.threads)
        set_matmul_precision(self.hardware)
        device = self.hardware.torch_device
        self.model = build_model_with_lora(self.config.model, self.config.lora, seed=training.seed).to(device)
        if device.type == "cpu":
            choose_kernels(self.model, torch.float32)  # what it is evaluated with; gradients are torch's own
        set_activation_checkpointing(self.model, enabled=training.checkpoint_activations)
        states = compiled(self.model, device) if training.compile else final_states(self.model)
        self.placement = self.world.placed(
            Objective(self.model, self.hardware, training, states=states), self.config.distribution
        )
        self.optimizers = make_optimizers(
            self.model,
            training,
            dtype=self.hardware.torch_optimizer_dtype,
            processes=self.world.size,
            is_sharded=self.placement.is_sharded,
        )
        self.average = MovingAverage(self.model, decay=training.ema) if training.ema else None

    @contextmanager
    def in_one_place(self) -> Iterator[None]:
        """While open, the model is one whose weights are all in this process; all processes open it together."""
        trained = self.model
        self.model = self.placement.whole_model(trained)
        try:
            yield
        finally:
            self.model = trained

    def placed(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole weights of this run's model, or of one with other shapes, as this process has those of its own."""
        own = self.model.state_dict()
        return {
            name: self.placement.like(own[name], value) if name in own else value for name, value in weights.items()
        }

    @property
    def plan(self) -> RunPlan:
        """What was decided by looking at the machine and the data."""
        assert self.config.plan is not None
        return self.config.plan

    @property
    def is_complete(self) -> bool:
        """Whether the last step has been taken."""
        return self.plan.deadline is None and self.state.step >= self.plan.steps

    @property
    def epoch(self) -> float:
        """Passes over the training split so far."""
        return self.state.samples / self.data.samples

    def left(self) -> float:
        """Seconds from the last step to the end of a run under a budget."""
        assert self.clock is not None
        steps = _ENDLESS if self.plan.deadline is not None else self.plan.steps
        return self.clock.until(self.state.step, steps, config=self.config.training)

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        steps = self.plan.steps if self.plan.deadline is None else None
        return learning_rate(
            self.state.step, config=self.config.training, steps=steps, decay_start=self.plan.decay_start
        )

    def settle_length(self) -> Decay | EndMoved | Replanned | None:
        """Under a budget, make the number of steps final if the decay of the learning rate has to begin now.

        Before that, the plan is adapted once if steps turn out to take another time than was measured.

        In a decay that would end far too soon or too late, since the machine is busier than it was or less so, the end
        is moved, and the learning rate falls from where it is.

        Returns:
            What has changed, which is written down in the run's config; None if nothing has.
        """
        if self.clock is None:
            return None
        step, training = self.state.step, self.config.training
        if begins := self.plan.deadline is not None:
            steps = self.clock.steps_in_all(step, config=training, since=self.plan.decay_step or 0)
            share = self.plan.decay_share
        else:
            steps = self.clock.moved_end(step, self.plan.steps, config=training)
            share = self.rate / training.learning_rate if training.learning_rate else 1.0
        if steps is None:
            return self._replan() if begins else None
        plan = dataclasses.replace(self.plan, steps=steps, deadline=None, decay_step=step, decay_share=share)
        self._settle(plan, self.config, by="clock of the budget")
        return Decay(step, steps) if begins else EndMoved(step, steps)

    def _replan(self) -> Replanned | None:
        """Adapt evaluations and weight decay to the pace of the first steps, if that is not the measured one.

        Weight decay times steps stays as planned.
        """
        assert self.clock is not None
        measured, plan = self._measured, self.plan
        if measured is None or (pace := self.clock.pace()) is None:
            return None
        self._measured = None  # once is enough: the clock looks after the end
        seconds, pause = pace
        if 1 / _FAR_OFF <= seconds / measured.step <= _FAR_OFF:
            return None
        training, step, left = self.config.training, self.state.step, self.clock.left
        steps = step + max(1, round(left / seconds))
        chosen: dict[str, Any] = {}
        if "evaluate_every" in self._open_settings and training.evaluate_every:
            number = max(1.0, min(plan.steps / training.evaluate_every, aside(left) / max(pause, 1e-9)))
            chosen["evaluate_every"] = max(1, math.ceil(steps / number))
        if "weight_decay" in self._open_settings:
            chosen["weight_decay"] = adapted_weight_decay(training.weight_decay, plan.steps / steps)
        for group in (group for optimizer in self.optimizers for group in optimizer.param_groups):
            if group["weight_decay"]:
                group["weight_decay"] = chosen.get("weight_decay", group["weight_decay"])
        config = dataclasses.replace(self.config, training=dataclasses.replace(training, **chosen))
        self._settle(dataclasses.replace(plan, steps=steps), config, by="speed of the first steps")
        return Replanned(step, steps, seconds, measured.step)

    def decay_on_plateau(self) -> Decay | None:
        """Start the decay of the learning rate if enough evaluations in a row have brought no lower loss.

        Returns:
            What has changed, which is written down in the run's config; None if nothing has.
        """
        state, training, plan = self.state, self.config.training, self.plan
        if training.decay_patience is None or plan.decay_step is not None or state.best_step is None:
            return None
        step = state.step
        if step - state.best_step < training.decay_patience * max(1, training.evaluate_every):
            return None
        steps = max(step + 1, steps_in_all(step, config=training))
        if self.clock is None or plan.deadline is None:
            steps = min(steps, plan.steps)
        else:
            steps = min(steps, self.clock.fitting(step, steps, config=training))
        share = self.rate / training.learning_rate if training.learning_rate else 1.0
        settled = dataclasses.replace(plan, steps=steps, deadline=None, decay_step=step, decay_share=share)
        self._settle(settled, self.config, by="validation loss no longer falls")
        return Decay(step, steps, on_plateau=True)

    def _settle(self, plan: RunPlan, config: RunConfig, *, by: str) -> None:
        before, self.config = self.config, dataclasses.replace(config, plan=plan)
        self.journal.revise(self.state.step, before, self.config, by=by)
        self.data.plan(plan.steps)
        if self.ahead is not None:
            self.ahead.forget()
        self.write_config()

    def write_config(self) -> None:
        """Write the settings and the plan down, in the place of those that were there."""
        if self.world.writes:
            files.write_json(self.folder / run_folder.CONFIG, self.config.to_dict())

    def note_elapsed(self) -> None:
        """Let the state know how much of a budget is gone, until the number of steps is final."""
        if self.clock is not None and self.plan.deadline is not None:
            self.state = dataclasses.replace(self.state, elapsed=self.plan.deadline - self.clock.left)

    def save(self, *, is_best: bool) -> list[Saved]:
        """Copy the run as it is; its writer makes a checkpoint of that, and then removes those that are not kept.

        The checkpoint before is waited for. Of several processes, all take part, and one writes.

        Returns:
            The checkpoint before, unless the writer has told of it already.

        Raises:
            InputError: the checkpoint before could not be written.
            TrainingError: a weight is no longer finite, which the loss of the next step would show too late.
        """
        before = self.writer.wait()
        if self.clock is not None:
            (self.clock.to_write,) = self.world.summed(self.writer.seconds)
        weights, optimizer = self._copied()
        self.note_elapsed()
        config, state = self.config, self.state

        def write() -> Saved:
            folder = checkpoint.save_checkpoint(
                self.folder,
                config=config,
                tokenizer=self.tokenizer,
                source_tokenizer=self.source_tokenizer,
                model=weights,
                optimizer=optimizer,
                state=state,
                is_best=is_best,
                resumed_at=self.resumed_at if self.other_branch else None,
            )
            self.other_branch = []
            checkpoint.remove_old(self.folder, keep=config.training.keep)
            return Saved(state.step, folder)

        self.writer.begin(write)
        self.saved_at = state.step
        return before

    def _copied(self) -> tuple[Tensors, Tensors]:
        """The weights, or their moving average if there is one, and all that training resumes from, as they are now."""
        weights, optimizer = trainable_weights(self.model), optimizer_tensors(self.optimizers, self.model)
        if self.average is not None:
            optimizer |= {_TRAINED + name: value for name, value in weights.items()}
            weights = self.average.weights
        copied, copied_optimizer = (self.writer.copied(self.placement.whole(each)) for each in (weights, optimizer))
        if broken := next((name for name, value in copied.items() if not _is_finite(value)), None):
            raise diverged(self, f"{broken} is no longer finite")
        return copied, copied_optimizer

    def restore(self, weights: Tensors, optimizer: Tensors) -> None:
        """Put back what `save` wrote: where there is a moving average, the model on the disk is that.

        Raises:
            KeyError: a tensor is missing.
            RuntimeError: a tensor has another shape than this run's model wants.
        """
        if self.average is not None:
            self.average.load(self.placed(weights))
            weights = {name: optimizer[_TRAINED + name] for name in weights}
        load_trainable(self.model, self.placed(weights))
        restore_optimizers(self.optimizers, self.model, optimizer, place=self.placement.like)


def _is_finite(value: Tensor) -> bool:
    """Whether all numbers are; their least and largest are found as fast as they are read, and are NaN where one is."""
    return all(bool(bound.isfinite()) for bound in value.aminmax())


def diverged(run: Run, problem: str, *, step: int | None = None) -> TrainingError:
    """The error for a quantity of a step, by default the one just taken, that is no longer a finite number."""
    return TrainingError(
        f"{run.folder}: {problem} at step {run.state.step if step is None else step}; "
        "saved checkpoints are untouched: try a lower learning rate, or float32",
        settings=("learning_rate", "dtype"),
    )


def lock_of(run: Path) -> LockFile:
    """The lock of a run, which nobody need hold and whose folder need not exist yet."""
    return LockFile(run / run_folder.LOCK)


def claim(lock: LockFile) -> None:
    """Keep other processes from training a run until its lock is released; InputError if one is at it already."""
    try:
        lock.acquire()
    except BlockingIOError:
        raise InputError(
            f"{lock.path.parent}: another process is training this run; wait for it to end, or use another folder"
        ) from None


@contextmanager
def claimed(lock: LockFile) -> Iterator[None]:
    """Claim a lock, and keep it beyond the block, unless the block fails."""
    claim(lock)
    with ExitStack() as stack:
        stack.callback(lock.release)
        yield
        stack.pop_all()


def refuse_trained(run: Path) -> None:
    """InputError if another process trains in a folder just now; asked before anything is prepared."""
    lock = lock_of(run)
    if lock.path.exists():
        claim(lock)
        lock.release()

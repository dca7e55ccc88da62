"""A run in progress: model, optimizers, data, progress and checkpoints."""

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
from lm.config.run_config import RunConfig, RunPlan
from lm.data.training_data import TrainingData
from lm.distributed.world import SINGLE_PROCESS, World
from lm.errors import InputError, TrainingError
from lm.hardware import Hardware, configure_gpu
from lm.locks import LockFile
from lm.model.cpu_kernels import choose_kernels
from lm.model.lora import build_model_with_lora, load_trainable, trainable_weights
from lm.model.transformer import set_activation_checkpointing
from lm.optim.averaging import MovingAverage
from lm.optim.optimizers import build_optimizers, load_optimizer_state, optimizer_state_tensors
from lm.optim.schedules import learning_rate, total_steps_from_decay
from lm.run_folder import TrainingState
from lm.safetensors_io import load_tensors
from lm.training.checkpoint_writer import CheckpointWriter
from lm.training.compiling import compile_hidden_states
from lm.training.events import DecayStarted, EndRescheduled, Replanned, Saved
from lm.training.objective import Objective, hidden_states_fn
from lm.training.planning.budget import BudgetClock, TrainingSpeed, evaluation_reserve
from lm.training.planning.continued_training import OverfitCheckpoint, find_overfit
from lm.training.planning.regularisation import scale_weight_decay
from lm.training.prefetcher import BatchPrefetcher
from lm.training.run_log import RunLog
from lm.training.training_corpus import TrainingCorpus

_TRAINED_PREFIX = "trained."
"""Prefix, in the optimizer file, of the trained weights when the model file holds their moving average."""

_SPEED_TOLERANCE = 1.25
"""Ratio of the measured to the expected seconds per step from which the plan is adjusted."""

_OVERFIT_DECAY = 1 / 3
"""Length of the decay from the best checkpoint of a run that overfits, as a fraction of the usual length after as many
steps: a longer one overfits again before the learning rate is low (docs/lab/recipe.md)."""

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class RunSetup:
    """Everything that a rank needs to build the run; rank 0 broadcasts it.

    Attributes:
        config: with a plan.
        seconds_spent: seconds of a budget used before, besides those in `state`.
        adjustable_settings: training settings that may still be adapted to the measured speed.
        has_weights: whether it starts from the weights of another run.
        checkpoint: own checkpoint to resume from.
    """

    folder: Path
    config: RunConfig
    state: TrainingState
    corpus: TrainingCorpus
    seconds_spent: float = 0.0
    speed: TrainingSpeed | None = None
    adjustable_settings: frozenset[str] = frozenset()
    has_weights: bool = False
    checkpoint: Path | None = None


class Run:
    """A run in progress, built by `lm.training.startup`.

    Attributes:
        config: settings and plan, as in `config.json`.
        resumed_at: step of the checkpoint it was resumed from; 0 for a new run.
        stale_checkpoints: checkpoints after the one resumed from; removed when this run saves its first.
        overfit_checkpoint: set if the run is extended from the weights of its best checkpoint instead of the last.
        lock: held during training.
        clock: of a run under a budget, else None.
        last_validation_loss: validation loss of the last evaluation, or None.
        log: metrics, timings and decisions; written by rank 0.
    """

    def __init__(
        self,
        setup: RunSetup,
        *,
        data: TrainingData,
        lock: LockFile | None = None,
        world: World = SINGLE_PROCESS,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Build the model with its initial weights according to the plan; writes nothing.

        Args:
            lock: of the run, if it is held already.
            world: the ranks; all of them build the run at the same time.
            clock: of a budget, in seconds [default: `time.monotonic`].
        """
        self.folder, self.config, self.state, self.data = setup.folder, setup.config, setup.state, data
        self.tokenizer, self.source_tokenizer = setup.corpus.tokenizer, setup.corpus.source_tokenizer
        self.resumed_at, self.saved_step = setup.state.step, setup.state.step
        self.stale_checkpoints: list[Path] = []
        self.last_validation_loss: float | None = None
        self.overfit_checkpoint: OverfitCheckpoint | None = None
        self.lock = run_lock(setup.folder) if lock is None else lock
        self.world, self.log = world, RunLog(setup.folder, writes=world.is_main)
        self.writer = CheckpointWriter(writes=world.is_main, clock=clock)
        self._build()
        self.data.set_total_steps(self.plan.steps)
        self.prefetcher = BatchPrefetcher(data) if self.plan.device == "cuda" else None
        self.clock: BudgetClock | None = None
        if self.plan.budget_seconds is not None:
            seconds_left = self.plan.budget_seconds - setup.state.budget_seconds_used - setup.seconds_spent
            evaluation_seconds = 0.0 if setup.speed is None else setup.speed.evaluation_seconds
            self.clock = BudgetClock(
                seconds_left,
                spent=setup.seconds_spent,
                evaluation_seconds=evaluation_seconds,
                max_steps=self.plan.max_steps,
                clock=lambda: world.synced_time(clock),
            )
        self._expected_speed, self._adjustable_settings = setup.speed, setup.adjustable_settings

    def __repr__(self) -> str:
        """Folder and progress."""
        return f"<Run {self.folder}: step {self.state.step:,} of {self.plan.steps:,}>"

    def _build(self) -> None:
        """Build model, strategy and optimizers on the hardware of the plan."""
        plan, training = self.plan, self.config.training
        self.hardware = Hardware(plan.device, plan.dtype, plan.threads, plan.optimizer_dtype)
        torch.set_num_threads(plan.threads)
        configure_gpu(self.hardware)
        device = self.hardware.torch_device
        self.model = build_model_with_lora(self.config.model, self.config.lora, seed=training.seed).to(device)
        if device.type == "cpu":
            choose_kernels(self.model.config, torch.float32)  # for evaluation; training uses torch's kernels
        set_activation_checkpointing(self.model, enabled=training.gradient_checkpointing)
        states = compile_hidden_states(self.model, device) if training.compile else hidden_states_fn(self.model)
        self.strategy = self.world.parallelize(
            Objective(self.model, self.hardware, training, states=states), self.config.distribution
        )
        self.optimizers = build_optimizers(
            self.model,
            training,
            dtype=self.hardware.torch_optimizer_dtype,
            processes=self.world.size,
            is_sharded=self.strategy.is_sharded,
        )
        self.ema = MovingAverage(self.model, decay=training.ema) if training.ema else None

    @contextmanager
    def with_full_model(self) -> Iterator[None]:
        """Within the context, `model` has all weights in this process; collective."""
        trained = self.model
        self.model = self.strategy.full_model(trained)
        try:
            yield
        finally:
            self.model = trained

    def shard_weights(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        own = self.model.state_dict()
        return {
            name: self.strategy.shard_like(own[name], value) if name in own else value
            for name, value in weights.items()
        }

    @property
    def plan(self) -> RunPlan:
        """Plan of the run: what was decided from hardware and data."""
        assert self.config.plan is not None
        return self.config.plan

    @property
    def is_complete(self) -> bool:
        """Whether all steps have been taken."""
        return self.plan.budget_seconds is None and self.state.step >= self.plan.steps

    @property
    def epoch(self) -> float:
        """Number of passes over the training split so far."""
        return self.state.samples / self.data.samples

    def seconds_to_end(self) -> float:
        """Seconds from the last step to the end of a run under a budget."""
        assert self.clock is not None
        steps = self.plan.steps if self.plan.budget_seconds is None else self.clock.max_steps
        return self.clock.seconds_until(self.state.step, steps, config=self.config.training)

    def forecast_steps(self) -> int:
        """Return the number of steps in all, forecast from recent steps until a budget's end is final."""
        if self.clock is None or self.plan.budget_seconds is None:
            return self.plan.steps
        return self.clock.forecast_total(self.state.step, self.plan.steps, config=self.config.training)

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""
        steps = self.plan.steps if self.plan.budget_seconds is None else None
        return learning_rate(
            self.state.step, config=self.config.training, steps=steps, decay_start=self.plan.decay_start
        )

    def update_schedule(self) -> DecayStarted | EndRescheduled | Replanned | None:
        """Under a budget, adapt the schedule to the remaining time.

        The number of steps becomes final when the decay of the learning rate has to start. Before that, the plan is
        adjusted once, if steps are faster or slower than measured. During the decay, the end is moved if it would miss
        the deadline by far.

        Returns:
            The change, which is saved in the run's config; None without one.
        """
        if self.clock is None:
            return None
        step, training = self.state.step, self.config.training
        if self.plan.budget_seconds is not None:
            steps = self.clock.total_if_due(step, config=training, since=self.plan.decay_step or 0)
            if steps is None:
                return self._replan()
            return self._start_decay(steps, self.plan.decay_scale, reason="budget clock", from_best=self._has_overfit)
        steps = self.clock.rescheduled_total(step, self.plan.steps, config=training)
        if steps is None or (self.plan.on_plateau and steps > self.plan.steps):
            return None  # the rest of the budget isn't used
        plan = dataclasses.replace(self.plan, steps=steps, decay_step=step, decay_scale=self._learning_rate_fraction)
        self._apply_plan(plan, self.config, reason="budget clock")
        return EndRescheduled(step, steps)

    def _replan(self) -> Replanned | None:
        """Adapt evaluation interval and weight decay to the measured speed, if it differs from the expected one.

        Weight decay × steps stays as planned.
        """
        assert self.clock is not None
        measured, plan = self._expected_speed, self.plan
        if measured is None or (speed := self.clock.measured_speed()) is None:
            return None
        self._expected_speed = None  # only once
        seconds, evaluation_seconds = speed
        if 1 / _SPEED_TOLERANCE <= seconds / measured.step_seconds <= _SPEED_TOLERANCE:
            return None
        training, step, seconds_left = self.config.training, self.state.step, self.clock.seconds_left
        steps = self.clock.limited_total(step, round(seconds_left / seconds))
        new_settings: dict[str, Any] = {}
        if "evaluate_every" in self._adjustable_settings and training.evaluate_every:
            n_evaluations = max(
                1.0,
                min(
                    plan.steps / training.evaluate_every,
                    evaluation_reserve(seconds_left) / max(evaluation_seconds, 1e-9),
                ),
            )
            new_settings["evaluate_every"] = max(1, math.ceil(steps / n_evaluations))
        if "weight_decay" in self._adjustable_settings:
            new_settings["weight_decay"] = scale_weight_decay(training.weight_decay, plan.steps / steps)
        for group in (group for optimizer in self.optimizers for group in optimizer.param_groups):
            if group["weight_decay"]:
                group["weight_decay"] = new_settings.get("weight_decay", group["weight_decay"])
        config = dataclasses.replace(self.config, training=dataclasses.replace(training, **new_settings))
        self._apply_plan(dataclasses.replace(plan, steps=steps), config, reason="measured step time")
        return Replanned(step, steps, seconds, measured.step_seconds)

    def is_on_plateau(self) -> bool:
        """Whether the learning rate has to decay because the validation loss no longer falls (`decay_patience`)."""
        state, training = self.state, self.config.training
        if training.decay_patience is None or self.plan.decay_step is not None or state.best_step is None:
            return False
        return state.step - state.best_step >= training.decay_patience * max(1, training.evaluate_every)

    def decay_on_plateau(self) -> DecayStarted:
        """Start the decay of the learning rate, from the best checkpoint; the change is saved in the run's config."""
        step, plan = self.state.step, self.plan
        steps = max(step + 1, total_steps_from_decay(step, config=self.config.training))
        if self.clock is None or plan.budget_seconds is None:
            steps = min(steps, plan.steps)
        else:
            steps = min(steps, self.clock.affordable_total(step, steps, config=self.config.training))
        reason = "validation loss no longer falls"
        return self._start_decay(steps, self._learning_rate_fraction, reason=reason, from_best=True, on_plateau=True)

    def _start_decay(
        self, steps: int, fraction: float, *, reason: str, from_best: bool, on_plateau: bool = False
    ) -> DecayStarted:
        """Start the decay of the learning rate; collective.

        The step count continues from the best checkpoint too, and with it the order of the data.

        Args:
            fraction: of the peak, from which the learning rate decays.
            from_best: whether to go back to the weights of the best checkpoint, as later steps have only overfit.
            on_plateau: whether the validation loss no longer falls.
        """
        step = self.state.step
        restored = self._restore_best() if from_best else None
        if restored is not None:
            reason = f"{reason}; from the weights of step {restored}, the best"
            length = total_steps_from_decay(restored, config=self.config.training) - restored
            steps = min(steps, step + max(1, math.ceil(_OVERFIT_DECAY * length)))
        plan = dataclasses.replace(
            self.plan, steps=steps, budget_seconds=None, decay_step=step, decay_scale=fraction, on_plateau=on_plateau
        )
        self._apply_plan(plan, self.config, reason=reason)
        return DecayStarted(step, steps, on_plateau=on_plateau, restored_step=restored)

    @property
    def _learning_rate_fraction(self) -> float:
        """Learning rate of the next step as a fraction of the peak."""
        peak = self.config.training.learning_rate
        return self.learning_rate / peak if peak else 1.0

    @property
    def _has_overfit(self) -> bool:
        """Whether the last validation loss is clearly higher than the best, in a run that watches for plateaus."""
        if self.config.training.decay_patience is None:
            return False
        last = self.log.last_validation_loss(self.state.step) if self.world.is_main else None
        (has_overfit,) = self.world.all_reduce_sum(find_overfit(self.state, last) is not None)
        return has_overfit > 0

    def _restore_best(self) -> int | None:
        """Load weights and optimizer state of the best checkpoint; return its step, or None if it is gone."""
        step = self.state.best_step
        best = run_folder.checkpoint_folder(self.folder, step or 0)
        self.writer.settle()
        (exists,) = self.world.all_reduce_sum(self.world.is_main and best.is_dir())
        if step is None or not exists:
            return None
        weights, optimizer = (
            self.world.broadcast_tensors(load_tensors(best / name) if self.world.is_main else None)
            for name in (run_folder.MODEL, run_folder.OPTIMIZER)
        )
        self.restore(weights, optimizer)
        return step

    def _apply_plan(self, plan: RunPlan, config: RunConfig, *, reason: str) -> None:
        previous, self.config = self.config, dataclasses.replace(config, plan=plan)
        self.log.log_changes(self.state.step, previous, self.config, by=reason)
        self.data.set_total_steps(plan.steps)
        if self.prefetcher is not None:
            self.prefetcher.discard()
        self.write_config()

    def write_config(self) -> None:
        """Write settings and plan to `config.json`, on rank 0."""
        if self.world.is_main:
            files.write_json(self.folder / run_folder.CONFIG, self.config.to_dict())

    def save(self, *, is_best: bool) -> list[Saved]:
        """Copy the current state; the writer saves it as a checkpoint and removes old checkpoints.

        Waits for the previous checkpoint first. Collective; rank 0 writes.

        Returns:
            The previous checkpoint, unless it was reported before.

        Raises:
            InputError: the previous checkpoint could not be written.
            TrainingError: a weight is no longer finite.
        """
        previous = self.writer.wait()
        if self.clock is not None:
            (self.clock.checkpoint_seconds,) = self.world.all_reduce_sum(self.writer.seconds)
        weights, optimizer = self._snapshot()
        if self.clock is not None and self.plan.budget_seconds is not None:
            budget_seconds_used = self.plan.budget_seconds - self.clock.seconds_left
            self.state = dataclasses.replace(self.state, budget_seconds_used=budget_seconds_used)
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
                resumed_at=self.resumed_at if self.stale_checkpoints else None,
            )
            self.stale_checkpoints = []
            checkpoint.prune_checkpoints(self.folder, keep=config.training.keep_checkpoints)
            return Saved(state.step, folder)

        self.writer.submit(write)
        self.saved_step = state.step
        return previous

    def _snapshot(self) -> tuple[Tensors, Tensors]:
        """Copy the weights, or their moving average, and the optimizer state."""
        weights, optimizer = trainable_weights(self.model), optimizer_state_tensors(self.optimizers, self.model)
        if self.ema is not None:
            optimizer |= {_TRAINED_PREFIX + name: value for name, value in weights.items()}
            weights = self.ema.weights
        copied, copied_optimizer = (
            self.writer.copy_tensors(self.strategy.full_tensors(tensors)) for tensors in (weights, optimizer)
        )
        if broken := next((name for name, value in copied.items() if not _is_finite(value)), None):
            raise divergence_error(self, f"{broken} is no longer finite")
        return copied, copied_optimizer

    def restore(self, weights: Tensors, optimizer: Tensors) -> None:
        """Load what `save` wrote; with a moving average, the model file holds the average.

        Raises:
            KeyError: a tensor is missing.
            RuntimeError: a tensor has the wrong shape.
        """
        if self.ema is not None:
            self.ema.load(self.shard_weights(weights))
            weights = {name: optimizer[_TRAINED_PREFIX + name] for name in weights}
        load_trainable(self.model, self.shard_weights(weights))
        load_optimizer_state(self.optimizers, self.model, optimizer, convert=self.strategy.shard_like)


def _is_finite(value: Tensor) -> bool:
    """Whether all values are finite; aminmax reads them once and propagates NaN."""
    return all(bool(bound.isfinite()) for bound in value.aminmax())


def divergence_error(run: Run, problem: str, *, step: int | None = None) -> TrainingError:
    """Return the error for a quantity that is no longer finite, at a step [default: the current one]."""
    return TrainingError(
        f"{run.folder}: {problem} at step {run.state.step if step is None else step}; "
        "saved checkpoints are untouched: try a lower learning rate, or float32",
    )


def run_lock(run: Path) -> LockFile:
    """Return the lock of a run, whose folder need not exist yet."""
    return LockFile(run / run_folder.LOCK)


def acquire_lock(lock: LockFile) -> None:
    """Acquire the lock of a run; InputError if another process is training it."""
    try:
        lock.acquire()
    except BlockingIOError:
        raise InputError(
            f"{lock.path.parent}: another process is training this run; wait for it to end, or use another folder"
        ) from None


@contextmanager
def locked(lock: LockFile) -> Iterator[None]:
    """Acquire a lock, and release it only if the block fails."""
    acquire_lock(lock)
    with ExitStack() as stack:
        stack.callback(lock.release)
        yield
        stack.pop_all()


def refuse_if_training(run: Path) -> None:
    """Raise InputError if another process is training the run."""
    lock = run_lock(run)
    if lock.path.exists():
        acquire_lock(lock)
        lock.release()

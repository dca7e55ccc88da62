"""A run: `Run.create` writes its folder, `Run.open` builds it on each rank, and `lm.training.loop.train` trains it."""

from __future__ import annotations

import dataclasses
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from lm import checkpoint, files, run_folder
from lm.adapter_base import find_base_weights, link_base
from lm.config.data import IGNORE_INDEX
from lm.config.run_config import RunConfig, RunPlan
from lm.config.run_spec import is_user_given
from lm.config.training import TrainingConfig
from lm.corpus.encode import Tokenizers
from lm.data.batch import Batch, TrainingData
from lm.distributed.parallel import SINGLE_PROCESS, ParallelLoss, World, shard_like
from lm.errors import InputError, OutOfMemoryError, TrainingError, UsageError
from lm.hardware import MAX_THREADS, Hardware, configure_gpu, is_out_of_memory
from lm.locks import LockFile
from lm.model.cost import training_flops
from lm.model.lora import build_model_with_lora, load_frozen, load_trainable, trainable_weights
from lm.model.positions import PositionTable
from lm.model.transformer import set_activation_checkpointing
from lm.optim.optimizers import MovingAverage, build_optimizers, load_optimizer_state, optimizer_state_tensors
from lm.optim.schedules import learning_rate, total_steps_from_decay
from lm.run_folder import TrainingState
from lm.safetensors_io import load_tensors
from lm.training.background import BatchPrefetcher, CheckpointWriter
from lm.training.events import DecayStarted, EndRescheduled, Saved, Step
from lm.training.initial_weights import initial_weights, load_initial_weights
from lm.training.objective import Objective, count_learned_tokens, hidden_states_fn
from lm.training.planning.budget import BudgetClock
from lm.training.planning.plan import Plan, extend
from lm.training.run_log import RunLog
from lm.training.training_corpus import open_data, verify_data

_TRAINED_PREFIX = "trained."
"""Prefix, in the optimizer file, of the trained weights when the model file holds their moving average."""

_OVERFIT_DECAY = 1 / 3
"""Length of the decay from the best checkpoint of a run that overfits, as a fraction of the usual length after as many
steps: a longer one overfits again before the learning rate is low (docs/lab/recipe.md)."""


class Run:
    """A run in progress on one rank: model, optimizers, data and progress.

    Without a folder it only takes steps, for measurements.

    Attributes:
        config: settings and plan, as in `config.json`.
        saved_step: step of the last checkpoint.
        clock: of a run under a budget, else None.
        last_validation_loss: validation loss of the last evaluation, or None.
        log: metrics, timings and decisions; written by rank 0.
    """

    def __init__(
        self,
        config: RunConfig,
        data: TrainingData,
        tokenizers: Tokenizers | None = None,
        *,
        folder: Path = Path(),
        state: TrainingState | None = None,
        world: World = SINGLE_PROCESS,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Build the model with random weights, and its optimizers, on the hardware of the plan; writes nothing.

        Args:
            world: the ranks; all of them build the run at the same time.
            clock: of a budget, in seconds [default: `time.monotonic`].
        """
        self.config, self.data, self.folder, self.world = config, data, folder, world
        self.state = state or TrainingState()
        if tokenizers is not None:
            self.tokenizer, self.source_tokenizer = tokenizers
        self.saved_step = self.state.step
        self.last_validation_loss: float | None = None
        self.clock: BudgetClock | None = None
        self.lock, self.log = LockFile(folder / run_folder.LOCK), RunLog(folder, writes=world.is_main)
        self.writer = CheckpointWriter(writes=world.is_main, clock=clock)
        plan, training = self.plan, config.training
        self.hardware = Hardware(plan.device, plan.dtype, plan.threads, plan.optimizer_dtype)
        torch.set_num_threads(plan.threads)
        configure_gpu(self.hardware)
        device = self.hardware.torch_device
        self.model = build_model_with_lora(config.model, config.lora, seed=training.seed).to(device)
        set_activation_checkpointing(self.model, enabled=training.gradient_checkpointing)
        states = hidden_states_fn(self.model)
        if training.compile:
            for table in (module for module in self.model.modules() if isinstance(module, PositionTable)):
                table.fill(config.model.context_length, device)  # at the first step would cause a recompilation
            states = torch.compile(states)
        loss = Objective(self.model, self.hardware, training, states=states)
        self.parallel = ParallelLoss(loss, size=world.size, **vars(config.distribution))
        self.optimizers = build_optimizers(
            self.model, training, dtype=self.hardware.torch_optimizer_dtype,
            ranks=self.parallel.ranks,
        )  # fmt: skip
        self.ema = MovingAverage(self.model, decay=training.ema) if training.ema else None
        data.set_total_steps(plan.steps)
        self.prefetcher = BatchPrefetcher(data) if plan.device == "cuda" else None

    @staticmethod
    def create(folder: Path, plan: Plan, *, base: Path | None = None) -> None:
        """Write the folder of a new run: its plan, with the reason of each setting; on rank 0.

        Args:
            folder: to be created; InputError if it holds a run or another process is creating one.
            base: checkpoint of the base weights, for a run with adapters.
        """
        with _locked(folder):
            run_folder.refuse_existing(folder)  # again: another process may have created a run meanwhile
            checkpoint.clean_up(folder)
            (folder / run_folder.CHECKPOINTS).mkdir(exist_ok=True)
            if base is not None:
                link_base(folder, base)
            RunLog(folder).start(plan.config, plan.reasons)
            files.write_json(folder / run_folder.CONFIG, plan.config.to_dict())

    @classmethod
    def open(
        cls,
        folder: Path,
        world: World = SINGLE_PROCESS,
        *,
        from_run: Path | None = None,
        data: TrainingData | None = None,
        spent: float = 0.0,
        evaluation_seconds: float = 0.0,
        clock: Callable[[], float] | None = None,
    ) -> Run:
        """Build the run of a folder, with the weights of its last checkpoint if it has one; on every rank.

        Args:
            folder: after `create`, or `prepare_resuming`.
            from_run: run or checkpoint with the initial weights of a new run [default: random]. They are evaluated
                before the first step, unless a part of the model starts at random.
            data: the run's, if they are open.
            spent: seconds of a budget used before, besides those in the checkpoint.
            evaluation_seconds: expected seconds of an evaluation.

        Raises:
            InputError: another process trains the run, or weights don't fit.
        """
        config = run_folder.load_config(folder)
        plan = _require_plan(config, folder)
        is_new = not run_folder.list_checkpoints(folder)
        last = Path(plan.data) if is_new else run_folder.find_checkpoint(folder, which="last")
        state = TrainingState() if is_new else run_folder.load_state(last)
        if not is_new and not run_folder.is_checkpoint(run_folder.checkpoint_folder(folder, state.best_step or 0)):
            state = dataclasses.replace(state, best_loss=None, best_bleu=None, best_step=None)
        data = data or open_data(Path(plan.data), config)
        tokenizers = checkpoint.load_tokenizers(last)
        run = cls(config, data, tokenizers, folder=folder, state=state, world=world, clock=clock)
        if world.is_main:
            acquire(run.lock)
        if is_new and from_run is not None:
            weights = initial_weights(from_run, tokenizers[0], config)
            is_comparable = load_initial_weights(run.model, run.ema, weights, config)
            run.state = dataclasses.replace(state, evaluation_due=is_comparable and data.validation_bytes > 0)
        elif not is_new:
            if config.lora:
                load_frozen(run.model, load_tensors(find_base_weights(last, config)))
            run.load_checkpoint(last)
        if plan.budget_seconds is not None:
            run.clock = BudgetClock(
                plan.budget_seconds - state.budget_seconds_used - spent,
                spent=spent,
                evaluation_seconds=evaluation_seconds,
                max_steps=plan.max_steps,
                clock=lambda: world.synced_time(clock),
            )
        return run

    def __repr__(self) -> str:
        """Folder and progress."""
        return f"<Run {self.folder}: step {self.state.step:,} of {self.plan.steps:,}>"

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Within the context, `model` is in eval mode, with all the weights that would be saved; collective."""
        trained = self.model
        trained.eval()
        try:
            with self.ema.swapped_in() if self.ema else nullcontext():
                self.model = self.parallel.full_model(trained)
                yield
        finally:
            self.model = trained
            trained.train()

    @property
    def plan(self) -> RunPlan:
        """Plan of the run: what was decided from hardware and data."""
        return _require_plan(self.config, self.folder)

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

    def step(self) -> Step:
        """Take an optimizer step.

        Raises:
            TrainingError: the loss or the gradient is not finite; raised before weights change.
        """
        start = time.perf_counter()
        config, state, rate = self.config.training, self.state, self.learning_rate
        for group in (group for optimizer in self.optimizers for group in optimizer.param_groups):
            group["lr"] = rate
        seed = (config.seed * 0x9E3779B1 + state.step * 0x85EBCA77 + self.world.rank * 0xC2B2AE3D27D4EB4F + 1) % 2**63
        # `torch.manual_seed` takes 0.5 ms for devices that a CPU run doesn't use
        (torch.default_generator if self.hardware.device == "cpu" else torch).manual_seed(seed)
        batch = (self.prefetcher or self.data).batch(state.samples)
        total, learned = (
            torch.zeros(2, device=self.hardware.torch_device),
            count_learned_tokens(batch, source_loss=config.source_loss),
        )
        with _converting_errors(self, batch):
            for micro_batch in self.world.micro_batches(batch, rows=config.micro_batch_size):
                total += self.parallel.backward(micro_batch, learned=learned)
        total, norm = self.world.all_reduce(total), self.parallel.clip_gradients(config.clip)
        # the only GPU sync of a step
        nats, surprisal, gradient_norm = torch.cat((total, norm.to(total.device)[None])).tolist()
        loss = nats / learned
        if not math.isfinite(loss) or not math.isfinite(gradient_norm):
            raise self.divergence(f"the loss is {loss} and the gradient's norm {gradient_norm}", step=state.step + 1)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if self.ema is not None:
            self.ema.update(state.step + 1)
        flops, seconds = batch_flops(self.config, batch), time.perf_counter() - start
        self.state = dataclasses.replace(
            state,
            step=state.step + 1,
            samples=state.samples + batch.rows,
            tokens=state.tokens + batch.tokens,
            flops=state.flops + flops,
            training_seconds=state.training_seconds + seconds,
        )
        nll = surprisal / batch.n_targets
        return Step(self.state.step, loss, rate, gradient_norm, batch.tokens, flops, seconds, nll)

    def divergence(self, problem: str, *, step: int | None = None) -> TrainingError:
        """Return the error for a quantity that is no longer finite, at a step [default: the current one]."""
        at = self.state.step if step is None else step
        saved = "saved checkpoints are untouched: try a lower learning rate, or float32"
        return TrainingError(f"{self.folder}: {problem} at step {at}; {saved}")

    def follow_clock(self) -> DecayStarted | EndRescheduled | None:
        """Under a budget, start the decay when the time left requires it; later, move an end that misses the deadline.

        Returns:
            The change, which is saved in the run's config; None without one.
        """
        if self.clock is None:
            return None
        step, training, plan = self.state.step, self.config.training, self.plan
        if plan.budget_seconds is not None:
            steps = self.clock.total_if_due(step, config=training, since=plan.decay_step or 0)
            if steps is None:
                return None
            return self._start_decay(steps, plan.decay_scale, "budget clock")
        steps = self.clock.rescheduled_total(step, plan.steps, config=training)
        if steps is None or (plan.on_plateau and steps > plan.steps):
            return None  # the rest of the budget isn't used
        changed = dataclasses.replace(plan, steps=steps, decay_step=step, decay_scale=self._learning_rate_fraction)
        self._change_plan(changed, "budget clock")
        return EndRescheduled(step, steps)

    def decay_on_plateau(self) -> DecayStarted | None:
        """Start the decay, from the best checkpoint, if the validation loss no longer falls (`decay_patience`)."""
        state, training, plan = self.state, self.config.training, self.plan
        if training.decay_patience is None or plan.decay_step is not None or state.best_step is None:
            return None
        if state.step - state.best_step < training.decay_patience * max(1, training.evaluate_every):
            return None
        steps = max(state.step + 1, total_steps_from_decay(state.step, config=training))
        if self.clock is None or plan.budget_seconds is None:
            steps = min(steps, plan.steps)
        else:
            steps = min(steps, self.clock.affordable_total(state.step, steps, config=training))
        reason = "validation loss no longer falls"
        return self._start_decay(steps, self._learning_rate_fraction, reason, on_plateau=True)

    def _start_decay(self, steps: int, fraction: float, reason: str, *, on_plateau: bool = False) -> DecayStarted:
        """Start the decay of the learning rate from a fraction of its peak; collective.

        Args:
            on_plateau: go back to the weights of the best checkpoint, as later steps have only overfit. The step count
                continues, and with it the order of the data.
        """
        step = self.state.step
        restored = self._restore_best() if on_plateau else None
        if restored is not None:
            reason = f"{reason}; from the weights of step {restored}, the best"
            length = total_steps_from_decay(restored, config=self.config.training) - restored
            steps = min(steps, step + max(1, math.ceil(_OVERFIT_DECAY * length)))
        plan = dataclasses.replace(
            self.plan, steps=steps, budget_seconds=None, decay_step=step, decay_scale=fraction, on_plateau=on_plateau
        )
        self._change_plan(plan, reason)
        return DecayStarted(step, steps, on_plateau=on_plateau, restored_step=restored)

    @property
    def _learning_rate_fraction(self) -> float:
        """Learning rate of the next step as a fraction of the peak."""
        peak = self.config.training.learning_rate
        return self.learning_rate / peak if peak else 1.0

    def _restore_best(self) -> int | None:
        """Load weights and optimizer state of the best checkpoint; return its step, or None if it is gone."""
        step = self.state.best_step
        best = run_folder.checkpoint_folder(self.folder, step or 0)
        self.writer.settle()
        if step is None or not self.world.all_reduce_max(self.world.is_main and best.is_dir()):
            return None
        self.load_checkpoint(best)
        return step

    def _change_plan(self, plan: RunPlan, reason: str) -> None:
        before, self.config = self.config, dataclasses.replace(self.config, plan=plan)
        self.data.set_total_steps(plan.steps)
        if self.prefetcher is not None:
            self.prefetcher.discard()
        if self.world.is_main:
            self.log.log_changes(self.state.step, before, self.config, by=reason)
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
            if self.plan.budget_seconds is not None:
                used = self.plan.budget_seconds - self.clock.seconds_left
                self.state = dataclasses.replace(self.state, budget_seconds_used=used)
        tensors, optimizer = trainable_weights(self.model), optimizer_state_tensors(self.optimizers, self.model)
        if self.ema is not None:
            optimizer |= {_TRAINED_PREFIX + name: value for name, value in tensors.items()}
            tensors = self.ema.weights
        weights, optimizer = (
            self.writer.copy_tensors(self.parallel.full_tensors(some)) for some in (tensors, optimizer)
        )
        # aminmax reads the values once and propagates NaN
        if broken := [name for name, value in weights.items() if not all(map(torch.isfinite, value.aminmax()))]:
            raise self.divergence(f"{broken[0]} is no longer finite")
        config, state = self.config, self.state

        def write() -> Saved:
            folder = checkpoint.save_checkpoint(
                self.folder, config=config, tokenizer=self.tokenizer, source_tokenizer=self.source_tokenizer,
                model=weights, optimizer=optimizer, state=state, is_best=is_best,
            )  # fmt: skip
            checkpoint.prune_checkpoints(self.folder, keep=config.training.keep_checkpoints)
            return Saved(state.step, folder)

        self.writer.submit(write)
        self.saved_step = state.step
        return previous

    def load_checkpoint(self, folder: Path) -> None:
        """Load what `save` wrote; with a moving average, the model file holds the average.

        Raises:
            InputError: a tensor is missing or has the wrong shape.
        """
        weights, optimizer = (load_tensors(folder / name) for name in (run_folder.MODEL, run_folder.OPTIMIZER))
        own = self.model.state_dict()
        try:
            if self.ema is not None:
                self.ema.load({name: shard_like(own[name], value) for name, value in weights.items()})
                weights = {name: optimizer[_TRAINED_PREFIX + name] for name in weights}
            load_trainable(self.model, {name: shard_like(own[name], value) for name, value in weights.items()})
            load_optimizer_state(self.optimizers, self.model, optimizer)
        except torch.OutOfMemoryError:
            raise
        except (KeyError, RuntimeError):
            raise InputError(f"{folder}: its weights are not of this run's model") from None


def prepare_resuming(
    run: Path,
    *,
    length: TrainingConfig | None = None,
    changed: Mapping[str, Mapping[str, Any]] | None = None,
    data: Path | None = None,
    spent: float = 0.0,
    processes: int = 1,
) -> None:
    """Write how a run continues from its last checkpoint into its folder, before it is opened; on rank 0.

    Args:
        length: steps, epochs or tokens that replace the run's own, or a budget for the rest of it.
        changed: new values of settings in `CHANGEABLE_ON_RESUME`, by section.
        data: folder of the prepared data, if it was moved.
        spent: seconds of the new budget used before.

    Raises:
        InputError: there is no such run, it or its data are damaged, or another process is training it.
        UsageError: the run has finished, and no greater length is given.
    """
    run_folder.find_checkpoint(run, which="last")  # before a lock is made where no run is
    with _locked(run):
        checkpoint.clean_up(run)
        last = run_folder.find_checkpoint(run, which="last")
        run_folder.verify_checkpoint(last)
        before, state, log = run_folder.load_config(last), run_folder.load_state(last), RunLog(run)
        if state.best_step is not None and run_folder.is_checkpoint(
            best := run_folder.checkpoint_folder(run, state.best_step)
        ):
            checkpoint.set_pointer(best, "best")  # killed between writing the checkpoint and pointing to it
        plan = _require_plan(before, last)
        if data is not None:
            plan = dataclasses.replace(plan, data=str(data.resolve()))
        verify_data(Path(plan.data), key=plan.data_key)
        parts = {name: dataclasses.replace(getattr(before, name), **new) for name, new in (changed or {}).items()}
        config = dataclasses.replace(before, plan=plan, **parts)
        if length is not None:
            can_choose = not is_user_given(log.reasons().get("model.dropout"))
            opened = open_data(Path(plan.data), config)
            config = extend(config, state, length, data=opened, spent=spent, chooses_dropout=can_choose)
            plan = _require_plan(config, last)
        if plan.budget_seconds is None and state.step >= plan.steps and not state.evaluation_due:
            raise UsageError(f"{run}: finished after {state.step} steps; give more to train on")
        if state.finished and length is None:
            raise UsageError(f"{run}: ended at step {state.step} of {plan.steps}, when patience ran out; give a length")
        if processes != plan.processes:  # the threads are divided again
            plan = dataclasses.replace(plan, processes=processes, threads=MAX_THREADS)
        config = dataclasses.replace(config, plan=plan)
        log.truncate(state.step, evaluation_due=state.evaluation_due)
        log.log_changes(state.step, before, config, by="resume")
        files.write_json(run / run_folder.CONFIG, config.to_dict())


def copy_checkpoint(source: Path, out: Path) -> None:
    """Copy a checkpoint, with the best one that it knows and the logs so far, into a new run, to resume that."""
    run_folder.refuse_existing(out)
    run, state = source.parent.parent, run_folder.load_state(source)
    best = run_folder.checkpoint_folder(run, state.best_step or 0)
    out.mkdir(parents=True, exist_ok=True)
    for name in (
        run_folder.METRICS,
        run_folder.TIMINGS,
        run_folder.DECISIONS,
        run_folder.BASE,
        run_folder.BASE_WEIGHTS,
    ):
        if (run / name).is_file():
            shutil.copyfile(run / name, out / name)
    for folder in {best, source} if run_folder.is_checkpoint(best) else {source}:
        shutil.copytree(folder, out / run_folder.CHECKPOINTS / folder.name)
    checkpoint.set_pointer(run_folder.checkpoint_folder(out, state.step), "last")


def batch_flops(config: RunConfig, batch: Batch) -> float:
    """Return the FLOPs of training on a batch, padding included; the output layer only where a token is predicted."""
    rows, length = batch.inputs.shape
    n_targets = batch.n_targets
    if batch.source_targets is not None:
        n_targets += int((batch.source_targets != IGNORE_INDEX).sum())
    return training_flops(
        config.model,
        rows=rows,
        length=length,
        source_length=0 if batch.source is None else batch.source.shape[1],
        n_targets=n_targets / rows,
        forward_passes=config.training.forward_passes,
        lora=config.lora,
    )


def acquire(lock: LockFile) -> None:
    """Acquire the lock of a run; InputError if another process is training it."""
    try:
        lock.acquire()
    except BlockingIOError:
        raise InputError(f"{lock.path.parent}: another process is training this run") from None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a run; InputError if another process is training it."""
    lock = LockFile(folder / run_folder.LOCK)
    acquire(lock)
    try:
        yield
    finally:
        lock.release()


def _require_plan(config: RunConfig, folder: Path) -> RunPlan:
    """Return the plan of a run; InputError if it has none, like an average of checkpoints."""
    if config.plan is None:
        raise InputError(f"{folder}: has no plan, so it cannot be resumed; start a new run from its weights")
    return config.plan


@contextmanager
def _converting_errors(run: Run, batch: Batch) -> Iterator[None]:
    """Convert errors of torch.compile, and out-of-memory errors of a batch, to errors of one line."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if is_out_of_memory(error):
            rows = run.config.training.micro_batch_size or -(-batch.rows // run.world.size)
            raise OutOfMemoryError(
                f"{run.folder}: step {run.state.step + 1} needs more memory than there is, with {rows} x "
                f"{batch.inputs.shape[1]} tokens in one pass; saved checkpoints are untouched"
            ) from error
        if not type(error).__module__.startswith("torch._dynamo"):
            raise
        reason = " ".join(str(error).strip().splitlines()[:2])
        raise TrainingError(f"torch.compile fails on this model ({reason}): resume without it") from error

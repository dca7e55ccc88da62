"""A run: `Run.create` writes its folder, `Run.open` builds it on each rank, and `lm.training.loop.train` trains it."""

from __future__ import annotations

import dataclasses
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lm import checkpoint, files, run_folder
from lm.checkpoint import load_tensors
from lm.config.run_config import RunConfig, RunPlan, TrainingConfig
from lm.corpus.encode import Tokenizers
from lm.data import Batch, TrainingData
from lm.errors import InputError, TrainingError, UsageError
from lm.hardware import MAX_THREADS, Hardware, configure_torch, select_device, select_hardware
from lm.model import Model, build_model, init_empty_weights, set_activation_checkpointing
from lm.model.cost import training_flops
from lm.model.lora import build_model_with_lora, load_frozen, load_trainable, trainable_weights
from lm.model.positions import PositionTable
from lm.run_folder import TrainingState
from lm.training.objective import Objective, hidden_states_fn, summed_loss
from lm.training.optimizers import (
    MovingAverage,
    build_optimizers,
    learning_rate,
    load_optimizer_state,
    optimizer_state_tensors,
)
from lm.training.parallel import SINGLE_PROCESS, ParallelLoss, World, full_tensor, shard_like
from lm.training.plan import Plan, extend
from lm.training.rules import BudgetClock
from lm.training.run_log import Saved, Step, truncate_logs
from lm.training.training_corpus import open_data, verify_data

_TRAINED_PREFIX = "trained."
"""Prefix, in the optimizer file, of the trained weights when the model file holds their moving average."""
_LOSS_MEMORY = 0.9
_EVALUATED_TOKENS = 8192
"""Enough to measure the loss of initial weights to about 0.03 nats."""
_NOT_COPIED = {"last", "best", run_folder.LOCK}


class Run:
    """A run in progress on one rank: model, optimizers, data and progress.

    Without a folder it only takes steps, for measurements.

    Attributes:
        config: settings and plan, as in `config.json`.
        saved_step: step of the last checkpoint.
        clock: of a run under a budget, else None.
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
    ) -> None:
        """Build the model with random weights, and its optimizers, on the hardware of the plan; writes nothing.

        Args:
            world: the ranks; all of them build the run at the same time.
        """
        self.config, self.data, self.folder, self.world = config, data, folder, world
        self.state = state or TrainingState()
        if tokenizers is not None:
            self.tokenizer, self.source_tokenizer = tokenizers
        self.saved_step = self.state.step
        self.clock: BudgetClock | None = None
        self.lock: run_folder.RunLock | None = None
        self._thread = futures.ThreadPoolExecutor(1, "checkpoints")
        self._writing: futures.Future[Saved] | None = None
        plan, training = self.plan, config.training
        available = select_device(config.hardware.replace(device=plan.device))
        self.hardware = Hardware(available, plan.dtype, plan.threads)
        configure_torch(self.hardware, trains=True)
        device = self.hardware.torch_device
        self.model = build_model_with_lora(config.model, config.lora, seed=training.seed).to(device)
        set_activation_checkpointing(self.model, enabled=training.gradient_checkpointing)
        states = [*map(hidden_states_fn, self.model.members)]
        if training.compile:
            for table in (module for module in self.model.modules() if isinstance(module, PositionTable)):
                table.fill(config.model.context_length, device)  # at the first step would cause a recompilation
            states = [*map(torch.compile, states)]
        loaded = [checkpoint.load_model(Path(name), self.hardware).model for name in training.teacher]
        teachers = [member for teacher in loaded for member in teacher.members]
        loss = Objective(self.model, self.hardware, training, states=states, teachers=teachers)
        self.parallel = ParallelLoss(loss, size=world.size, **vars(config.distribution))
        self.optimizers = build_optimizers(
            self.model, training, dtype=self.hardware.torch_dtype,
            ranks=self.parallel.ranks,
        )  # fmt: skip
        self.ema = MovingAverage(self.model, decay=training.ema) if training.ema else None
        data.set_total_steps(plan.steps)

    @staticmethod
    def create(folder: Path, plan: Plan, *, base: Path | None = None) -> None:
        """Write the folder of a new run: its plan, with the reason of each setting; on rank 0.

        Args:
            folder: to be created; InputError if it holds a run or another process is creating one.
            base: checkpoint of the base weights, for a run with adapters.
        """
        with run_folder.RunLock(folder):
            run_folder.refuse_existing(folder)  # again: another process may have created a run meanwhile
            checkpoint.clean_up(folder)
            (folder / run_folder.CHECKPOINTS).mkdir(exist_ok=True)
            if base is not None:
                files.link_or_copy(base / run_folder.MODEL, folder / run_folder.BASE_WEIGHTS)
            for log in (run_folder.METRICS, run_folder.TIMINGS):  # of a run that was killed before its first checkpoint
                (folder / log).unlink(missing_ok=True)
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
        began, config = world.synced_time(clock), run_folder.load_config(folder)
        plan = config.plan
        assert plan is not None
        is_new = not run_folder.list_checkpoints(folder)
        last = Path(plan.data) if is_new else run_folder.find_checkpoint(folder, which="last")
        state = TrainingState() if is_new else run_folder.load_state(last)
        data = data or open_data(Path(plan.data), config)
        tokenizers = checkpoint.load_tokenizers(last)
        run = cls(config, data, tokenizers, folder=folder, state=state, world=world)
        if world.is_main:
            run.lock = run_folder.RunLock(folder)
        try:
            if is_new and from_run is not None:
                weights = initial_weights(from_run, tokenizers, config)
                is_comparable = load_initial_weights(run.model, run.ema, weights, config)
                run.state = dataclasses.replace(state, evaluation_due=is_comparable and data.validation_bytes > 0)
            elif not is_new:
                if config.lora:
                    load_frozen(run.model, load_tensors(run_folder.find_base_weights(last, config)))
                run.load_checkpoint(last)
        except BaseException:
            run.close()
            raise
        if plan.budget_seconds is not None:
            spent += world.synced_time(clock) - began
            run.clock = BudgetClock(
                plan.budget_seconds - state.budget_seconds_used - spent,
                spent=spent,
                evaluation_seconds=evaluation_seconds,
                max_steps=plan.max_steps,
                clock=lambda: world.synced_time(clock),
            )
        return run

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
        assert self.config.plan is not None
        return self.config.plan

    @property
    def is_complete(self) -> bool:
        """Whether all steps have been taken."""
        return self.plan.budget_seconds is None and self.state.step >= self.plan.steps

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
            group["lr"] = rate * group.get("rate_fraction", 1.0)
        seed = (config.seed * 0x9E3779B1 + state.step * 0x85EBCA77 + self.world.rank * 0xC2B2AE3D27D4EB4F + 1) % 2**63
        # `torch.manual_seed` takes 0.5 ms for devices that a CPU run doesn't use
        (torch.default_generator if self.hardware.device == "cpu" else torch).manual_seed(seed)
        batches = [self.data.member_batch(state.samples, member) for member in range(len(self.model.members))]
        batch, total = batches[0], torch.zeros(2, device=self.hardware.torch_device)
        for member, own in enumerate(batches):
            for micro_batch in self.world.micro_batches(own, rows=config.micro_batch_size):
                total += self.parallel.backward(micro_batch, learned=own.n_targets, member=member)
        total, norm = self.world.all_reduce(total), self.parallel.clip_gradients(config.clip)
        # the only GPU sync of a step
        nats, surprisal, gradient_norm = torch.cat((total, norm.to(total.device)[None])).tolist()
        n_targets = sum(own.n_targets for own in batches)
        loss = nats / n_targets
        if not math.isfinite(loss) or not math.isfinite(gradient_norm):
            raise self.divergence(f"the loss is {loss} and the gradient's norm {gradient_norm}")
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if self.ema is not None:
            self.ema.update(state.step + 1)
        flops, seconds = batch_flops(self.config, batch), time.perf_counter() - start
        nll = surprisal / n_targets
        memory = min(_LOSS_MEMORY, 1 - 1 / (state.step + 1))
        self.state = dataclasses.replace(
            state,
            step=state.step + 1,
            samples=state.samples + batch.rows,
            tokens=state.tokens + batch.tokens,
            flops=state.flops + flops,
            training_seconds=state.training_seconds + seconds,
            training_loss=memory * state.training_loss + (1 - memory) * nll,
        )
        return Step(self.state.step, loss, nll, rate, gradient_norm, batch.tokens, flops, seconds)

    def divergence(self, problem: str) -> TrainingError:
        """Return the error for a quantity that is no longer finite."""
        advice = "try a lower learning rate, or float32"
        return TrainingError(f"{self.folder}: {problem} after {self.state.step} steps; {advice}")

    def change_plan(self, what: str, **changes: Any) -> None:
        """Change fields of the plan, and save them in the folder with a line that says what was changed, and why."""
        lines = (*self.plan.changes, f"step {self.state.step:,}: {what}")
        epochs = changes.get("steps", self.plan.steps) / self.data.steps_per_epoch
        plan = dataclasses.replace(self.plan, **changes, epochs=epochs, changes=lines)
        self.config = self.config.replace(plan=plan)
        self.data.set_total_steps(plan.steps)
        if self.world.is_main:
            files.write_json(self.folder / run_folder.CONFIG, self.config.to_dict())

    def save(self) -> list[Saved]:
        """Copy the current state, which a thread writes as a checkpoint; then it removes old checkpoints.

        Waits for the previous checkpoint first, and returns it unless it was reported before. Collective; rank 0
        writes.

        Raises:
            InputError: the previous checkpoint could not be written.
            TrainingError: a weight is no longer finite.
        """
        previous = self.finish_saving()
        if self.clock is not None and self.plan.budget_seconds is not None:
            used = self.plan.budget_seconds - self.clock.seconds_left
            self.state = dataclasses.replace(self.state, budget_seconds_used=used)
        tensors, optimizer = trainable_weights(self.model), optimizer_state_tensors(self.optimizers, self.model)
        if self.ema is not None:
            optimizer |= {_TRAINED_PREFIX + name: value for name, value in tensors.items()}
            tensors = self.ema.weights
        weights, optimizer = (
            {
                name: full.detach().to("cpu", copy=True)
                for name, value in some.items()
                for full in [full_tensor(value)]  # gathered on every rank
                if self.world.is_main
            }
            for some in (tensors, optimizer)
        )
        # aminmax reads the values once and propagates NaN
        if broken := [name for name, value in weights.items() if not all(map(torch.isfinite, value.aminmax()))]:
            raise self.divergence(f"{broken[0]} is no longer finite")
        config, state = self.config, self.state

        def write() -> Saved:
            folder = checkpoint.save_checkpoint(
                self.folder, config=config, tokenizer=self.tokenizer, source_tokenizer=self.source_tokenizer,
                model=weights, optimizer=optimizer, state=state, is_best=state.best_step == state.step,
            )  # fmt: skip
            checkpoint.prune_checkpoints(self.folder, keep=config.training.keep_checkpoints)
            return Saved(state.step, folder)

        if self.world.is_main:
            self._writing = self._thread.submit(write)
        self.saved_step = state.step
        return previous

    def finish_saving(self, *, wait: bool = True) -> list[Saved]:
        """Return the checkpoint that was written since the last call, if any; raises what writing it raised.

        Args:
            wait: for one that is being written.
        """
        if self._writing is None or not (wait or self._writing.done()):
            return []
        futures.wait([self._writing])  # a signal may interrupt this
        writing, self._writing = self._writing, None
        return [writing.result()]

    def close(self) -> None:
        """Finish saving, and let other processes train the run."""
        try:
            self.finish_saving()
        finally:
            if self.lock is not None:
                self.lock.close()

    def load_checkpoint(self, folder: Path) -> None:
        """Load what `save` wrote; with a moving average, the model file holds the average."""
        weights, optimizer = (load_tensors(folder / name) for name in (run_folder.MODEL, run_folder.OPTIMIZER))
        own = self.model.state_dict()
        if self.ema is not None:
            self.ema.load({name: shard_like(own[name], value) for name, value in weights.items()})
            weights = {name: optimizer[_TRAINED_PREFIX + name] for name in weights}
        load_trainable(self.model, {name: shard_like(own[name], value) for name, value in weights.items()})
        load_optimizer_state(self.optimizers, self.model, optimizer)

    def load_best(self) -> int | None:
        """Load the best checkpoint, which may be being written; returns its step, or None if it is gone. Collective."""
        step = self.state.best_step
        best = run_folder.checkpoint_folder(self.folder, step or 0)
        if self._writing is not None:
            futures.wait([self._writing])
        if not self.world.all_reduce_max(self.world.is_main and best.is_dir()):
            return None
        self.load_checkpoint(best)
        return step


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
    with run_folder.RunLock(run):
        checkpoint.clean_up(run)
        last = run_folder.find_checkpoint(run, which="last")
        run_folder.verify_checkpoint(last)
        config, state = run_folder.load_config(last), run_folder.load_state(last)
        best = run_folder.checkpoint_folder(run, state.best_step or 0)
        if run_folder.is_checkpoint(best):
            checkpoint.set_pointer(best, "best")  # killed between writing the checkpoint and pointing to it
        if (plan := config.plan) is None or not (last / run_folder.OPTIMIZER).exists():
            raise InputError(f"{last}: has no optimizer state, so it cannot be resumed; use its weights with --from")
        if data is not None:
            plan = dataclasses.replace(plan, data=str(data.resolve()))
        verify_data(Path(plan.data), key=plan.data_key)
        teachers = (changed or {}).get("training", {}).get("teacher", config.training.teacher)
        if teachers != config.training.teacher:
            line = f"step {state.step:,}: learns from {', '.join(teachers)}"
            plan = dataclasses.replace(plan, changes=(*plan.changes, line))
        parts = {name: getattr(config, name).replace(**new) for name, new in (changed or {}).items()}
        config = config.replace(plan=plan, **parts)
        if length is not None:
            before, planned = config, plan.steps
            config = extend(before, state, length, data=open_data(Path(plan.data), config), spent=spent)
            assert config.plan is not None
            plan = config.plan
            line = f"step {state.step:,}: {planned:,} steps become {plan.steps:,}"
            if before.training.budget is not None:
                line += f" after a budget of {before.training.budget}"
            if (dropout := config.model.dropout) != before.model.dropout:
                line += f", dropout {before.model.dropout:g} becomes {dropout:g}"
            plan = dataclasses.replace(plan, changes=(*plan.changes, line))
        is_over = plan.budget_seconds is None and state.step >= plan.steps and not state.evaluation_due
        if is_over or (state.finished and length is None):
            raise UsageError(f"{run}: at step {state.step} already; name more steps or epochs, or another budget")
        threads = min(plan.threads, MAX_THREADS) if processes == plan.processes else MAX_THREADS  # each has its part
        given = dict((changed or {}).get("hardware", {}))
        if "device" in given:
            given["device"] = select_device(config.hardware)
        if given.get("dtype") == "auto":
            raise UsageError("a resumed run doesn't choose its dtype again: name one")
        plan = dataclasses.replace(
            plan, **{"processes": processes, "threads": config.hardware.threads or threads, **given}
        )
        truncate_logs(run, state.step, evaluation_due=state.evaluation_due)
        files.write_json(run / run_folder.CONFIG, config.replace(plan=plan).to_dict())


def copy_checkpoint(source: Path, out: Path) -> None:
    """Copy a checkpoint, with the best one that it knows and the logs so far, into a new run, to resume that."""
    source = source.resolve()
    run, state = source.parent.parent, run_folder.load_state(source)
    kept = {source.name, run_folder.checkpoint_folder(run, state.best_step or 0).name}
    with files.atomic_new(out) as unfinished:
        shutil.copytree(
            run,
            unfinished,
            ignore=lambda folder, names: {*names} - kept if Path(folder) == source.parent else _NOT_COPIED,
        )
        checkpoint.set_pointer(run_folder.checkpoint_folder(unfinished, state.step), "last")


def batch_flops(config: RunConfig, batch: Batch) -> float:
    """Return the FLOPs of training on a batch, padding included; the output layer only where a token is predicted."""
    rows, length = batch.inputs.shape
    return training_flops(
        config.model,
        rows=rows,
        length=length,
        source_length=0 if batch.source is None else batch.source.shape[1],
        n_targets=batch.n_targets / rows,
        forward_passes=config.training.forward_passes,
        lora=config.lora,
    )


def initial_weights(path: Path, tokenizers: Tokenizers, config: RunConfig) -> dict[str, Tensor]:
    """Return the weights of a run for tokenizers, of which that of the targets may have further special tokens.

    The rows of these in the embedding, and in the output layer, begin with the mean of the others (Hewitt 2021).

    Raises:
        UsageError: the tokenizers have other token IDs than those that the weights were trained with, or only adapters
            would be trained, which leave new rows as they are.
    """
    parent = run_folder.find_checkpoint(path)
    weights, model = checkpoint.load_weights(parent), run_folder.load_config(parent).model
    (tokenizer, source), (old, old_source) = tokenizers, checkpoint.load_tokenizers(parent)
    if not (tokenizer.extends(old) and (source or tokenizer).extends(old_source or old)):
        raise UsageError(f"the weights of {path} were learned with another tokenizer: use that one")
    if model.labels != config.model.labels:
        weights = {name: value for name, value in weights.items() if "classifier." not in name}
    if tokenizer.vocab_size == old.vocab_size:
        return weights
    if config.lora:
        raise UsageError("the run to start from has no tokens for the chat template, and adapters train no embeddings")
    first, size = old.vocab_size, max(model.vocab_size, tokenizer.vocab_size)
    with init_empty_weights():
        larger = build_model(model.replace(vocab_size=model.vocab_size + 1)).state_dict()
    for name, value in weights.items():
        if larger[name].shape != value.shape:  # depends on the vocabulary
            rows = torch.empty((size, *value.shape[1:]), dtype=value.dtype)
            rows[: model.vocab_size] = value
            rows[first : tokenizer.vocab_size] = value[:first].float().mean(dim=0).to(value.dtype)
            weights[name] = rows
    return weights


def check_teacher(path: Path, tokenizers: Tokenizers, config: RunConfig) -> None:
    """Raise UsageError unless a run can be the teacher of a run with a config."""
    checkpoint.check_predictions(path, tokenizers, config.model)
    model, length = run_folder.load_config(path).model, config.model.context_length
    if model.is_encoder_decoder != config.model.is_encoder_decoder or (model.position_limit or length) < length:
        raise UsageError(f"{path}: the teacher reads other batches, or has fewer positions than its student's context")


def load_initial_weights(
    model: Model, ema: MovingAverage | None, weights: Mapping[str, Tensor], config: RunConfig
) -> bool:
    """Load initial weights into the model of a run.

    The head of a masked model may differ (labels instead of tokens, or other labels); then it starts at random.

    Returns:
        Whether no part of the model starts at random.

    Raises:
        UsageError: they don't fit the model, or a weight that adapters leave as it is would start at random.
    """
    own, adapted = model.state_dict(), trainable_weights(model) if config.lora else {}
    head, given_head = (model.select_output_weights(tensors) for tensors in (own, weights))
    shapes, given_shapes = ({name: value.shape for name, value in some.items()} for some in (head, given_head))
    is_complete = not config.model.is_masked or shapes == given_shapes
    loaded = {name: value for name, value in weights.items() if is_complete or name not in given_head}
    fresh = {name: value for name, value in adapted.items() if name not in loaded} | ({} if is_complete else head)
    if config.lora and (frozen := fresh.keys() - adapted.keys()):
        raise UsageError(f"the run to start from has no {min(frozen)}, which adapters leave as it is")
    try:
        model.load_state_dict(fresh | {name: shard_like(own.get(name, value), value) for name, value in loaded.items()})
    except RuntimeError as error:
        problem = str(error).splitlines()[-1].strip()
        raise UsageError(f"the weights to start from don't fit this model: {problem}") from None
    if ema is not None:
        ema.load(model.state_dict())
    return is_complete


@torch.inference_mode()
def measure_initial_loss(config: RunConfig, weights: Mapping[str, Tensor], data: TrainingData) -> float | None:
    """Return nats per token of the initial weights on the start of the held-out data.

    None if nothing is held out, or a part of the model starts at random.
    """
    hardware = select_hardware(dataclasses.replace(config.hardware, dtype="float32"))
    with init_empty_weights():
        model = build_model(config.model)
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError:  # another head; `load_initial_weights` says what else is wrong
        return None
    model, nats, n_targets = checkpoint.prepare_for_inference(model, hardware), 0.0, 0
    for batch in data.validation():
        for part in batch.split(max(1, _EVALUATED_TOKENS // batch.inputs.shape[1])):
            nats, n_targets = nats + float(summed_loss(model, part, hardware)), n_targets + part.n_targets
            if n_targets >= _EVALUATED_TOKENS:
                return nats / n_targets
    return nats / n_targets if n_targets else None

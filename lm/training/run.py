"""A run in progress: what is trained, on what, how far it has come, and its plan, which a clock may still change."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from lm import files, run_folder
from lm.budget.clock import Clock
from lm.config.run import Plan, RunConfig
from lm.data.training_data import TrainingData
from lm.distributed.world import ALONE, World
from lm.errors import TrainingError
from lm.hardware import Hardware, set_matmul_precision
from lm.locks import LockFile
from lm.model.block import recompute
from lm.model.lora import build_adapted
from lm.model.transformer import choose_kernels
from lm.optimization.moving_average import MovingAverage
from lm.optimization.optimizers import make_optimizers
from lm.optimization.schedules import learning_rate
from lm.run_folder import TrainingState
from lm.training.ahead import Ahead
from lm.training.compiling import compiled
from lm.training.corpus import TrainingCorpus
from lm.training.events import Decay, EndMoved
from lm.training.journal import Journal
from lm.training.lock import lock_of
from lm.training.objective import Objective, final_states
from lm.training.writer import Writer


class Run:
    """A run in progress: model, optimizer, data and how far it has come. Made by `start` or `resume`.

    Attributes:
        folder: where the run is kept.
        config: its settings and its plan, as `config.json` has them.
        state: how far it has come.
        resumed_at: the step of the checkpoint that it was resumed from; 0 for a new run.
        other_branch: checkpoints later than the one gone on with, which go as soon as this run has saved its own.
        lock: held from the start to the end of training.
        clock: of a run under a budget, what says when the learning rate falls; else None.
        world: the processes that train it together.
        placement: where they have its weights.
        journal: of the run; of several processes, only one writes it.
        writer: of its checkpoints.
    """

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        state: TrainingState,
        *,
        corpus: TrainingCorpus,
        data: TrainingData,
        lock: LockFile | None = None,
        spent: float,
        pause: float = 0.0,
        world: World = ALONE,
    ) -> None:
        """Build the model with its initial weights, as the plan in `config` says.

        Args:
            folder: of the run; nothing is written to it.
            config: with a plan.
            state: how far the run has come.
            corpus: what the run learns from.
            data: the same, open.
            lock: of the run, if it is held already.
            spent: seconds of a budget that are gone, besides those that `state` knows of.
            pause: seconds that it takes to evaluate and save, about; for a budget.
            world: the processes that train the run together; all of them build it at the same time.
        """
        self.folder, self.config, self.state, self.data = folder, config, state, data
        self.tokenizer, self.source_tokenizer = corpus.tokenizer, corpus.source_tokenizer
        self.resumed_at = state.step
        self.other_branch: list[Path] = []
        self.lock = lock_of(folder) if lock is None else lock
        self.world, self.journal = world, Journal(folder, writes=world.writes)
        self.writer = Writer(writes=world.writes)
        self._build()
        self.data.plan(self.plan.steps)
        self.ahead = Ahead(data) if self.plan.device == "cuda" else None
        deadline = self.plan.deadline
        left = None if deadline is None else deadline - state.elapsed - spent
        self.clock = None if left is None else Clock(left, spent=spent, pause=pause, now=world.now)

    def _build(self) -> None:
        """The model and what trains it, on the hardware that the plan names."""
        plan, training = self.plan, self.config.training
        self.hardware = Hardware(plan.device, plan.dtype, plan.threads, plan.optimizer_dtype)
        torch.set_num_threads(plan.threads)
        set_matmul_precision(self.hardware)
        device = self.hardware.torch_device
        self.model = build_adapted(self.config.model, self.config.lora, seed=training.seed).to(device)
        if device.type == "cpu":
            choose_kernels(self.model, torch.float32)  # what it is evaluated with; gradients are torch's own
        recompute(self.model, if_training=training.checkpoint_activations)
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
    def plan(self) -> Plan:
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

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        steps = self.plan.steps if self.plan.deadline is None else None
        return learning_rate(self.state.step, config=self.config.training, steps=steps, falls_from=self.plan.falls_from)

    def settle_length(self) -> Decay | EndMoved | None:
        """Under a budget, make the number of steps final if the decay of the learning rate has to begin now.

        In a decay that would end far too soon or too late, since the machine is busier than it was or less so, the end
        is moved, and the learning rate falls from where it is.

        Returns:
            What has changed, which is written down in the run's config; None if nothing has.
        """
        if self.clock is None:
            return None
        step, training = self.state.step, self.config.training
        if begins := self.plan.deadline is not None:
            steps, share = self.clock.steps_in_all(step, config=training), 1.0
        else:
            steps = self.clock.moved_end(step, self.plan.steps, config=training)
            share = self.rate / training.learning_rate if training.learning_rate else 1.0
        if steps is None:
            return None
        self._settle(dataclasses.replace(self.plan, steps=steps, deadline=None, decay_step=step, decay_share=share))
        return Decay(step, steps) if begins else EndMoved(step, steps)

    def _settle(self, plan: Plan) -> None:
        self.config = dataclasses.replace(self.config, plan=plan)
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


def diverged(run: Run, problem: str, *, step: int | None = None) -> TrainingError:
    """The error for a quantity of a step, by default the one just taken, that is no longer a finite number."""
    return TrainingError(
        f"{run.folder}: {problem} at step {run.state.step if step is None else step}; "
        "saved checkpoints are untouched: try a lower --learning-rate or --dtype float32"
    )

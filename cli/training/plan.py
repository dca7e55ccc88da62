"""What will be trained, on what and for how long, said before the first step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lm.config.run import RunConfig
    from lm.training.run import Run

_BATCHES_LOOKED_AT = 20  # batches of pairs differ in their shapes


def describe(run: Run) -> None:
    """Say what will be trained, on what, for how long; and warn where model and data are far from fitting."""
    from cli.console.messages import fact, note
    from cli.console.numbers import count, quantity, threads
    from lm.model.block import count_parameters

    parameters, flops = count_parameters(run.model), _planned_flops(run)
    epochs = run.plan.steps / run.data.steps_per_epoch
    kind = f"{count(parameters)} parameters (preset {run.config.preset})"
    fact("model", f"{kind}, {run.plan.dtype} on {run.plan.device}, {threads(run.plan.threads)}")
    batch, (size, of_what) = run.data.batch_size(), run.data.epoch_size(parameters)
    epoch = f"{count(size)} {of_what}"
    fact("plan", f"{run.plan.steps:,} steps of {batch}: {epochs:.1f} epochs, {epoch}, {quantity(flops, 'FLOPs')}")
    note(f"run     {run.folder}")
    for warning in (
        *compiling_warnings(run, flops),
        *_schedule(run),
        *_passes(run.config),
        *run.data.warnings(parameters=parameters, epochs=epochs, patience=run.config.training.patience),
    ):
        fact("warning", warning)


def _planned_flops(run: Run) -> float:
    from lm.training.trainer import batch_flops

    consumed, flops = 0, 0.0
    for _ in range(_BATCHES_LOOKED_AT):
        batch = run.data.batch(consumed)
        consumed, flops = consumed + batch.rows, flops + batch_flops(run, batch)
    return run.plan.steps * flops / _BATCHES_LOOKED_AT


def compiling_warnings(run: Run, flops: float) -> list[str]:
    """Whether the model will be compiled for a run that is over about as soon."""
    if not run.config.training.compile:
        return []
    from cli.console.numbers import duration
    from lm.hardware import matrix_rate
    from lm.training.compiling import COMPILATION_SECONDS

    shortest = flops / matrix_rate(run.hardware)
    if shortest >= COMPILATION_SECONDS:
        return []
    return [
        f"--compile takes a minute or more first, and this run is {duration(shortest)} of arithmetic at full speed: "
        "it will hardly repay it"
    ]


def _schedule(run: Run) -> list[str]:
    """Whether what rises at first has the steps to do so."""
    training, steps = run.config.training, run.plan.steps
    rises = (
        ("learning rate", training.warmup_steps, "--warmup-steps"),
        ("batch", training.batch_warmup, "--batch-warmup"),
    )
    return [
        f"the {what} rises over the first {warmup} steps, and there are only {steps:,}: give fewer ({flag})"
        for what, warmup, flag in rises
        if 2 * warmup > steps
    ]


def _passes(config: RunConfig) -> list[str]:
    """Whether a batch goes through twice for nothing."""
    if config.training.passes == 1 or config.model.dropout or config.model.dropped_attention:
        return []
    return ["without dropout the two passes of R-Drop are the same: it takes twice as long for nothing (--dropout)"]

"""What will be trained, on what and for how long, said before the first step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lm.config.run import RunConfig
    from lm.training.run import Run

_FEWEST_TOKENS_A_PARAMETER, _MOST_TOKENS_A_PARAMETER = 0.02, 1000
_MANY_EPOCHS = 20
_BATCHES_LOOKED_AT = 20


def describe(run: Run) -> None:
    """Say what will be trained, on what, for how long; and warn where model and data are far from fitting."""
    from cli.console.messages import fact, note
    from cli.console.numbers import count, quantity, threads
    from lm.model.block import count_parameters

    parameters, flops = count_parameters(run.model), _planned_flops(run)
    epochs = run.plan.steps / run.data.steps_per_epoch
    kind = f"{count(parameters)} parameters (preset {run.config.preset})"
    fact("model", f"{kind}, {run.plan.dtype} on {run.plan.device}, {threads(run.plan.threads)}")
    batch, epoch = _shape(run, parameters)
    fact("plan", f"{run.plan.steps:,} steps of {batch}: {epochs:.1f} epochs, {epoch}, {quantity(flops, 'FLOPs')}")
    note(f"run     {run.folder}")
    for warning in (
        *compiling_warnings(run, flops),
        *_schedule(run),
        *_passes(run.config),
        *_fit(run, parameters, epochs),
        *_repeats(run, parameters, epochs),
    ):
        fact("warning", warning)


def _shape(run: Run, parameters: int) -> tuple[str, str]:
    """What a batch is, and how much an epoch."""
    from cli.console.numbers import count
    from lm.data.examples.batches import ExampleData
    from lm.data.pairs.batches import PairData

    rows, length = run.data.batch(0).inputs.shape
    if isinstance(run.data, ExampleData):
        return f"{rows} examples", f"{count(run.data.tokens)} tokens of completions in each"
    if isinstance(run.data, PairData):
        limit = run.config.training.batch_tokens
        batch = f"{rows} pairs" if limit is None else f"up to {limit:,} tokens a side"
        return batch, f"{count(run.data.tokens)} tokens of targets in each"
    return f"{rows} x {length} tokens", f"{count(run.data.tokens / parameters)} tokens of text a parameter"


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


def _fit(run: Run, parameters: int, epochs: float) -> list[str]:
    """Whether the data suits the model."""
    from lm.data.examples.batches import ExampleData
    from lm.data.pairs.batches import PairData

    if isinstance(run.data, ExampleData):
        too_long = f"{run.data.shortened:,} of {run.data.samples:,} examples are longer than the context"
        return [f"{too_long}: the beginning of the prompt is left out (--context)"] if run.data.shortened else []
    tokens = run.data.tokens
    if tokens < _FEWEST_TOKENS_A_PARAMETER * parameters:
        return ["the model is far too large for this text and will learn it by heart: try a smaller --preset"]
    if isinstance(run.data, PairData):
        return []
    if min(tokens, epochs * tokens) > _MOST_TOKENS_A_PARAMETER * parameters:
        return ["the model is far too small for this much text: try a larger --preset"]
    return []


def _repeats(run: Run, parameters: int, epochs: float) -> list[str]:
    """Whether a text is so small, and comes so often, that the model is all but certain to overfit."""
    from lm.data.windows.batches import WindowData

    if not isinstance(run.data, WindowData) or run.config.training.patience is not None:
        return []
    if epochs <= _MANY_EPOCHS or run.data.tokens >= parameters:
        return []
    advice = "--patience 3 ends the run then, or give fewer --steps" if run.data.validation_bytes else "fewer --steps"
    return [f"{epochs:.0f} times the same small text: validation will get worse long before the end ({advice})"]

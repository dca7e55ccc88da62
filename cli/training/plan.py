"""What will be trained, on what and for how long, described before the first step."""

from __future__ import annotations

from cli.console.messages import fact, note
from cli.console.numbers import count, duration, quantity, threads
from cli.flags.without_effect import drops_nothing
from lm.config.model import ModelConfig
from lm.config.presets import could_be_portable
from lm.config.run import RunConfig
from lm.hardware import matrix_rate
from lm.model.block import count_parameters
from lm.model.lora import trained_weights
from lm.training.compiling import COMPILATION_SECONDS
from lm.training.loop import batch_flops
from lm.training.run import Run

_BLOCKS_AROUND = 2
"""Of BigBird's window: a query's own block and the one before it, which encoders have too."""
_BATCHES_LOOKED_AT = 20  # batches of pairs differ in their shapes


def describe(run: Run, *, is_tuned: bool = False) -> None:
    """Describe on stderr what will be trained, on what and for how long, and warn of what is unlikely to be meant.

    Args:
        run: before its first step.
        is_tuned: whether it goes on from the weights of another run, which settle its blocks.
    """
    parameters, flops = count_parameters(run.model), _planned_flops(run)
    epochs = run.plan.steps / run.data.steps_per_epoch
    kind = f"{count(parameters)} parameters (preset {run.config.preset})"
    fact("model", f"{kind}, {run.plan.dtype} on {run.plan.device}, {threads(run.plan.threads)}")
    if not is_tuned and could_be_portable(run.config):
        fact(
            "blocks", "the recipe's, which llama.cpp and CTranslate2 can't run: --portable has theirs (docs/recipe.md)"
        )
    if run.config.lora:
        fact("lora", _adapters(run))
    batch, (size, of_what) = run.data.batch_size(), run.data.epoch_size(parameters)
    epoch = f"{count(size)} {of_what}"
    fact("plan", f"{run.plan.steps:,} steps of {batch}: {epochs:.1f} epochs, {epoch}, {quantity(flops, 'FLOPs')}")
    if run.plan.micro_batch_tokens is not None:
        fact("memory", f"at most {run.plan.micro_batch_tokens:,} tokens in one pass (--micro-batch-size)")
    note(f"run     {run.folder}")
    for warning in (
        *compiling_warnings(run, flops),
        *_schedule_warnings(run),
        *_r_drop_warnings(run.config),
        *_attention_warnings(run.config.model),
        *run.data.warnings(parameters=parameters, epochs=epochs, patience=run.config.training.patience),
    ):
        fact("warning", warning)


def _adapters(run: Run) -> str:
    """What is trained beside the weights of another run."""
    trained = sum(value.numel() for value in trained_weights(run.model).values())
    share = f"{count(trained)} parameters are trained, {trained / count_parameters(run.model):.1%} of all"
    return f"rank {run.config.lora.rank} on {' and '.join(run.config.lora.kinds)}: {share}"


def _planned_flops(run: Run) -> float:
    """The arithmetic of all steps, as the first batches tell it."""
    consumed, flops = 0, 0.0
    for _ in range(_BATCHES_LOOKED_AT):
        batch = run.data.batch(consumed)
        consumed, flops = consumed + batch.rows, flops + batch_flops(run, batch)
    return run.plan.steps * flops / _BATCHES_LOOKED_AT


def compiling_warnings(run: Run, flops: float) -> list[str]:
    """A warning if compiling the model takes longer than the whole run would."""
    if not run.config.training.compile:
        return []
    shortest = flops / matrix_rate(run.hardware)
    if shortest >= COMPILATION_SECONDS:
        return []
    return [
        f"--compile takes a minute or more first, and this run is {duration(shortest)} of arithmetic at full speed: "
        "it will hardly repay it"
    ]


def _schedule_warnings(run: Run) -> list[str]:
    """A warning for each quantity that rises over more than half of the steps."""
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


def _r_drop_warnings(config: RunConfig) -> list[str]:
    """A warning if R-Drop compares two passes that are the same, as nothing is dropped."""
    if config.training.passes == 1 or not drops_nothing(config):
        return []
    return ["without dropout the two passes of R-Drop are the same: it takes twice as long for nothing (--dropout)"]


def _attention_warnings(model: ModelConfig) -> list[str]:
    """A warning if what a pattern of attention lets a query see is the whole context anyway."""
    settings = model.attention_settings
    if model.attention == "window":
        seen, flag = settings["attention_window"], "--attention-window"
    elif model.attention == "bigbird":
        blocks = settings["global_blocks"] + settings["random_blocks"] + _BLOCKS_AROUND
        seen, flag = blocks * settings["attention_block"], "--attention-block"
    else:
        return []
    if seen < model.context_length:
        return []
    return [
        f"{model.attention} attention sees {seen} positions, and the context has no more than {model.context_length}: "
        f"it is full attention at a higher price (--context, {flag})"
    ]

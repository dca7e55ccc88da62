"""A run of `lm train` from beginning to end: drawn as it happens, stopped by signals, summed up when it is over."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import typer

from cli.console.escapes import json_line, label
from cli.console.messages import fact, note
from cli.console.numbers import duration, perplexity, size
from cli.flags.options import Given
from cli.training import clock
from cli.training.budget import warn_of_few_steps
from cli.training.display import TrainingDisplay
from cli.training.request import Request
from cli.training.resuming import begun_before, resume_begun, resume_run
from cli.training.signals import StopSignals
from cli.training.starting import start_run
from cli.training.tensorboard import check_installed, is_recorded, recorder
from lm.distributed import launched
from lm.distributed.group import joined
from lm.distributed.world import World
from lm.errors import OutOfMemoryError
from lm.hardware import matrix_rate, peak_memory
from lm.training.begin import follow
from lm.training.events import Event
from lm.training.loop import train
from lm.training.run import Run


def run(request: Request, given: Given, *, tensorboard: bool | None, as_json: bool) -> None:
    """Start or resume a run and train it to its end, or until a signal comes.

    Args:
        request: what the user asks for.
        given: the settings.
        tensorboard: write for TensorBoard too; None if the run has done so before.
        as_json: print a summary in the end.

    Raises:
        typer.Exit: a signal came; with 128 and its number.
    """
    if tensorboard:
        check_installed()
    if (beginning := launched.beginning()) is not None:
        clock.begin_at(beginning)  # so that a budget counts from there
    with joined() as world:
        opened = _opened(request, given, world)
        signal_number = _train(opened, tensorboard=tensorboard)
    if as_json and world.writes:
        print(json_line(_summary(opened)))
    if signal_number and not opened.state.finished:
        raise typer.Exit(128 + signal_number)


def _opened(request: Request, given: Given, world: World) -> Run:
    """The run that is asked for. The first of several processes makes it ready, and the others follow."""
    is_anew = world.most(launched.restarts()) > 0
    if not world.writes:
        return follow(world)
    if request.resume:
        return resume_run(request.resume, request.files, given, world)
    if (begun := begun_before(request.new, is_anew=is_anew)) is not None:
        return resume_begun(begun, world)
    return start_run(request.files, request.new, given, world)


def _train(run: Run, *, tensorboard: bool | None) -> int:
    """Train, drawing what happens; returns the number of the signal that stopped it, or 0."""
    with StopSignals(says_so=run.world.size == 1) as signals:
        events = train(run, stop=signals.received)
        try:
            if run.world.writes:
                _draw(run, events, tensorboard=tensorboard)
            else:
                deque(events, maxlen=0)
        except OutOfMemoryError as error:
            raise OutOfMemoryError(f"{error} (--micro-batch-size, --checkpoint-activations)") from error
        number = run.world.most(signals.number)
    if run.state.finished:
        _describe_finished(run)
    else:
        fact("stopped", f"at step {run.state.step:,}, saved")
        note(f"next    lm train --resume {run.folder}")
    return number


def _draw(run: Run, events: Iterator[Event], *, tensorboard: bool | None) -> None:
    """Show what happens, and write it for TensorBoard if asked."""
    recorded = is_recorded(run.folder) if tensorboard is None else tensorboard
    recording = recorder(run.folder, first_step=run.state.step + 1) if recorded else nullcontext()
    rate = run.world.size * matrix_rate(run.hardware)
    display = TrainingDisplay(steps=run.plan.steps, first_step=run.state.step, matrix_rate=rate)
    with _observer("TensorBoard", recording) as record, _observer("the display", _drawing(display)) as draw:
        for event in events:
            draw(event)
            record(event)


@contextmanager
def _drawing(display: TrainingDisplay) -> Iterator[Callable[[Event], None]]:
    """The function that draws an event, while the display is open."""
    with display:
        yield display.show


@contextmanager
def _observer(
    name: str, opened: AbstractContextManager[Callable[[Event], None] | None]
) -> Iterator[Callable[[Event], None]]:
    """Something that events are passed to; if it fails, as on a full disk, training continues without it.

    Args:
        name: for the warning.
        opened: yields a function of events, or None.
    """
    observe = opened.__enter__()

    def warn(error: Exception) -> None:
        fact("warning", f"{name} failed ({label(error) or type(error).__name__}); training continues without it")

    def observed(event: Event) -> None:
        nonlocal observe
        try:
            if observe is not None:
                observe(event)
        except Exception as error:
            observe = None
            warn(error)

    try:
        yield observed
    finally:
        try:
            opened.__exit__(None, None, None)
        except Exception as error:
            warn(error)


def _describe_finished(run: Run) -> None:
    """What training came to, and commands to go on with."""
    state = run.state
    if run.config.training.budget is not None:
        warn_of_few_steps(state.step, f"{run.config.training.budget} was enough for")
    fact("done", f"{duration(state.seconds)} of training in all, {size(peak_memory())} of memory at most")
    if state.best_loss is not None:
        bleu = f", BLEU {state.best_bleu:.1f}" if state.best_bleu else ""
        scores = f"validation loss {state.best_loss:.4f}, perplexity {perplexity(state.best_loss)}{bleu}"
        fact("best", f"{scores}, at step {state.best_step:,}")
    for place, command in enumerate(_next_commands(run)):
        note(f"{'' if place else 'next':<8}{command}")


def _next_commands(run: Run) -> list[str]:
    if run.config.model.translates:
        return [f"lm translate {run.folder} < FILE", f"lm evaluate {run.folder} --source FILE --target FILE"]
    if run.config.model.labels:
        return [f"lm classify {run.folder} FILE", f"lm info {run.folder}"]
    if run.config.model.is_masked:
        fill = f'lm fill {run.folder} "... [MASK] ..."'
        return [fill, f"lm train FILE.jsonl --supervised --from {run.folder}", f"lm info {run.folder}"]
    return [f'lm generate {run.folder} "..."', f"lm perplexity {run.folder} FILE", f"lm info {run.folder}"]


def _summary(run: Run) -> dict[str, object]:
    """What training came to, as plain values."""
    state = run.state
    return {
        "run": str(run.folder), "steps": state.step, "finished": state.finished, "tokens": state.tokens,
        "best_loss": state.best_loss, "best_bleu": state.best_bleu, "best_step": state.best_step,
        "seconds": state.seconds, "flops": state.flops,
    }  # fmt: skip

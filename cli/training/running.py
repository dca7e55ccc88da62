"""A run of `lm train` from beginning to end: drawn as it happens, stopped by signals, summed up when it is over."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TypeVar

import typer

from cli.console.escapes import json_line, label
from cli.console.messages import fact, note
from cli.console.numbers import duration, many, perplexity, size
from cli.console.progress import encode_progress
from cli.flags.options import ParsedOptions
from cli.training.display import TrainingDisplay
from cli.training.plan import show_dry_run, warn_of_few_steps
from cli.training.report import report
from cli.training.tensorboard import check_installed, is_recorded, recorder
from lm.config.run_spec import RunSpec
from lm.distributed import launched
from lm.hardware import matrix_rate, peak_memory
from lm.signals import StopSignals
from lm.training.events import Warned
from lm.training.history import improved
from lm.training.run import Run
from lm.training.trainer import Event, Planned, SettingsChosen, Started, Trainer

E = TypeVar("E", Planned, Started)


def run(spec: RunSpec, given: ParsedOptions, *, tensorboard: bool | None, as_json: bool, dry_run: bool = False) -> None:
    """Train the run of a specification to its end, or until a signal comes; or only plan it.

    Args:
        spec: what the user asks for.
        given: the flags, of which some may turn out to have no effect.
        tensorboard: write for TensorBoard too; None if the run has done so before.
        as_json: print a summary in the end.
        dry_run: print the plan, what it takes and the command that repeats it, and stop.

    Raises:
        typer.Exit: a signal came; with 128 and its number.
    """
    if tensorboard:
        check_installed()
    began = given.began if (beginning := launched.beginning()) is None else beginning
    with Trainer(spec, began=began, progress=encode_progress) as trainer:
        if dry_run:
            show_dry_run(_until(Planned, trainer, given), spec)
            return
        run = _until(Started, trainer, given).run
        signal_number = _train(trainer, run, tensorboard=tensorboard)
        writes = trainer.world.writes
    if as_json and writes:
        print(json_line(_summary(run)))
    if signal_number and not run.state.finished:
        raise typer.Exit(128 + signal_number)


def _until(kind: type[E], trainer: Trainer, given: ParsedOptions) -> E:
    """The first event of a kind; those before it are reported, and flags without effect are refused."""
    for event in trainer:
        if isinstance(event, SettingsChosen):
            prepared, chosen = event.corpus.prepared is not None, event.is_regularised
            given.refuse_without_effect("settings", config=event.config, is_regularised=chosen, is_prepared=prepared)
            if not prepared:
                given.refuse_without_effect("files", files=partial(event.corpus.files, event.config))
        elif isinstance(event, Warned):
            fact("warning", event.message)
        elif trainer.world.writes:
            report(event)
        if isinstance(event, kind):
            return event
    raise AssertionError("a run is planned and begins, or is refused")


def _train(trainer: Trainer, run: Run, *, tensorboard: bool | None) -> int:
    """Train, drawing what happens; returns the number of the signal that stopped it, or 0."""
    says_so = trainer.world.size == 1
    with StopSignals(tell=_say_stopping if says_so else lambda: None) as signals:
        trainer.stop = signals.received
        if trainer.world.writes:
            _draw(run, trainer, tensorboard=tensorboard)
        else:
            deque(trainer, maxlen=0)
        number = trainer.world.most(signals.number)
    if run.state.finished:
        _describe_finished(run)
    else:
        fact("stopped", f"at step {run.state.step:,}, saved")
        note(f"next    lm train --resume {run.folder}")
    return number


def _say_stopping() -> None:
    print("stopping after this step; once more to stop at once, without saving", file=sys.stderr)


def _draw(run: Run, events: Iterable[Event], *, tensorboard: bool | None) -> None:
    """Show what happens, and write it for TensorBoard if asked."""
    recorded = is_recorded(run.folder) if tensorboard is None else tensorboard
    recording = recorder(run.folder, first_step=run.state.step + 1) if recorded else nullcontext()
    rate = run.world.size * matrix_rate(run.hardware)
    display = TrainingDisplay(
        steps=run.plan.steps, first_step=run.state.step, matrix_rate=rate, left=None if run.clock is None else run.left
    )
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
    """What training came to, and next commands."""
    state = run.state
    if run.config.training.budget is not None:
        warn_of_few_steps(state.step, f"{run.config.training.budget} was enough for")
    fact("done", f"{duration(state.seconds)} of training in all, peak memory {size(peak_memory())}")
    if state.best_loss is not None:
        bleu = f", BLEU {state.best_bleu:.1f}" if state.best_bleu else ""
        scores = f"validation loss {state.best_loss:.4f}, perplexity {perplexity(state.best_loss)}{bleu}"
        fact("best", f"{scores}, at step {state.best_step:,}{_since_best(run)}")
        if not improved(run.config, state):
            fact("", "no improvement: no later step was better than what training began with")
    for place, command in enumerate(_next_commands(run)):
        note(f"{'' if place else 'next':<8}{command}")


def _since_best(run: Run) -> str:
    """What the steps after the best one changed; nothing where there were none."""
    state, last = run.state, run.last_loss
    if state.best_loss is None or state.best_step is None or state.best_step == state.step or last is None:
        return ""
    later = many(state.step - state.best_step, "later step")
    changed = f"changed the loss by {last / state.best_loss - 1:+.1%}"
    return f"; {later} {changed}, and are not in the best checkpoint"


def _next_commands(run: Run) -> list[str]:
    if run.config.model.translates:
        return [f"lm translate {run.folder} < FILE", f"lm evaluate {run.folder} --source FILE --target FILE"]
    if run.config.model.labels or run.config.label_completions:
        return [f"lm classify {run.folder} FILE", f"lm evaluate {run.folder} FILE.jsonl", f"lm info {run.folder}"]
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
        "last_loss": run.last_loss, "improved": improved(run.config, state),
        "seconds": state.seconds, "flops": state.flops,
    }  # fmt: skip

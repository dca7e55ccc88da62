"""Running `lm train`: rendering of events, signals, and the summary at the end."""

from __future__ import annotations

import dataclasses
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

import typer

from cli.console.escapes import format_json_line, format_label
from cli.console.messages import print_labelled, print_note, quote
from cli.console.numbers import format_bytes, format_duration, format_number_of, format_perplexity
from cli.console.progress import show_activity, show_tokenization_progress
from cli.new_runs import record_decoding_dtype
from cli.training.display import TrainingDisplay
from cli.training.plan import show_dry_run
from cli.training.report import report
from cli.training.tensorboard import check_installed, open_recorder
from lm.config.run_config import RunConfig
from lm.config.run_spec import RunSpec
from lm.data.labels import count_labels
from lm.data.training_data import TrainingData
from lm.distributed import launcher_env
from lm.engine.compiled.build import compiling_in_child
from lm.engine.selection import needs_compiling
from lm.hardware import measure_matmul_flops, peak_memory
from lm.signals import StopSignals
from lm.training.events import TrainingWarning
from lm.training.planning.budget import TrainingSpeed
from lm.training.run import Run
from lm.training.run_summaries import best_accuracy, best_bits_per_byte, has_improved
from lm.training.trainer import Event, Planned, SpeedEstimator, SpeedMeter, Started, Trainer
from lm.training.training_corpus import TrainingCorpus

E = TypeVar("E", Planned, Started)

_MIN_COMPILING_SECONDS = 120.0
"""Seconds of a budget from which a child process compiles the decode step."""


def run_training(spec: RunSpec, *, started_at: float, as_json: bool, dry_run: bool) -> None:
    """Train the run of a specification until its end or a signal; or only plan it.

    After a signal, typer.Exit is raised with 128 + its number.
    """
    if spec.settings["training"].get("tensorboard"):
        check_installed()
    start_time = started_at if (launch_time := launcher_env.start_time()) is None else launch_time
    speed_meter = SpeedEstimator() if dry_run else ShownSpeedMeter()
    with Trainer(spec, start_time=start_time, progress=show_tokenization_progress, speed_meter=speed_meter) as trainer:
        if dry_run:
            show_dry_run(_wait_for(Planned, trainer), spec)
            return
        run = _wait_for(Started, trainer).run
        signal_number = _train(trainer, run)
        is_main = trainer.world.is_main
    if as_json and is_main:
        print(format_json_line(_summarise(run)))
    if signal_number and not run.state.finished:
        raise typer.Exit(128 + signal_number)


class ShownSpeedMeter(SpeedMeter):
    """Measures training speed, and says so on a terminal."""

    def measure_flop_rate(self, config: RunConfig, *, seconds: float) -> float:
        """Return what `SpeedMeter` measures."""
        with show_activity("measuring the speed of this machine"):
            return super().measure_flop_rate(config, seconds=seconds)

    def measure_training_speed(
        self, config: RunConfig, corpus: TrainingCorpus, data: TrainingData, *, seconds: float
    ) -> TrainingSpeed:
        """Return what `SpeedMeter` measures."""
        with show_activity("measuring the speed of training"):
            return super().measure_training_speed(config, corpus, data, seconds=seconds)


def _wait_for(kind: type[E], trainer: Trainer) -> E:
    """Return the first event of a kind; reports earlier ones."""
    for event in trainer:
        if isinstance(event, TrainingWarning):
            print_labelled("warning", event.message)
        elif trainer.world.is_main:
            report(event)
        if isinstance(event, kind):
            return event
    raise AssertionError("no such event")


def _train(trainer: Trainer, run: Run) -> int:
    """Train and render; returns the number of the signal that stopped training, or 0."""
    is_single = trainer.world.size == 1
    with StopSignals(on_first=_announce_stop if is_single else lambda: None) as signals:
        trainer.stop = signals.received
        if trainer.world.is_main:
            _render(run, trainer)
        else:
            deque(trainer, maxlen=0)
        number = trainer.world.all_reduce_max(signals.number)
    if not trainer.world.is_main:
        return number
    if run.state.finished:
        report_results(run, ngram_bits=() if trainer.forecast is None else trainer.forecast.ngram_bits)
    else:
        print_labelled("stopped", f"at step {run.state.step:,}, saved")
        print_note(f"next    lm train --resume {quote(run.folder)}")
    return number


def _announce_stop() -> None:
    print("stopping after this step; once more to stop at once, without saving", file=sys.stderr)


def _render(run: Run, events: Iterable[Event]) -> None:
    """Render events, and write them for TensorBoard if asked."""
    recorded = run.config.training.tensorboard
    recording = open_recorder(run.folder, first_step=run.state.step + 1) if recorded else nullcontext()
    flops_per_second = run.world.size * measure_matmul_flops(run.hardware)
    display = TrainingDisplay(
        steps=run.plan.steps,
        first_step=run.state.step,
        matmul_flops_per_second=flops_per_second,
        seconds_left=None if run.clock is None else run.seconds_to_end,
        forecast=None if run.clock is None else run.forecast_steps,
    )
    is_long = run.clock is not None and run.seconds_to_end() >= _MIN_COMPILING_SECONDS
    compiles = is_long and needs_compiling(run.config.model, run.hardware.device)
    with (
        compiling_in_child() if compiles else nullcontext(),
        _fault_tolerant("TensorBoard", recording) as record,
        _fault_tolerant("the display", _opened_display(display)) as draw,
    ):
        for event in events:
            draw(event)
            record(event)


@contextmanager
def _opened_display(display: TrainingDisplay) -> Iterator[Callable[[Event], None]]:
    """Yield the function that renders events."""
    with display:
        yield display.show


@contextmanager
def _fault_tolerant(
    name: str, opened: AbstractContextManager[Callable[[Event], None] | None]
) -> Iterator[Callable[[Event], None]]:
    """Yield a function that passes events on; if that fails, for instance on a full disk, training continues."""
    observe = opened.__enter__()

    def warn(error: Exception) -> None:
        print_labelled(
            "warning", f"{name} failed ({format_label(error) or type(error).__name__}); training continues without it"
        )

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


def report_results(run: Run, *, ngram_bits: Sequence[float]) -> None:
    """Print the results of a finished run, compared with n-gram baselines if they were measured; and next commands."""
    state = run.state
    print_labelled(
        "done",
        f"{format_duration(state.training_seconds)} of training in all, peak memory {format_bytes(peak_memory())}",
    )
    if state.best_loss is not None:
        bleu = f", BLEU {state.best_bleu:.1f}" if state.best_bleu else ""
        accuracy = best_accuracy(run.folder, run.config, state)
        model, is_supervised = run.config.model, run.config.is_supervised
        predicts_text = not (model.translates or model.is_masked or is_supervised)
        windows = " in disjoint windows" if predicts_text else ""  # lm perplexity measures text in another way
        perplexity = f"perplexity {format_perplexity(state.best_loss)}{windows}{bleu}"
        score = perplexity if accuracy is None else f"accuracy {accuracy:.1%}"
        scores = f"validation loss {state.best_loss:.4f}, {score}"
        print_labelled("best", f"{scores}, at step {state.best_step:,}{_format_later_steps(run)}")
        if not has_improved(run.config, state):
            print_labelled("", "no improvement: no later step was better than what training began with")
        if accuracy is not None:
            print_labelled("", _describe_majority(Path(run.plan.data)))
        bits = best_bits_per_byte(run.folder, state) if ngram_bits else None
        if bits is not None:
            print_labelled("", f"{bits:.2f} bits/byte; n-gram baseline {min(ngram_bits):.2f}")
    record_decoding_dtype(run.folder, dataclasses.replace(run.config.hardware, dtype="auto"))
    for index, command in enumerate(_next_commands(run)):
        print_note(f"{'' if index else 'next':<8}{command}")


def _describe_majority(data: Path) -> str:
    """Describe the accuracy of always predicting the most frequent held-out label."""
    counts = count_labels(data).validation
    label, examples = max(counts, key=lambda label: counts[label]), sum(counts.values())
    return f"always {label!r} is right for {counts[label] / examples:.1%} of the {examples:,} held-out examples"


def _format_later_steps(run: Run) -> str:
    """Format how the steps after the best checkpoint changed the loss."""
    state, last = run.state, run.last_validation_loss
    if state.best_loss is None or state.best_step is None or state.best_step == state.step or last is None:
        return ""
    later = format_number_of(state.step - state.best_step, "later step")
    change = f"{last / state.best_loss - 1:+.1%}" if state.best_loss else f"{last:+.4f}"
    return f"; {later} changed the loss by {change}, and are not in the best checkpoint"


def _next_commands(run: Run) -> list[str]:
    folder = quote(run.folder)
    if run.config.model.translates:
        return [f"lm translate {folder} < FILE", f"lm evaluate {folder} --source FILE --target FILE"]
    if run.config.is_classifier:
        evaluate_command = f"lm evaluate {folder}"  # without evaluations there is nothing held out
        evaluate = evaluate_command if run.state.best_loss is not None else f"{evaluate_command} FILE"
        return [f"lm classify {folder} FILE", evaluate, f"lm info {folder}"]
    if run.config.model.is_masked:
        fill = f'lm fill {folder} "... [MASK] ..."'
        return [fill, f"lm train FILE --label-column label --from {folder}", f"lm info {folder}"]
    if run.data.holds_conversations:
        return [f"lm chat {folder}", f"lm perplexity {folder} FILE", f"lm info {folder}"]
    return [f'lm generate {folder} "..."', f"lm perplexity {folder} FILE", f"lm info {folder}"]


def _summarise(run: Run) -> dict[str, object]:
    """Return the results of training for --json."""
    state = run.state
    return {
        "run": str(run.folder), "steps": state.step, "finished": state.finished, "tokens": state.tokens,
        "best_loss": state.best_loss, "best_bleu": state.best_bleu, "best_step": state.best_step,
        "last_loss": run.last_validation_loss, "improved": has_improved(run.config, state),
        "seconds": state.training_seconds, "flops": state.flops,
    }  # fmt: skip

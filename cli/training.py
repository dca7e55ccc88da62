"""What `lm train` shows: the plan, a live progress bar or occasional lines, the summary, TensorBoard files; signals."""

from __future__ import annotations

import dataclasses
import re
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
import typer
from rich.progress import BarColumn, TextColumn

from cli.console import (
    format_bytes,
    format_count,
    format_duration,
    format_json_line,
    format_perplexity,
    print_labelled,
    print_note,
    print_notes,
    print_warnings,
    quote,
)
from cli.console.figures import create_progress, show_counter
from cli.loading import COMMANDS, record_decoding_dtype, warn_of_repetition
from cli.runs import print_plan
from lm.config.run_spec import RunSpec
from lm.engine import compiling_in_child, needs_compiling
from lm.errors import missing_packages
from lm.model import count_parameters
from lm.model.lora import trainable_weights
from lm.run_folder import TENSORBOARD
from lm.training import launcher_env, run_log
from lm.training.measure import SpeedMeter
from lm.training.multiprocess import StopSignals
from lm.training.objective import training_state_bytes
from lm.training.plan import probe_config
from lm.training.run import Run, batch_flops
from lm.training.run_log import DecayStarted, Evaluation, Event, Sample, Step, StoppedEarly
from lm.training.trainer import Planned, Started, train_events
from lm.training.training_corpus import TrainingCorpus

Observer = Callable[[run_log.Event], None]

_MIN_COMPILING_SECONDS = 120.0
"""Seconds of a budget from which a child process compiles the decode step."""
_SECONDS_TO_MEASURE = 1.5
_PROCESS_BYTES = 3.5e8
"""Bytes of a process that has imported torch."""


def run_training(spec: RunSpec, *, started_at: float, as_json: bool, dry_run: bool) -> None:
    """Train the run of a specification until its end or a signal; or only plan it.

    After a signal, typer.Exit is raised with 128 + its number.
    """
    start_time = started_at if (launch_time := launcher_env.start_time()) is None else launch_time
    is_main, run, observers = launcher_env.rank() == 0, None, list[Observer]()
    with ExitStack() as stack:
        announce = partial(print_note, "stopping after this step; once more to stop at once, without saving")
        signals = StopSignals(on_first=announce if launcher_env.world_size() == 1 else lambda: None)
        progress = partial(show_counter, "tokenizing", "bytes")
        training = train_events(spec, stop=signals.received, progress=progress, start_time=start_time)
        stack.enter_context(closing(training))
        for event in training:
            if isinstance(event, TrainingCorpus):
                _report_corpus(event)
            elif isinstance(event, Planned):
                print_plan(event.plan.config, print_note)
                print_warnings(_left_out(event))
                if dry_run:
                    return _report_costs(event, as_json=as_json)
            elif isinstance(event, Started):
                run = event.run
                stack.enter_context(signals.handling())
                observers = stack.enter_context(_observers(event)) if is_main else observers
            else:
                for observe in observers:
                    with suppress(OSError):  # of a closed pipe, or a full disk
                        observe(event)
    assert run is not None
    state = run.state
    if is_main and state.finished:
        _report_results(run)
    elif is_main:
        print_labelled("stopped", f"at step {state.step:,}, saved")
        processes = f" --processes {run.plan.processes}" if run.plan.processes > 1 else ""
        print_note(f"next    lm train --resume {quote(run.folder)}{processes}")  # in one line, to be copied
    if as_json and is_main:
        print(format_json_line({"run": str(run.folder), "steps": state.step, **vars(state)}))
    if not state.finished:
        raise typer.Exit(128 + (signals.number or signal.SIGTERM))  # another process may have received it
    return None


@contextmanager
def _observers(started: Started) -> Iterator[list[Observer]]:
    """Report a run that starts; yield what its events are passed to: the display, and TensorBoard if asked."""
    run = started.run
    if started.is_resumed:
        print_note(f"resume  {run.folder} at step {run.state.step:,} of {run.plan.steps:,}")
    else:
        if run.config.lora:
            trained = sum(value.numel() for value in trainable_weights(run.model).values())
            share = f"{trained / count_parameters(run.model):.1%}"
            print_labelled("lora", f"{format_count(trained)} trainable parameters ({share})")
        print_note(f"run     {run.folder}")
    with ExitStack() as stack:
        is_long = (run.plan.budget_seconds or 0) >= _MIN_COMPILING_SECONDS
        if is_long and needs_compiling(run.config.model, run.hardware.device):
            stack.enter_context(compiling_in_child())
        observers: list[Observer] = [stack.enter_context(TrainingDisplay(run)).show]
        if run.config.training.tensorboard:
            observers.append(stack.enter_context(open_recorder(run.folder, first_step=run.state.step + 1)))
        yield observers


def _report_corpus(corpus: TrainingCorpus) -> None:
    """Report the sizes of both splits, and what was left out."""
    print_notes(corpus.notes)
    manifest, tokenizers = corpus.manifest, (corpus.source_tokenizer, corpus.tokenizer)
    train, held_out = manifest.splits["train"], manifest.splits["validation"]
    print_note(f"tokens  {corpus.folder}{' (made before)' * corpus.reused}")
    unit = "tokens" if manifest.kind == "text" else manifest.kind
    sizes = [format_count(split.tokens if unit == "tokens" else split.documents) for split in (train, held_out)]
    vocabulary = " and ".join(f"{tokenizer.vocab_size:,}" for tokenizer in tokenizers if tokenizer)
    parts = f"vocabulary {vocabulary}: {sizes[0]} {unit} to train on, {sizes[1]} held out"
    print_labelled("corpus", f"{format_bytes(train.bytes + held_out.bytes)}, {parts}")
    if left_out := train.left_out + held_out.left_out:
        reason = "blank, too long (parallel.max_length) or of unequal lengths (parallel.max_ratio)"
        print_labelled("", f"left out: {left_out:,} {reason}")
    warn_of_repetition(manifest)


def _left_out(event: Planned) -> list[str]:
    """Return a warning of examples and conversations that nothing is learned of."""
    documents, context = event.corpus.manifest.splits["train"].documents, event.plan.config.model.context_length
    if event.corpus.kind not in ("examples", "conversations") or (left_out := documents - event.data.samples) <= 0:
        return []
    return [f"{left_out:,} {event.corpus.kind} are left out: what is learned doesn't fit into the context, {context:,}"]


def _report_costs(event: Planned, *, as_json: bool) -> None:
    """Report the time of a plan and its memory besides activations; print its settings if `as_json`."""
    config, data = event.plan.config, event.data
    if config.training.budget is None:
        assert config.plan is not None
        steps = config.plan.steps
        probe = probe_config(event.plan, pairs=data.holds_pairs)
        rate = SpeedMeter().measure_flop_rate(probe, seconds=_SECONDS_TO_MEASURE)
        print_labelled("time", f"about {format_duration(steps * batch_flops(config, data.batch(0)) / rate)}")
    print_labelled("memory", f"{format_bytes(_PROCESS_BYTES + training_state_bytes(config))} and activations")
    if as_json:
        print(format_json_line(config.to_dict()))


def _report_results(run: Run) -> None:
    """Print the results of a finished run, and next commands."""
    state, config = run.state, run.config
    took = format_duration(state.training_seconds)
    print_labelled("done", f"{took} of training in all, peak memory {format_bytes(_peak_memory())}")
    if state.best_loss is not None:
        scores = format_scores(state.best_loss, state.best_bits_per_byte, state.best_accuracy, state.best_bleu)
        print_labelled("best", f"{', '.join(scores)}, at step {state.best_step:,} of {state.step:,}")
    record_decoding_dtype(run.folder, dataclasses.replace(config.hardware, dtype="auto"))
    other = "classify" if config.label_completions else COMMANDS[config.model.purpose]
    command = "chat" if run.data.holds_conversations else other
    print_note(f"next    lm {command} {quote(run.folder)}")


def _peak_memory() -> int:
    """Return the peak memory of this process in bytes: on the GPU if it used one, else resident."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


_PLAIN_LINES = 20


class TrainingDisplay:
    """Renders training events."""

    def __init__(self, run: Run) -> None:
        """Create the display of a run."""
        self.run, self.tokens, self.seconds = run, 0, 0.0
        self.began = time.perf_counter()
        self.first_step = run.state.step
        self.log_interval = max(1, (run.plan.steps - run.state.step) // _PLAIN_LINES)
        self.progress = create_progress(
            TextColumn("{task.completed:,}/{task.total:,}"), BarColumn(bar_width=None),
            TextColumn("nll {task.fields[nll]} {task.fields[speed]}"), TextColumn("{task.fields[left]} left"),
            transient=False,
        )  # fmt: skip
        self.task = self.progress.add_task(
            "", total=run.plan.steps, completed=run.state.step, nll="–", speed="", left="–"
        )

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def show(self, event: Event) -> None:
        """Render an event."""
        text = ""
        if isinstance(event, Step):
            self._show_step(event)
        elif isinstance(event, Sample):
            prompt, sample = (re.sub(r"\s+", " ", part) for part in (event.prompt, event.text))
            text = f"{prompt} → {sample.strip()}" if event.is_translation else f'"{prompt}" continues "{sample}"'
        elif isinstance(event, DecayStarted):
            reason = "the validation loss no longer falls: " if event.on_plateau else ""
            if event.restored_step is not None:
                reason += f"back to the weights of step {event.restored_step:,}, the best; "
            text = f"{reason}the learning rate decays from here to the end, about step {event.steps:,}"
        elif isinstance(event, StoppedEarly) and event.patience_ran_out:
            text = "evaluations no longer improve (training.patience)"
        elif isinstance(event, Evaluation):
            scores = format_scores(event.loss, event.bits_per_byte, event.accuracy, event.bleu)
            text = "  ".join([*scores, "best"] if event.is_best else scores)
        if text:
            print_note(f"step {event.step:>6,}  {text}")

    def _show_step(self, event: Step) -> None:
        plan, seconds, taken = self.run.plan, time.perf_counter() - self.began, event.step - self.first_step
        steps = max(plan.steps, event.step)  # under a budget the total is an estimate
        nll = self.run.state.training_loss
        self.tokens, self.seconds = self.tokens + event.tokens, self.seconds + event.seconds
        left = seconds / taken * (steps - event.step)
        if plan.budget_seconds is not None and self.run.clock is not None:
            left = max(0.0, self.run.clock.seconds - seconds)
        speed, time_left = f"{format_count(self.tokens / self.seconds)} tok/s", format_duration(left)
        self.progress.update(
            self.task, total=steps, completed=event.step, nll=f"{nll:.3f}", speed=speed, left=time_left
        )
        if self.progress.disable and (event.step % self.log_interval == 0 or event.step == steps):
            rate = f"lr {event.learning_rate:.1e}"
            print_note(f"step {event.step:>6,}/{steps:,}  nll {nll:.4f}  {rate}  {speed}  {time_left} left")


def format_scores(loss: float, bits_per_byte: float | None, accuracy: float | None, bleu: float | None) -> list[str]:
    """Format the scores of an evaluation."""
    others = ("BLEU {:.2f}", bleu), ("accuracy {:.1%}", accuracy), ("{:.3f} bits/byte", bits_per_byte)
    shown = [form.format(value) for form, value in others if value is not None]
    return [f"validation loss {loss:.4f}", f"perplexity {format_perplexity(loss)}", *shown]


@contextmanager
def open_recorder(run: Path, *, first_step: int) -> Iterator[Callable[[Event], None]]:
    """Yield a function that writes the numbers of events to TensorBoard files, by the names of the logs.

    Earlier records from `first_step` on are hidden.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise missing_packages("training.tensorboard", "tensorboard") from None
    with closing(SummaryWriter(str(run / TENSORBOARD), purge_step=first_step)) as writer:

        def record(event: Event) -> None:
            values = vars(event) if isinstance(event, Step) else {}
            for name, value in (event.metrics if isinstance(event, Evaluation) else values).items():
                writer.add_scalar(name, value, event.step)

        yield record

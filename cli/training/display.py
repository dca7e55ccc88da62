"""Display of training: a live progress bar on a terminal, occasional lines elsewhere."""

from __future__ import annotations

import re
import time
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, TextColumn

from cli.console.progress import create_progress
from cli.console.text import (
    format_count,
    format_duration,
    format_perplexity,
    print_note,
)
from lm.training.events import DecayStarted, Evaluation, Event, Sample, Step, StoppedEarly
from lm.training.run import Run

_PLAIN_LINES = 20
_SMOOTHING = 0.9


class TrainingDisplay:
    """Renders training events."""

    def __init__(self, run: Run) -> None:
        """Create the display of a run."""
        self.run, self.nll, self.tokens, self.seconds = run, 0.0, 0, 0.0
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
            text = "evaluations no longer improve (--patience)"
        elif isinstance(event, Evaluation):
            scores = format_scores(event.loss, event.bits_per_byte, event.accuracy, event.bleu)
            text = "  ".join([*scores, "best"] if event.is_best else scores)
        if text:
            print_note(f"step {event.step:>6,}  {text}")

    def _show_step(self, event: Step) -> None:
        plan, seconds, taken = self.run.plan, time.perf_counter() - self.began, event.step - self.first_step
        steps = max(plan.steps, event.step)  # under a budget the total is an estimate
        keep = min(_SMOOTHING, 1 - 1 / taken)
        self.nll = keep * self.nll + (1 - keep) * event.nll
        self.tokens, self.seconds = self.tokens + event.tokens, self.seconds + event.seconds
        left = seconds / taken * (steps - event.step)
        if plan.budget_seconds is not None and self.run.clock is not None:
            left = max(0.0, self.run.clock.seconds - seconds)
        speed, time_left = f"{format_count(self.tokens / self.seconds)} tok/s", format_duration(left)
        self.progress.update(
            self.task, total=steps, completed=event.step, nll=f"{self.nll:.3f}", speed=speed, left=time_left
        )
        if self.progress.disable and (event.step % self.log_interval == 0 or event.step == steps):
            rate = f"lr {event.learning_rate:.1e}"
            print_note(f"step {event.step:>6,}/{steps:,}  nll {self.nll:.4f}  {rate}  {speed}  {time_left} left")


def format_scores(loss: float, bits_per_byte: float | None, accuracy: float | None, bleu: float | None) -> list[str]:
    """Format the scores of an evaluation."""
    others = ("BLEU {:.2f}", bleu), ("accuracy {:.1%}", accuracy), ("{:.3f} bits/byte", bits_per_byte)
    shown = [form.format(value) for form, value in others if value is not None]
    return [f"validation loss {loss:.4f}", f"perplexity {format_perplexity(loss)}", *shown]

"""Display of training: a live progress bar on a terminal, occasional lines elsewhere."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, TextColumn
from rich.text import Text

from cli.console.plots import sparkline
from cli.console.progress import create_progress
from cli.console.text import (
    escape_controls_and_line_ends,
    format_count,
    format_duration,
    format_perplexity,
    print_note,
    wrap_hanging,
)
from lm.training.events import (
    DecayStarted,
    EndRescheduled,
    Evaluation,
    Replanned,
    Sample,
    Step,
    StoppedEarly,
    TrainingWarning,
)
from lm.training.trainer import Event

_PLAIN_LINES = 20
_SMOOTHING = 0.9
_RECENT_STEPS = 200  # whose time forecasts the rest
_CURVE_WIDTH = 10
_STEP_HEADING = len("step 123,456  ") - 1
_BESIDE_COUNTS = 65


class TrainingDisplay:
    """Renders training events."""

    def __init__(
        self,
        *,
        steps: int,
        first_step: int,
        matmul_flops_per_second: float,
        seconds_left: Callable[[], float] | None = None,
        forecast: Callable[[], int] | None = None,
    ) -> None:
        """Create the display of steps `first_step` + 1 to `steps`; MFU is relative to the speed of a matmul.

        Under a budget, `seconds_left` returns the seconds that are left of it, and `forecast` its last step.
        """
        self.steps, self.left, self.forecast = steps, seconds_left, forecast
        self.matmul_flops_per_second = matmul_flops_per_second
        self.nll, self.tokens, self.flops = 0.0, 0, 0.0
        self.recent: list[float] = []
        self.smoothed: list[float] = []
        self.shown, self.seconds = 0, 0.0
        self.times = deque([time.perf_counter()], maxlen=_RECENT_STEPS + 1)
        self.log_interval = max(1, (steps - first_step) // _PLAIN_LINES)
        self.progress = create_progress(
            TextColumn("{task.completed:,}/{task.total:,}"), BarColumn(bar_width=None),
            TextColumn("nll {task.fields[nll]} {task.fields[curve]}{task.fields[speed]}"),
            TextColumn("{task.fields[left]} left"), transient=False,
        )  # fmt: skip
        self.task = self.progress.add_task("", total=steps, completed=first_step, nll="–", curve="", speed="", left="–")

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def show(self, event: Event) -> None:
        """Render an event."""
        if isinstance(event, Step):
            self._show_step(event)
        elif isinstance(event, Sample):
            prompt, text = (re.sub(r"\s+", " ", part) for part in (event.prompt, event.text))
            shown = f"{prompt} → {text.strip()}" if event.is_translation else f'"{prompt}" continues "{text}"'
            self._print(escape_controls_and_line_ends(f"step {event.step:>6,}  {shown}"))
        elif isinstance(event, DecayStarted | EndRescheduled | Replanned):
            self._set_total(event.steps)
            if isinstance(event, DecayStarted):
                reason = "the validation loss no longer falls: " if event.on_plateau else ""
                if event.restored_step is not None:
                    reason += f"back to the weights of step {event.restored_step:,}, the best; "
                end = f"the end, about step {event.steps:,}"
                self._print(f"step {event.step:>6,}  {reason}the learning rate decays from here to {end}")
            elif isinstance(event, Replanned):
                slower = f"a step takes {event.seconds:.3g} s, and {event.measured:.3g} s were measured"
                self._print(f"step {event.step:>6,}  {slower}: about {event.steps:,} steps in all")
        elif isinstance(event, TrainingWarning):
            self._print(escape_controls_and_line_ends(f"step {event.step:>6,}  warning: {event.message}"))
        elif isinstance(event, StoppedEarly) and event.patience_ran_out:
            stopped = {"loss": "the validation loss has stopped falling", "bleu": "BLEU has stopped rising"}
            self._print(f"step {event.step:>6,}  {stopped[event.criterion]} (--patience)")
        elif isinstance(event, Evaluation):
            best = "  best" if event.is_best else ""
            self._print(
                f"step {event.step:>6,}  validation loss {event.loss:.4f}  perplexity {format_perplexity(event.loss)}  "
                f"{_further_score(event)}{_expert_use(event)}{best}"
            )

    def _set_total(self, steps: int) -> None:
        self.steps = steps
        self.progress.update(self.task, total=steps)

    def _show_step(self, event: Step) -> None:
        steps = self.steps if self.forecast is None else self.forecast()
        if max(steps, event.step) != self.steps:  # under a budget the total is not known yet
            self._set_total(max(steps, event.step))
        self.shown += 1
        self.seconds += event.seconds
        keep = min(_SMOOTHING, 1 - 1 / self.shown)
        nll = event.loss if event.nll is None else event.nll
        self.nll = keep * self.nll + (1 - keep) * nll
        self.smoothed.append(self.nll)
        self.recent.append(nll)
        self.tokens, self.flops = self.tokens + event.tokens, self.flops + event.flops
        utilisation = self.flops / self.seconds / self.matmul_flops_per_second
        speed = f"{format_count(self.tokens / self.seconds)} tok/s {utilisation:.0%} MFU"
        self.times.append(time.perf_counter())
        by_speed = (self.times[-1] - self.times[0]) / (len(self.times) - 1) * (self.steps - event.step)
        time_left = format_duration(max(0.0, by_speed if self.left is None else self.left()))
        self.progress.update(
            self.task, completed=event.step, nll=f"{self.nll:.3f}", curve=self._curve(), speed=speed, left=time_left
        )
        if self.progress.disable and (event.step % self.log_interval == 0 or event.step == self.steps):
            self._print(
                f"step {event.step:>6,}/{self.steps:,}  nll {sum(self.recent) / len(self.recent):.4f}  "
                f"lr {event.learning_rate:.1e}  {speed}  {time_left} left"
            )
            self.recent.clear()

    def _curve(self) -> str:
        """Return a sparkline of the loss, if there is space."""
        if self.progress.console.width - len(f"{self.steps:,}/{self.steps:,}") < _BESIDE_COUNTS:
            return ""
        shown = self.smoothed[:: len(self.smoothed) // (2 * _CURVE_WIDTH) + 1]
        return sparkline(shown, _CURVE_WIDTH) + " "

    def _print(self, text: str) -> None:
        if self.progress.disable:
            print_note(text)
        else:
            console = self.progress.console
            shown = wrap_hanging(text, width=console.width, indent=_STEP_HEADING)
            console.print(Text(shown), soft_wrap=True)


def _further_score(event: Evaluation) -> str:
    """Format BLEU, accuracy or bits/byte, whichever is most informative."""
    if event.bleu is not None:
        return f"BLEU {event.bleu:.2f}"
    return f"accuracy {event.accuracy:.1%}" if event.accuracy is not None else f"{event.bits_per_byte:.3f} bits/byte"


def _expert_use(event: Evaluation) -> str:
    """Format the smallest and largest fraction of tokens per expert."""
    used = [fraction for fractions in event.expert_use.values() for fraction in fractions]
    return f"  experts {min(used):.0%} to {max(used):.0%}" if used else ""

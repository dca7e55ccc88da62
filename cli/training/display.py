"""Display of training: a live progress bar on a terminal, occasional lines elsewhere."""

from __future__ import annotations

import re
import time
from collections import deque
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
    Evaluation,
    Sample,
    Step,
    StoppedEarly,
    TrainingWarning,
)
from lm.training.run import Run
from lm.training.trainer import Event

_PLAIN_LINES = 20
_SMOOTHING = 0.9
_RECENT_STEPS = 200  # whose time forecasts the rest
_CURVE_WIDTH = 10
_STEP_HEADING = len("step 123,456  ") - 1
_BESIDE_COUNTS = 65


class TrainingDisplay:
    """Renders training events."""

    def __init__(self, run: Run, *, matmul_flops_per_second: float) -> None:
        """Create the display of a run; MFU is relative to the speed of a matmul."""
        self.run, self.matmul_flops_per_second = run, matmul_flops_per_second
        self.steps = run.plan.steps
        self.nll, self.tokens, self.flops, self.seconds = 0.0, 0, 0.0, 0.0
        self.recent: list[float] = []
        self.smoothed: list[float] = []
        self.times = deque([time.perf_counter()], maxlen=_RECENT_STEPS + 1)
        self.log_interval = max(1, (self.steps - run.state.step) // _PLAIN_LINES)
        self.progress = create_progress(
            TextColumn("{task.completed:,}/{task.total:,}"), BarColumn(bar_width=None),
            TextColumn("nll {task.fields[nll]} {task.fields[curve]}{task.fields[speed]}"),
            TextColumn("{task.fields[left]} left"), transient=False,
        )  # fmt: skip
        self.task = self.progress.add_task(
            "", total=self.steps, completed=run.state.step, nll="–", curve="", speed="", left="–"
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
        if isinstance(event, Step):
            self._show_step(event)
        elif isinstance(event, Sample):
            prompt, text = (re.sub(r"\s+", " ", part) for part in (event.prompt, event.text))
            shown = f"{prompt} → {text.strip()}" if event.is_translation else f'"{prompt}" continues "{text}"'
            self._print(escape_controls_and_line_ends(f"step {event.step:>6,}  {shown}"))
        elif isinstance(event, DecayStarted):
            reason = "the validation loss no longer falls: " if event.on_plateau else ""
            if event.restored_step is not None:
                reason += f"back to the weights of step {event.restored_step:,}, the best; "
            end = f"the end, about step {event.steps:,}"
            self._print(f"step {event.step:>6,}  {reason}the learning rate decays from here to {end}")
        elif isinstance(event, TrainingWarning):
            self._print(escape_controls_and_line_ends(f"step {event.step:>6,}  warning: {event.message}"))
        elif isinstance(event, StoppedEarly) and event.patience_ran_out:
            stopped = {"loss": "the validation loss has stopped falling", "bleu": "BLEU has stopped rising"}
            self._print(f"step {event.step:>6,}  {stopped[event.criterion]} (--patience)")
        elif isinstance(event, Evaluation):
            scores = [f"validation loss {event.loss:.4f}", f"perplexity {format_perplexity(event.loss)}"]
            scores += [f"BLEU {event.bleu:.2f}"] if event.bleu is not None else []
            scores += [f"accuracy {event.accuracy:.1%}"] if event.accuracy is not None else []
            scores += [f"{event.bits_per_byte:.3f} bits/byte"] if event.bits_per_byte is not None else []
            if used := [fraction for fractions in event.expert_use.values() for fraction in fractions]:
                scores.append(f"experts {min(used):.0%} to {max(used):.0%}")
            self._print(f"step {event.step:>6,}  {'  '.join(scores)}{'  best' if event.is_best else ''}")

    def _show_step(self, event: Step) -> None:
        self.steps = max(self.run.forecast_steps(), event.step)  # under a budget the total is not known yet
        self.seconds += event.seconds
        keep = min(_SMOOTHING, 1 - 1 / (len(self.smoothed) + 1))
        nll = event.loss if event.nll is None else event.nll
        self.nll = keep * self.nll + (1 - keep) * nll
        self.smoothed.append(self.nll)
        self.recent.append(nll)
        self.tokens, self.flops = self.tokens + event.tokens, self.flops + event.flops
        utilisation = self.flops / self.seconds / self.matmul_flops_per_second
        speed = f"{format_count(self.tokens / self.seconds)} tok/s {utilisation:.0%} MFU"
        self.times.append(time.perf_counter())
        left = (self.times[-1] - self.times[0]) / (len(self.times) - 1) * (self.steps - event.step)
        if self.run.clock is not None:
            left = self.run.seconds_to_end()
        time_left = format_duration(max(0.0, left))
        self.progress.update(
            self.task, total=self.steps, completed=event.step, nll=f"{self.nll:.3f}", curve=self._curve(), speed=speed,
            left=time_left,
        )  # fmt: skip
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

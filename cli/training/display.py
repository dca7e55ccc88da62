"""Training as it happens: a live line on a terminal, now and then a plain line elsewhere."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, TextColumn
from rich.text import Text

from cli.console.curves import sparkline
from cli.console.escapes import visible
from cli.console.messages import note
from cli.console.numbers import count, duration, perplexity
from cli.console.progress import progress
from cli.console.wrapping import hanging
from lm.training.events import Decay, EndMoved, Evaluation, Replanned, Sample, Step, Stopped, Warned
from lm.training.trainer import Event

_PLAIN_LINES = 20
_SMOOTHING = 0.9
_CURVE_WIDTH = 10
_STEP_HEADING = len("step 123,456  ") - 1
_BESIDE_COUNTS = 65


class TrainingDisplay:
    """Draws the events of training: a live line on a terminal, now and then a plain line elsewhere."""

    def __init__(
        self, *, steps: int, first_step: int, matrix_rate: float, left: Callable[[], float] | None = None
    ) -> None:
        """Draw the steps from first_step + 1 to the last.

        Args:
            steps: the number of the last step.
            first_step: steps that an earlier process has taken.
            matrix_rate: FLOP/s of matmuls, of which model-FLOPs utilisation is a fraction.
            left: seconds that are left of a budget, if there is one.
        """
        self.steps, self.matrix_rate, self.left = steps, matrix_rate, left
        self.nll, self.tokens, self.flops = 0.0, 0, 0.0
        self.recent: list[float] = []
        self.smoothed: list[float] = []
        self.shown, self.began, self.seconds = 0, time.perf_counter(), 0.0
        self.every = max(1, (steps - first_step) // _PLAIN_LINES)
        self.progress = progress(
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
        """Draw one event."""
        if isinstance(event, Step):
            self._step(event)
        elif isinstance(event, Sample):
            prompt, text = (re.sub(r"\s+", " ", part) for part in (event.prompt, event.text))
            shown = f"{prompt} → {text.strip()}" if event.is_translation else f'"{prompt}" continues "{text}"'
            self._line(visible(f"step {event.step:>6,}  {shown}"))
        elif isinstance(event, Decay | EndMoved | Replanned):
            self._expect(event.steps)
            if isinstance(event, Decay):
                why = "the validation loss no longer falls: " if event.on_plateau else ""
                end = f"the end, about step {event.steps:,}"
                self._line(f"step {event.step:>6,}  {why}the learning rate falls from here to {end}")
            elif isinstance(event, Replanned):
                slower = f"a step takes {event.seconds:.3g} s, and {event.measured:.3g} s were measured"
                self._line(f"step {event.step:>6,}  {slower}: about {event.steps:,} steps in all")
        elif isinstance(event, Warned):
            self._line(visible(f"step {event.step:>6,}  warning: {event.message}"))
        elif isinstance(event, Stopped) and event.patience_ran_out:
            stopped = {"loss": "the validation loss has stopped falling", "bleu": "BLEU has stopped rising"}
            self._line(f"step {event.step:>6,}  {stopped[event.criterion]} (--patience)")
        elif isinstance(event, Evaluation):
            best = "  best" if event.is_best else ""
            self._line(
                f"step {event.step:>6,}  validation loss {event.loss:.4f}  perplexity {perplexity(event.loss)}  "
                f"{_further_score(event)}{_expert_use(event)}{best}"
            )

    def _expect(self, steps: int) -> None:
        """Move the end to a number of steps."""
        self.steps = steps
        self.progress.update(self.task, total=steps)

    def _step(self, event: Step) -> None:
        if event.step > self.steps:  # under a budget, the clock has not told yet how many there will be
            self._expect(event.step)
        self.shown += 1
        self.seconds += event.seconds
        keep = min(_SMOOTHING, 1 - 1 / self.shown)
        nll = event.loss if event.nll is None else event.nll
        self.nll = keep * self.nll + (1 - keep) * nll
        self.smoothed.append(self.nll)
        self.recent.append(nll)
        self.tokens, self.flops = self.tokens + event.tokens, self.flops + event.flops
        utilisation = self.flops / self.seconds / self.matrix_rate
        speed = f"{count(self.tokens / self.seconds)} tok/s {utilisation:.0%} MFU"
        by_pace = (time.perf_counter() - self.began) / self.shown * (self.steps - event.step)
        left = duration(max(0.0, by_pace if self.left is None else self.left()))
        self.progress.update(
            self.task, completed=event.step, nll=f"{self.nll:.3f}", curve=self._curve(), speed=speed, left=left
        )
        if self.progress.disable and (event.step % self.every == 0 or event.step == self.steps):
            self._line(
                f"step {event.step:>6,}/{self.steps:,}  nll {sum(self.recent) / len(self.recent):.4f}  "
                f"lr {event.learning_rate:.1e}  {speed}  {left} left"
            )
            self.recent.clear()

    def _curve(self) -> str:
        """The course of the nll, where there is room for it and a bar."""
        if self.progress.console.width - len(f"{self.steps:,}/{self.steps:,}") < _BESIDE_COUNTS:
            return ""
        shown = self.smoothed[:: max(1, len(self.smoothed) // (2 * _CURVE_WIDTH) + 1)]
        return sparkline(shown, _CURVE_WIDTH) + " "

    def _line(self, text: str) -> None:
        if self.progress.disable:
            note(text)
        else:
            console = self.progress.console
            shown = hanging(text, width=console.width, indent=_STEP_HEADING)
            console.print(Text(shown), soft_wrap=True)


def _further_score(event: Evaluation) -> str:
    """BLEU, accuracy or bits per byte, of which an evaluation has the one that tells most."""
    if event.bleu is not None:
        return f"BLEU {event.bleu:.2f}"
    return f"accuracy {event.accuracy:.1%}" if event.accuracy is not None else f"{event.bits_per_byte:.3f} bits/byte"


def _expert_use(event: Evaluation) -> str:
    """The smallest and the largest share of the tokens of a layer that an expert took, where there are experts."""
    used = [share for shares in event.expert_use.values() for share in shares]
    return f"  experts {min(used):.0%} to {max(used):.0%}" if used else ""

"""What commands draw: numbers for people, tables, and training as it happens."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from cli.console.colours import BARS
from cli.console.curves import sparkline
from cli.console.escapes import harmless, label, visible
from cli.console.wrapping import hanging
from lm.training.events import Decay, EndMoved, Evaluation, Sample, Step, Stopped

if TYPE_CHECKING:
    from lm.training.events import Event

_PLAIN_LINES = 20
_SMOOTHING = 0.9
_NUMBER = re.compile(r"((~ ?|-)?\d[\d.,:/e+-]*%?( ?\w{1,2})?|–)?")
_CURVE_WIDTH = 10
_ECHO = len("^C") + 1
_HEADING = 8
_STEP_HEADING = len("step 123,456  ") - 1
_NARROWEST_COLUMN = 8
_BESIDE_COUNTS = 65


def note(text: str) -> None:
    """One line about what is going on, on stderr; what would command a terminal is drawn."""
    print(harmless(text), file=sys.stderr, flush=True)


def fact(name: str, text: str) -> None:
    """A line about what is going on under a name, on stderr; a terminal gets it broken between words."""
    line = f"{name:<{_HEADING}}{text}"
    note(hanging(line, width=Console(stderr=True).width, indent=_HEADING) if sys.stderr.isatty() else line)


def paragraph(text: str) -> None:
    """A line on stdout; a terminal gets it broken between words."""
    text = harmless(text)
    print(hanging(text, width=Console().width) if sys.stdout.isatty() else text)


class _BarConsole(Console):
    """Stderr without its last columns: the ^C that a terminal echoes there would move a bar to the next line."""

    @property
    def options(self) -> ConsoleOptions:
        """How to draw."""
        return super().options.update(width=max(1, self.width - _ECHO))


def progress_console() -> Console:
    """Stderr, for progress bars in colours that read on any background."""
    return _BarConsole(stderr=True, theme=Theme(BARS))


def count(number: float) -> str:
    """A number at a glance: 812, 4.1k, 12.3M, 1.5G."""
    for limit, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= limit:
            return f"{number / limit:.3g}{prefix}"
    return f"{number:.3g}"


def threads(number: int) -> str:
    """How many there are: 1 thread, 2 threads."""
    return f"{number} thread{'' if number == 1 else 's'}"


def quantity(number: float, unit: str) -> str:
    """A number with a unit at a glance: 812 B, 12.3 MB, 4.5 GFLOPs."""
    shown = count(number)
    digits = shown.rstrip("kMGTPE")
    return f"{digits} {shown[len(digits) :]}{unit}"


def size(number: float) -> str:
    """Bytes at a glance: 812 B, 4.1 kB, 12.3 MB."""
    return quantity(number, "B")


def duration(seconds: float) -> str:
    """A time at a glance: 8.1 s, 2:05, 1:02:05."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on stdout, numbers to the right.

    A terminal that is wide enough gets it framed, one that is not its widest text broken between words; all others
    get a line a row. What would command a terminal is drawn.
    """
    rows = [list(map(label, row)) for row in rows]
    is_number = [all(_NUMBER.fullmatch(row[place]) for row in rows) for place in range(len(columns))]
    if sys.stdout.isatty() and (drawn := _drawn(columns, rows, is_number)):
        Console().print(drawn)
        return
    lines = [list(columns), *rows]
    widths = _widths(lines)
    for line in lines:
        spaces = [" " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)]
        cells = zip(line, spaces, is_number, strict=True)
        print("  ".join(space + cell if right else cell + space for cell, space, right in cells).rstrip())


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    """Columns of the terminal that each column of a table needs."""
    return [max(max(map(cell_len, cell.split("\n"))) for cell in cells) for cells in zip(*lines, strict=True)]


def _drawn(columns: Sequence[str], rows: Sequence[Sequence[str]], is_number: Sequence[bool]) -> Table | None:
    """A table that fits the terminal; None if that is too narrow for one."""
    widths, room, gaps = _widths([columns, *rows]), Console().width, 2 * (len(columns) - 1)
    framed, wrapped = sum(widths) + 3 * len(widths) + 1 <= room, None
    if sum(widths) + gaps > room:
        columns = [re.sub(r" |(?<=/)", "\n", name) for name in columns]
        widths = _widths([columns, *rows])
    if sum(widths) + gaps > room:
        texts = [place for place, right in enumerate(is_number) if not right]
        wrapped = max(texts, key=lambda place: widths[place], default=None)
        if wrapped is None or sum(widths) - widths[wrapped] + gaps + min(widths[wrapped], _NARROWEST_COLUMN) > room:
            return None
    style, padding = (box.HEAVY_HEAD, (0, 1)) if framed else (None, (0, 2, 0, 0))
    drawn = Table(header_style="bold", box=style, pad_edge=framed, padding=padding)
    for place, (name, right) in enumerate(zip(columns, is_number, strict=True)):
        drawn.add_column(Text(name), justify="right" if right else "left", no_wrap=place != wrapped, overflow="fold")
    for row in rows:
        drawn.add_row(*map(Text, row))
    return drawn


class TrainingDisplay:
    """Draws the events of training: a live line on a terminal, now and then a plain line elsewhere."""

    def __init__(self, *, steps: int, first_step: int, matrix_rate: float) -> None:
        """For steps first_step + 1 … steps; model-FLOPs utilisation is against `matrix_rate` FLOP/s."""
        self.steps, self.matrix_rate = steps, matrix_rate
        self.loss, self.tokens, self.flops = 0.0, 0, 0.0
        self.recent: list[float] = []
        self.losses: list[float] = []
        self.shown, self.began, self.seconds = 0, time.perf_counter(), 0.0
        self.every = max(1, (steps - first_step) // _PLAIN_LINES)
        console = progress_console()
        self.progress = Progress(
            TextColumn("{task.completed:,}/{task.total:,}"), BarColumn(bar_width=None),
            TextColumn("loss {task.fields[loss]} {task.fields[curve]}{task.fields[speed]}"),
            TimeRemainingColumn(compact=True), TextColumn("left"), console=console, disable=not console.is_terminal,
        )  # fmt: skip
        self.task = self.progress.add_task("", total=steps, completed=first_step, loss="–", curve="", speed="")

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
            shown = f"{prompt} → {text.strip()}" if event.is_translation else f'"{prompt}" goes on "{text}"'
            self._line(visible(f"step {event.step:>6,}  {shown}"))
        elif isinstance(event, Decay | EndMoved):
            self._expect(event.steps)
            if isinstance(event, Decay):
                end = f"the end, about step {event.steps:,}"
                self._line(f"step {event.step:>6,}  the learning rate falls from here to {end}")
        elif isinstance(event, Stopped) and event.patience_ran_out:
            self._line(f"step {event.step:>6,}  the validation loss has stopped falling (--patience)")
        elif isinstance(event, Evaluation):
            other = f"{event.bits_per_byte:.3f} bits/byte" if event.bleu is None else f"BLEU {event.bleu:.2f}"
            best = "  best" if event.is_best else ""
            self._line(
                f"step {event.step:>6,}  validation loss {event.loss:.4f}  perplexity {perplexity(event.loss)}  "
                f"{other}{best}"
            )

    def _expect(self, steps: int) -> None:
        self.steps = steps
        self.progress.update(self.task, total=steps)

    def _step(self, event: Step) -> None:
        if event.step > self.steps:  # of a budget, whose clock has not said yet how many there will be
            self._expect(event.step)
        self.shown += 1
        self.seconds += event.seconds
        keep = min(_SMOOTHING, 1 - 1 / self.shown)
        self.loss = keep * self.loss + (1 - keep) * event.loss
        self.losses.append(self.loss)
        self.recent.append(event.loss)
        self.tokens, self.flops = self.tokens + event.tokens, self.flops + event.flops
        utilisation = self.flops / self.seconds / self.matrix_rate
        speed = f"{count(self.tokens / self.seconds)} tok/s {utilisation:.0%} MFU"
        self.progress.update(self.task, completed=event.step, loss=f"{self.loss:.3f}", curve=self._curve(), speed=speed)
        if self.progress.disable and (event.step % self.every == 0 or event.step == self.steps):
            left = (time.perf_counter() - self.began) / self.shown * (self.steps - event.step)
            self._line(
                f"step {event.step:>6,}/{self.steps:,}  loss {sum(self.recent) / len(self.recent):.4f}  "
                f"lr {event.learning_rate:.1e}  {speed}  {duration(left)} left"
            )
            self.recent.clear()

    def _curve(self) -> str:
        """The course of the loss, where there is room for it and a bar."""
        if self.progress.console.width - len(f"{self.steps:,}/{self.steps:,}") < _BESIDE_COUNTS:
            return ""
        shown = self.losses[:: max(1, len(self.losses) // (2 * _CURVE_WIDTH) + 1)]
        return sparkline(shown, _CURVE_WIDTH) + " "

    def _line(self, text: str) -> None:
        if self.progress.disable:
            note(text)
        else:
            console = self.progress.console
            shown = hanging(text, width=console.width, indent=_STEP_HEADING)
            console.print(Text(shown), soft_wrap=True)


def perplexity(nats: float) -> str:
    """The perplexity of a mean loss, as text."""
    return f"{math.exp(nats):.2f}" if nats < 20 else "over 1e8"

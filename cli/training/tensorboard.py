"""TensorBoard files of training events, in RUN/tensorboard/."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lm.errors import missing_packages
from lm.run_folder import TENSORBOARD
from lm.training.events import Evaluation, Sample, Step
from lm.training.trainer import Event

_FLUSH_SECONDS = 10


def check_installed() -> None:
    """Raise InputError unless TensorBoard is installed."""
    _writer_class()


@contextmanager
def open_recorder(run: Path, *, first_step: int) -> Iterator[Callable[[Event], None]]:
    """Yield a function that writes events to TensorBoard files, with the names of the logs.

    Earlier records from `first_step` on are hidden.
    """
    writer = _writer_class()(str(run / TENSORBOARD), purge_step=first_step, flush_secs=_FLUSH_SECONDS)

    def record(event: Event) -> None:
        if isinstance(event, Step | Evaluation):
            for name, value in _scalars(event).items():
                writer.add_scalar(name, value, event.step)
        if isinstance(event, Sample):
            writer.add_text(f"sample/{event.prompt}", _code_block(event.text), event.step)

    try:
        yield record
    finally:
        writer.close()


def _writer_class() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise missing_packages("training.tensorboard", "tensorboard") from None
    return SummaryWriter


def _scalars(event: Step | Evaluation) -> dict[str, float]:
    if isinstance(event, Step):
        return {
            "loss": event.loss,
            **({} if event.nll is None else {"nll": event.nll}),
            "learning_rate": event.learning_rate,
            "gradient_norm": event.gradient_norm,
            "tokens_per_second": event.tokens / event.seconds,
        }
    return {name: value for name, value in event.metrics.items() if name != "validation_tokens"}


def _code_block(text: str) -> str:
    """Format text as a Markdown code block."""
    return "".join(f"    {line}\n" for line in text.split("\n"))

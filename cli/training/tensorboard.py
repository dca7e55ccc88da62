"""TensorBoard files of training events, in RUN/tensorboard/."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lm.errors import missing_packages
from lm.run_folder import TENSORBOARD
from lm.training.events import Evaluation, Sample, Step
from lm.training.trainer import Event

_FLUSH_SECONDS = 10


@contextmanager
def open_recorder(run: Path, *, first_step: int) -> Iterator[Callable[[Event], None]]:
    """Yield a function that writes events to TensorBoard files, with the names of the logs.

    Earlier records from `first_step` on are hidden.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise missing_packages("training.tensorboard", "tensorboard") from None
    writer = SummaryWriter(str(run / TENSORBOARD), purge_step=first_step, flush_secs=_FLUSH_SECONDS)

    def record(event: Event) -> None:
        scalars: dict[str, float] = {}
        if isinstance(event, Step):
            names = ("loss", "nll", "learning_rate", "gradient_norm")
            scalars = {name: getattr(event, name) for name in names if getattr(event, name) is not None}
            scalars["tokens_per_second"] = event.tokens / event.seconds
        elif isinstance(event, Evaluation):
            scalars = {name: value for name, value in event.metrics.items() if name != "validation_tokens"}
        elif isinstance(event, Sample):
            code = "".join(f"    {line}\n" for line in event.text.split("\n"))
            writer.add_text(f"sample/{event.prompt}", code, event.step)
        if isinstance(event, Step | Evaluation):
            for name, value in scalars.items():
                writer.add_scalar(name, value, event.step)

    try:
        yield record
    finally:
        writer.close()

"""TensorBoard files of training events, in RUN/tensorboard/."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from lm.errors import missing_packages
from lm.run_folder import TENSORBOARD
from lm.training.events import Evaluation, Event, Step


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

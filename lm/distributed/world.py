"""The processes that train a run together, as one of them sees them; here one that is alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from torch import Tensor

from lm.config.hardware import DistributionConfig
from lm.data.batch import Batch
from lm.distributed.placement import Loss, Placement
from lm.distributed.turns import Turn, turns

T = TypeVar("T")
R = TypeVar("R")


class World:
    """All processes of a run, of which there is one. What several would exchange, it answers from what it has.

    Attributes:
        rank: which process this is.
        size: how many there are.
    """

    rank = 0
    size = 1

    @property
    def writes(self) -> bool:
        """Whether this process prepares data and writes files: one does, for all."""
        return self.rank == 0

    def turns(self, batch: Batch, *, rows: int | None = None) -> Iterator[Turn]:
        """What of a batch goes through the model here, at most so many rows at a time; see `turns`."""
        return turns(batch, rank=self.rank, size=self.size, rows=rows)

    def placed(self, loss: Loss, config: DistributionConfig) -> Placement:  # noqa: ARG002
        """The weights of a loss, put where this process needs them to train."""
        return Placement(loss)

    def told(self, value: T | None) -> T:
        """What the first process says, to all; the others say None."""
        assert value is not None
        return value

    def told_tensors(self, tensors: Mapping[str, Tensor] | None) -> Mapping[str, Tensor]:
        """The same for named tensors."""
        assert tensors is not None
        return tensors

    def total(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        return value

    def summed(self, *values: float) -> Sequence[float]:
        """The sum of each number over all processes, as exact as float64 is."""
        return values

    def most(self, value: int) -> int:
        """The largest of the numbers that the processes have."""
        return value

    def now(self, clock: Callable[[], float] | None = None) -> float:
        """Seconds on the first process's clock, by default `time.monotonic`; the same for all that ask together."""
        return time.monotonic() if clock is None else clock()

    def spread(self, items: Sequence[T], work: Callable[[Sequence[T]], list[R]]) -> list[R]:
        """What some work makes of each item, in order; each process does its part, and all have the whole."""
        return work(items)


ALONE = World()

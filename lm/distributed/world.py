"""The ranks that train a run together, as seen from one of them; here a single process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from torch import Tensor

from lm.config.hardware import DistributionConfig
from lm.data.batch import Batch
from lm.distributed.strategy import LossModule, MicroBatch, ParallelStrategy, split_micro_batches

T = TypeVar("T")
R = TypeVar("R")


class World:
    """A world of one process, where collectives are trivial; the base class of `DistributedWorld`."""

    rank = 0
    size = 1

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which prepares data and writes files for all."""
        return self.rank == 0

    def micro_batches(self, batch: Batch, *, rows: int | None = None) -> Iterator[MicroBatch]:
        """Yield this rank's micro-batches of a batch, of at most `rows` rows each."""
        return split_micro_batches(batch, rank=self.rank, size=self.size, rows=rows)

    def parallelize(self, loss: LossModule, config: DistributionConfig) -> ParallelStrategy:  # noqa: ARG002
        """Apply the parallel strategy of a run to a model and its loss."""
        return ParallelStrategy(loss)

    def broadcast(self, value: T | None) -> T:
        """Return rank 0's value on all ranks; the others pass None."""
        assert value is not None
        return value

    def broadcast_tensors(self, tensors: Mapping[str, Tensor] | None) -> Mapping[str, Tensor]:
        """Return rank 0's named tensors on all ranks; the others pass None."""
        assert tensors is not None
        return tensors

    def all_reduce(self, value: Tensor) -> Tensor:
        """Return the sum of a tensor over all ranks."""
        return value

    def all_reduce_sum(self, *values: float) -> Sequence[float]:
        """Return the sum of each number over all ranks, in float64."""
        return values

    def all_reduce_max(self, value: int) -> int:
        """Return the maximum of a number over all ranks."""
        return value

    def synced_time(self, clock: Callable[[], float] | None = None) -> float:
        """Return seconds of rank 0's clock [default: `time.monotonic`]; equal on all ranks."""
        return time.monotonic() if clock is None else clock()

    def parallel_map(self, items: Sequence[T], function: Callable[[Sequence[T]], list[R]]) -> list[R]:
        """Apply a function to a list of items, divided over the ranks; every rank gets all results, in order.

        Args:
            items: the same on all ranks.
            function: maps some of the items to as many results.
        """
        return function(items)


SINGLE_PROCESS = World()

"""The ranks that train a run together, as seen from one of them: a single process, or torch.distributed's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from lm.data.batch import Batch
from lm.distributed import launcher_env
from lm.distributed.parallel import MicroBatch, split_micro_batches
from lm.errors import TrainingError
from lm.signals import default_signal_handling

T = TypeVar("T")
R = TypeVar("R")

_STEP_TIMEOUT = timedelta(minutes=30)
"""Time after which a rank that does not take part in a step or in writing a checkpoint is considered lost."""
_PREPARATION_TIMEOUT = timedelta(days=7)
"""Timeout of broadcasts that wait while rank 0 prepares a corpus, which takes long for a large one."""
_GLOO_ERRORS = (
    "gloo", "onnection closed", "onnection reset", "onnection refused", "roken pipe", "imed out", "pair closure",
)  # fmt: skip
"""Parts of the messages of the plain RuntimeErrors that Gloo raises for a lost rank; stores and NCCL have exception
types."""

_process_groups: list[Any] = []
"""Kept until the process ends: if DDP were the last to release one, it would hold the GIL, for which a thread of gloo
waits."""


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

    def broadcast(self, value: T | None) -> T:
        """Return rank 0's value on all ranks; the others pass None."""
        assert value is not None
        return value

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


class DistributedWorld(World):
    """A `World` of several ranks. All methods are collective: every rank calls them in the same order."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        _process_groups.append(dist.group.WORLD)
        self._patient_group = dist.new_group(backend="gloo", timeout=_PREPARATION_TIMEOUT)

    def broadcast(self, value: T | None) -> T:
        objects = [value]
        with default_signal_handling():
            dist.broadcast_object_list(objects, src=0, group=self._patient_group)
        assert objects[0] is not None
        return objects[0]

    def all_reduce(self, value: Tensor) -> Tensor:
        value = value.clone()
        dist.all_reduce(value)
        return value

    def all_reduce_sum(self, *values: float) -> Sequence[float]:
        return self.all_reduce(torch.tensor(values, dtype=torch.float64)).tolist()

    def all_reduce_max(self, value: int) -> int:
        maximum = torch.tensor(value)
        dist.all_reduce(maximum, op=dist.ReduceOp.MAX)
        return int(maximum)

    def synced_time(self, clock: Callable[[], float] | None = None) -> float:
        seconds = torch.tensor(super().synced_time(clock), dtype=torch.float64)
        dist.broadcast(seconds, src=0)
        return float(seconds)

    def parallel_map(self, items: Sequence[T], function: Callable[[Sequence[T]], list[R]]) -> list[R]:
        local_items = items[self.rank :: self.size]
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, function(local_items) if local_items else [])
        return [gathered[index % self.size][index // self.size] for index in range(len(items))]


@contextmanager
def init_distributed() -> Iterator[World]:
    """Join the process group that the launcher describes; yields a world of one process without a launcher.

    If one rank fails, all end, and one of them reports the error: the first to fail or, if a process was killed, the
    first to notice.

    Raises:
        TrainingError: another process has ended or cannot be reached.
    """
    if launcher_env.world_size() == 1:
        yield SINGLE_PROCESS
        return
    with default_signal_handling():
        _join_process_group()
    try:
        with default_signal_handling():
            world = DistributedWorld()
        yield world
        dist.destroy_process_group()
    except Exception as error:
        launcher_env.reporting.is_first = _is_first_failure()
        if is_lost_rank(error):
            raise TrainingError(
                "another process of this training has ended or cannot be reached: resume from the last checkpoint, "
                "or start again if there is none",
            ) from error
        raise


def _join_process_group() -> None:
    if launcher_env.local_rank() < torch.cuda.device_count():
        torch.cuda.set_device(launcher_env.local_rank())
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        dist.init_process_group(backend, timeout=_STEP_TIMEOUT)
    except (ValueError, RuntimeError) as error:
        problem = (str(error).splitlines() or [type(error).__name__])[0]
        raise TrainingError(f"the processes cannot reach each other ({problem})") from error


def is_lost_rank(error: Exception) -> bool:
    """Whether an error means that another rank has ended or cannot be reached."""
    if isinstance(error, dist.DistError):
        return True
    return type(error) is RuntimeError and any(words in str(error) for words in _GLOO_ERRORS)


def _is_first_failure() -> bool:
    """Whether this rank is the first to fail, or the store cannot be reached."""
    try:
        return int(dist.distributed_c10d._get_default_store().add("failed", 1)) == 1
    except (RuntimeError, ValueError):
        return True

"""Data-parallel training on several ranks of a torch.distributed process group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from lm.config.hardware import DistributionConfig
from lm.distributed import launcher_env
from lm.distributed.rendezvous import join_process_group
from lm.distributed.strategy import DDPStrategy, LossModule, ParallelStrategy
from lm.distributed.world import SINGLE_PROCESS, World
from lm.errors import TrainingError, UsageError
from lm.signals import default_signal_handling

T = TypeVar("T")
R = TypeVar("R")

_PREPARATION_TIMEOUT = timedelta(days=7)
"""Timeout of broadcasts that wait while rank 0 prepares a corpus, which takes long for a large one."""

_GLOO_ERRORS = (
    "gloo",
    "onnection closed",
    "onnection reset",
    "onnection refused",
    "roken pipe",
    "imed out",
    "pair closure",
)
"""Parts of the messages of the plain RuntimeErrors that Gloo raises for a lost rank; stores and NCCL have exception
types."""

_process_groups: list[dist.ProcessGroup | None] = []
"""Kept until the process ends: if DDP were the last to release one, it would hold the GIL, for which a thread of gloo
waits.
"""


class DistributedWorld(World):
    """A `World` of several ranks. All methods are collective: every rank calls them in the same order."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        _process_groups.append(dist.group.WORLD)
        self._patient_group = dist.new_group(backend="gloo", timeout=_PREPARATION_TIMEOUT)

    def parallelize(self, loss: LossModule, config: DistributionConfig) -> ParallelStrategy:
        device = next(loss.model.parameters()).device
        if config.offload and device.type == "cpu":
            raise UsageError(
                "offloading moves weights from a GPU to CPU memory, and this run is on the CPU: leave it out",
            )
        if device.type == "cuda" and launcher_env.local_rank() >= torch.cuda.device_count():
            available = torch.cuda.device_count()
            raise UsageError(
                f"each process needs a GPU of its own, and this machine has {available}",
            )
        if config.shard:
            from lm.distributed.fsdp import FSDPStrategy  # noqa: PLC0415 (slow import)

            for weight in loss.model.parameters():
                dist.broadcast(weight.detach(), src=0)
            return FSDPStrategy(loss, size=self.size, offload=config.offload)
        return DDPStrategy(loss, size=self.size)

    def broadcast(self, value: T | None) -> T:
        objects = [value]
        with default_signal_handling():
            dist.broadcast_object_list(objects, src=0, group=self._patient_group)
        assert objects[0] is not None
        return objects[0]

    def broadcast_tensors(self, tensors: Mapping[str, Tensor] | None) -> Mapping[str, Tensor]:
        shapes = self.broadcast(None if tensors is None else {name: (t.shape, t.dtype) for name, t in tensors.items()})
        received = tensors or {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in shapes.items()}
        for name in shapes:
            dist.broadcast(received[name], src=0)
        return received

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
        store = join_process_group()
    try:
        with default_signal_handling():
            group = DistributedWorld()
        yield group
        dist.destroy_process_group()
    except Exception as error:
        launcher_env.set_reporting(_is_first_failure(store))
        if is_lost_rank(error):
            raise TrainingError(
                "another process of this training has ended or cannot be reached: resume from the last checkpoint, "
                "or start again if there is none",
            ) from error
        raise


def is_lost_rank(error: Exception) -> bool:
    """Whether an error means that another rank has ended or cannot be reached."""
    if isinstance(error, dist.DistError):
        return True
    return type(error) is RuntimeError and any(words in str(error) for words in _GLOO_ERRORS)


def _is_first_failure(store: Store) -> bool:
    """Whether this rank is the first to fail, or the store cannot be reached."""
    try:
        return int(store.add("failed", 1)) == 1
    except RuntimeError:
        return True

"""Several processes that train a run together, joined by torch.distributed."""

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
from lm.distributed import launched
from lm.distributed.meeting import meet
from lm.distributed.placement import Loss, Placement
from lm.distributed.replicated import Replicated
from lm.distributed.world import ALONE, World
from lm.errors import TrainingError, UsageError
from lm.signals import ended_at_once

T = TypeVar("T")
R = TypeVar("R")

_PREPARING = timedelta(days=7)
"""That all wait for the first to prepare a corpus: it is long for one that is large."""

_OF_GLOO = (
    "gloo",
    "onnection closed",
    "onnection reset",
    "onnection refused",
    "roken pipe",
    "imed out",
    "pair closure",
)
"""Words of the plain RuntimeErrors that Gloo raises for a lost rank; stores and NCCL have exceptions of their own."""


class Group(World):
    """Some processes, of which each does its part and knows the sum of all. What one asks of it, all ask in order."""

    def __init__(self) -> None:
        """The processes that have joined."""
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._patient = dist.new_group(backend="gloo", timeout=_PREPARING)

    def placed(self, loss: Loss, config: DistributionConfig) -> Placement:
        """See `World.placed`."""
        device = next(loss.model.parameters()).device
        if config.offload and device.type == "cpu":
            raise UsageError(
                "offloading moves what a GPU has to the machine's memory, and this run is there: leave it out",
                settings=["offload"],
            )
        if device.type == "cuda" and launched.local_rank() >= torch.cuda.device_count():
            there = torch.cuda.device_count()
            raise UsageError(
                f"each process takes a GPU of its own, and there are {there} here", settings=["processes", "device"]
            )
        if config.shard:
            from lm.distributed.sharded import Sharded  # noqa: PLC0415 (takes a while, and only to shard)

            for weight in loss.model.parameters():
                dist.broadcast(weight.detach(), src=0)
            return Sharded(loss, size=self.size, offload=config.offload)
        return Replicated(loss, size=self.size)

    def told(self, value: T | None) -> T:
        """See `World.told`."""
        held = [value]
        with ended_at_once():
            dist.broadcast_object_list(held, src=0, group=self._patient)
        assert held[0] is not None
        return held[0]

    def told_tensors(self, tensors: Mapping[str, Tensor] | None) -> Mapping[str, Tensor]:
        """See `World.told_tensors`."""
        described = self.told(None if tensors is None else {name: (t.shape, t.dtype) for name, t in tensors.items()})
        found = tensors or {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in described.items()}
        for name in described:
            dist.broadcast(found[name], src=0)
        return found

    def total(self, value: Tensor) -> Tensor:
        """See `World.total`."""
        value = value.clone()
        dist.all_reduce(value)
        return value

    def summed(self, *values: float) -> Sequence[float]:
        """See `World.summed`."""
        return self.total(torch.tensor(values, dtype=torch.float64)).tolist()

    def most(self, value: int) -> int:
        """See `World.most`."""
        found = torch.tensor(value)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return int(found)

    def now(self, clock: Callable[[], float] | None = None) -> float:
        """See `World.now`."""
        seconds = torch.tensor(super().now(clock), dtype=torch.float64)
        dist.broadcast(seconds, src=0)
        return float(seconds)

    def spread(self, items: Sequence[T], work: Callable[[Sequence[T]], list[R]]) -> list[R]:
        """See `World.spread`."""
        mine = items[self.rank :: self.size]
        done: list[Any] = [None] * self.size
        dist.all_gather_object(done, work(mine) if mine else [])
        return [done[place % self.size][place // self.size] for place in range(len(items))]


@contextmanager
def joined() -> Iterator[World]:
    """The world of this process, as its launcher has it; of several, none is here before all are.

    While open, an error of one ends all, and one of them speaks: the first to fail, or, where one was killed, the first
    to notice.

    Raises:
        TrainingError: another process has ended, or cannot be reached.
    """
    if launched.size() == 1:
        yield ALONE
        return
    with ended_at_once():
        store = meet()
    try:
        with ended_at_once():
            group = Group()
        yield group
        dist.destroy_process_group()
    except Exception as error:
        launched.let_speak(_is_first_to_fail(store))
        if is_lost_rank(error):
            raise TrainingError(
                "another process of this training has ended or cannot be reached; what was saved is there: "
                "resume it, or start again if nothing was",
                settings=["resume"],
            ) from error
        raise


def is_lost_rank(error: Exception) -> bool:
    """Whether an error says that another process has ended or cannot be reached."""
    if isinstance(error, dist.DistError):
        return True
    return type(error) is RuntimeError and any(words in str(error) for words in _OF_GLOO)


def _is_first_to_fail(store: Store) -> bool:
    """Whether no other process has failed before this one; so too where there is nobody left to ask."""
    try:
        return int(store.add("failed", 1)) == 1
    except RuntimeError:
        return True

"""The ranks that train a run together, and how they divide its batches and weights: one process, DDP or FSDP."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from operator import itemgetter
from typing import Any, Literal, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from lm.data import Batch
from lm.errors import TrainingError, UsageError
from lm.model import Block, init_empty_weights
from lm.processes import default_signal_handling
from lm.training import launcher_env

T = TypeVar("T")
R = TypeVar("R")
M = TypeVar("M", bound=nn.Module)
Ranks = Literal["single", "replicated", "sharded"]
"""How the ranks hold the weights: one alone, each all of them (DDP), or each a shard (FSDP)."""

_STEP_TIMEOUT = timedelta(minutes=30)
"""Time after which a rank that does not take part in a step or in writing a checkpoint is considered lost."""
_PREPARATION_TIMEOUT = timedelta(days=7)
"""Timeout of broadcasts that wait while rank 0 prepares a corpus, which takes long for a large one."""
_process_groups: list[Any] = []
"""Kept until the process ends: if DDP were the last to release one, it would hold the GIL, for which a thread of gloo
waits."""


class MicroBatch(NamedTuple):
    """Rows of a batch for one forward and backward pass, which all ranks make together.

    Attributes:
        is_real: False for a dummy: a rank without rows left takes one of another rank, to take part in the collectives,
            and its loss is multiplied by 0.
        is_last: whether it is the last micro-batch of its batch.
    """

    batch: Batch
    is_real: bool
    is_last: bool


@dataclass(frozen=True)
class World:
    """The ranks, as seen from one of them. All methods are collective: every rank calls them in the same order."""

    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which prepares data and writes files for all."""
        return self.rank == 0

    def micro_batches(self, batch: Batch, *, rows: int | None = None) -> Iterator[MicroBatch]:
        """Yield the micro-batches of this rank; every rank gets as many.

        Args:
            batch: the global batch; rows are divided evenly where possible.
            rows: maximum rows of a micro-batch; None for one micro-batch.
        """
        begin, end = (batch.rows * number // self.size for number in (self.rank, self.rank + 1))
        rows_per_rank = -(-batch.rows // self.size)
        rows_per_pass = rows or rows_per_rank
        for start in range(0, rows_per_rank, rows_per_pass):
            first = begin + start
            part = slice(first, min(first + rows_per_pass, end)) if first < end else slice(0, 1)
            is_last = start + rows_per_pass >= rows_per_rank
            yield MicroBatch(batch.map_arrays(itemgetter(part)), first < end, is_last)

    def broadcast(self, value: T | None) -> T:
        """Return rank 0's value on all ranks, however long it takes to prepare; the others pass None."""
        objects = [value]
        if self.size > 1:
            with default_signal_handling():
                dist.broadcast_object_list(objects, src=0, group=_process_groups[-1])
        assert objects[0] is not None
        return objects[0]

    def all_reduce(self, value: Tensor, *, op: Any = dist.ReduceOp.SUM) -> Tensor:
        """Return the sum of a tensor over all ranks, or its maximum."""
        if self.size > 1:
            value = value.clone()
            dist.all_reduce(value, op=op)
        return value

    def all_reduce_sum(self, *values: float) -> Sequence[float]:
        """Return the sum of each number over all ranks, in float64."""
        return self.all_reduce(torch.tensor(values, dtype=torch.float64)).tolist()

    def all_reduce_max(self, value: int) -> int:
        """Return the maximum of a number over all ranks."""
        return int(self.all_reduce(torch.tensor(value), op=dist.ReduceOp.MAX))

    def synced_time(self, clock: Callable[[], float] | None = None) -> float:
        """Return seconds of rank 0's clock [default: `time.monotonic`]; equal on all ranks."""
        return self.all_reduce_sum((clock or time.monotonic)() if self.is_main else 0.0)[0]

    def parallel_map(self, items: Sequence[T], function: Callable[[Sequence[T]], list[R]]) -> list[R]:
        """Apply a function to a list of items, divided over the ranks; every rank gets all results, in order.

        Args:
            items: the same on all ranks.
            function: maps some of the items to as many results.
        """
        if self.size == 1:
            return function(items)
        local_items = items[self.rank :: self.size]
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, function(local_items) if local_items else [])
        return [gathered[index % self.size][index // self.size] for index in range(len(items))]


SINGLE_PROCESS = World()


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
    try:
        with default_signal_handling():
            if launcher_env.local_rank() < torch.cuda.device_count():
                torch.cuda.set_device(launcher_env.local_rank())
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            store, rank, size = next(rendezvous("env://", timeout=_STEP_TIMEOUT))
            if launcher_env.is_one_machine():  # whose processes, started again, would else find the former addresses
                store = PrefixStore(f"start-{launcher_env.restart_count()}", store)
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_STEP_TIMEOUT)
            _process_groups[:] = dist.group.WORLD, dist.new_group(backend="gloo", timeout=_PREPARATION_TIMEOUT)
        yield World(dist.get_rank(), dist.get_world_size())
        dist.destroy_process_group()
    except Exception as error:
        launcher_env.reporting.is_first = _is_first_failure()
        # gloo raises plain RuntimeErrors
        if isinstance(error, dist.DistError) or (type(error) is RuntimeError and "gloo" in str(error)):
            raise TrainingError("another process of this training has ended or cannot be reached: resume it") from error
        raise


def _is_first_failure() -> bool:
    """Whether this rank is the first to fail, or the store cannot be reached."""
    try:
        return int(dist.distributed_c10d._get_default_store().add("failed", 1)) == 1
    except (RuntimeError, ValueError):
        return True


class ParallelLoss:
    """A model with its training loss, on one of several ranks.

    With DDP each rank has all weights; all start with those of rank 0. With FSDP it has a shard of each, by rows;
    blocks are gathered one at a time, and other weights stay gathered from their first use in a step to their last.

    Source: Li et al. 2020 (PyTorch Distributed); Zhao et al. 2023 (PyTorch FSDP).
    """

    def __init__(self, loss: nn.Module, *, size: int = 1, shard: bool = False) -> None:
        """Distribute the weights; collective.

        Args:
            loss: returns the summed loss of a batch and sums in nats, see `Objective.forward`; `loss.model` owns all
                parameters.
            shard: whether to use FSDP, if there are several ranks.
        """
        self._loss: Any = loss
        self._call: Any = loss
        self._size = size
        self.ranks: Ranks = "single" if size == 1 else "sharded" if shard else "replicated"
        device, available = next(loss.parameters()).device.type, torch.cuda.device_count()
        if size > 1 and device == "cuda" and launcher_env.local_rank() >= available:
            raise UsageError(f"each process needs a GPU of its own, and this machine has {available}")
        if self.ranks == "replicated":
            # gradient buckets never change: torch would rebuild them after the first step if every weight were known to
            # have a gradient, and a resumed run would then sum in another order
            self._call = DistributedDataParallel(loss, find_unused_parameters=True, gradient_as_bucket_view=True)
        elif self.ranks == "sharded":
            from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415 (slow import)
            from torch.distributed.fsdp import FSDPModule, fully_shard  # noqa: PLC0415

            mesh = init_device_mesh(device, (size,))
            for module in [*(module for module in loss.modules() if isinstance(module, Block)), loss]:
                fully_shard(module, mesh=mesh)
            for module in loss.modules():
                if isinstance(module, FSDPModule):
                    module.set_force_sum_reduction_for_comms(device == "cpu")  # gloo has no average

    def backward(self, micro_batch: MicroBatch, *, learned: float, member: int = 0) -> Tensor:
        """Add the gradients of a micro-batch's loss, divided by the targets of the whole batch; returns sums in nats.

        Gradients are synchronised at the last micro-batch of a batch. DDP and FSDP average over ranks, so the loss is
        multiplied by their number.
        """
        context: AbstractContextManager[object] = nullcontext()
        if self.ranks == "sharded":
            self._loss.set_requires_gradient_sync(micro_batch.is_last)
        elif self.ranks == "replicated" and not micro_batch.is_last:
            context = self._call.no_sync()
        with context:
            loss, nats = self._call(micro_batch.batch, member)
            (loss * (self._size * micro_batch.is_real) / learned).backward()
        sums: Tensor = nats * micro_batch.is_real
        return sums

    def clip_gradients(self, max_norm: float) -> Tensor:
        """Scale the gradients of each member down to a norm, unless it is 0; return the mean norm before."""
        norms = list[Tensor]()
        for member in self._loss.model.members:
            own = (weight for name, weight in member.named_parameters() if not name.startswith("ensemble."))
            gradients = [weight.grad for weight in own if weight.grad is not None]
            norms.append(norm := full_tensor(nn.utils.get_total_norm(gradients)))
            # without a need it would read all gradients to scale them by 1; on a GPU comparing norms would sync
            if max_norm > 0 and (norm.is_cuda or max_norm < float(norm) < float("inf")):
                torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0))  # as in torch
        return torch.stack(norms).mean()

    def full_model(self, model: M) -> M:
        """Return the model with full weights in this process, for inference; collective."""
        if self.ranks != "sharded":
            return model
        with init_empty_weights():
            copy = type(model)(model.config)
        copy.load_state_dict({name: full_tensor(value) for name, value in model.state_dict().items()}, assign=True)
        return copy.eval().requires_grad_(False)


def full_tensor(value: Any) -> Tensor:
    """Gather a sharded tensor on all ranks; another one is returned as it is."""
    gathered: Tensor = value.full_tensor() if hasattr(value, "device_mesh") else value
    return gathered


def shard_like(weight: Any, value: Tensor) -> Tensor:
    """Move a full tensor to where `weight` is, and shard it in the same way."""
    if not hasattr(weight, "device_mesh") or value.shape != weight.shape:
        return value.to(weight.device)
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415 (slow import)

    sharded: Tensor = distribute_tensor(
        value.to(weight.device), weight.device_mesh, weight.placements, src_data_rank=None
    )
    return sharded

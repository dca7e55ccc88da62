"""How ranks divide a batch and the weights of a model: one process, DDP, or FSDP."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lm.data.batch import Batch
from lm.distributed import launcher_env
from lm.errors import UsageError
from lm.model.transformer import Block, init_empty_weights

M = TypeVar("M", bound=nn.Module)


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


def split_micro_batches(batch: Batch, *, rank: int, size: int, rows: int | None) -> Iterator[MicroBatch]:
    """Yield the micro-batches of a rank; every rank gets as many.

    Args:
        batch: the global batch; rows are divided evenly where possible.
        rows: maximum rows of a micro-batch; None for one micro-batch.
    """
    begin, end = (batch.rows * number // size for number in (rank, rank + 1))
    rows_per_rank = -(-batch.rows // size)
    rows_per_pass = rows or rows_per_rank
    for start in range(0, rows_per_rank, rows_per_pass):
        first = begin + start
        is_real = first < end
        row_slice = slice(first, min(first + rows_per_pass, end)) if is_real else slice(0, 1)
        yield MicroBatch(
            batch.map_arrays(itemgetter(row_slice)), is_real, is_last=start + rows_per_pass >= rows_per_rank
        )


class ParallelLoss:
    """A model with its training loss, on one of several ranks.

    With DDP each rank has all weights; all start with those of rank 0. With FSDP it has a shard of each, by rows;
    blocks are gathered one at a time, and other weights stay gathered from their first use in a step to their last.

    Source: Li et al. 2020 (PyTorch Distributed); Zhao et al. 2023 (PyTorch FSDP).

    Attributes:
        is_sharded: whether it is FSDP.
    """

    def __init__(self, loss: nn.Module, *, size: int = 1, shard: bool = False, offload: bool = False) -> None:
        """Distribute the weights; collective.

        Args:
            loss: returns the summed loss of a batch and sums in nats, see `Objective.forward`; `loss.model` owns all
                parameters.
            shard: whether to use FSDP, if there are several ranks.
            offload: whether the shards of GPUs are kept in CPU memory.
        """
        self._loss: Any = loss
        self._call: Any = loss
        self._size, self.is_sharded = size, shard and size > 1
        on_gpu, available = next(loss.parameters()).device.type == "cuda", torch.cuda.device_count()
        if size > 1 and on_gpu and launcher_env.local_rank() >= available:
            raise UsageError(f"each process needs a GPU of its own, and this machine has {available}")
        if self.is_sharded:
            self._shard(offload)
        elif size > 1:
            # gradient buckets never change: torch would rebuild them after the first step if every weight were known to
            # have a gradient, and a resumed run would then sum in another order
            self._call = DistributedDataParallel(loss, find_unused_parameters=True, gradient_as_bucket_view=True)

    def _shard(self, offload: bool) -> None:
        from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415 (slow import)
        from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard  # noqa: PLC0415

        device = next(self._loss.parameters()).device.type
        if offload and device == "cpu":
            raise UsageError("offloading moves weights from a GPU to CPU memory, and this run is on the CPU")
        for weight in self._loss.parameters():
            dist.broadcast(weight.detach(), src=0)
        mesh, policy = init_device_mesh(device, (self._size,)), CPUOffloadPolicy() if offload else OffloadPolicy()
        blocks = [module for module in self._loss.modules() if isinstance(module, Block)]
        for module in (*blocks, self._loss):
            fully_shard(module, mesh=mesh, offload_policy=policy)
        for module in self._loss.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(device == "cpu")  # gloo has no average

    def backward(self, micro_batch: MicroBatch, *, learned: float) -> Tensor:
        """Add the gradients of a micro-batch's loss, divided by the targets of the whole batch; returns sums in nats.

        Gradients are synchronised at the last micro-batch of a batch. DDP and FSDP average over ranks, so the loss is
        multiplied by their number.
        """
        context: AbstractContextManager[object] = nullcontext()
        if self.is_sharded:
            self._loss.set_requires_gradient_sync(micro_batch.is_last)
        elif self._size > 1 and not micro_batch.is_last:
            context = self._call.no_sync()
        with context:
            loss, nats = self._call(micro_batch.batch)
            (loss * (self._size * micro_batch.is_real) / learned).backward()
        sums: Tensor = nats * micro_batch.is_real
        return sums

    def gradient_norm(self) -> Tensor:
        """Return the norm of all gradients."""
        norm = nn.utils.get_total_norm(self._gradients())
        if self.is_sharded:
            squares = norm.square()
            dist.all_reduce(squares)
            norm = squares.sqrt()
        return norm

    def clip_gradients(self, max_norm: float, norm: Tensor) -> None:
        """Scale the gradients down to `max_norm`, given their norm."""
        torch._foreach_mul_(self._gradients(), (max_norm / (norm + 1e-6)).clamp(max=1.0))  # as in torch

    def _gradients(self) -> list[Tensor]:
        """Return the gradients, or this rank's shards of them."""
        gradients = [weight.grad for weight in self._loss.model.parameters() if weight.grad is not None]
        return [gradient.to_local() for gradient in gradients] if self.is_sharded else gradients

    def full_tensors(self, tensors: Mapping[str, Tensor]) -> Iterable[tuple[str, Tensor]]:
        """Yield weights, or tensors sharded like them, as full tensors; copy each before taking the next."""
        return ((name, full_tensor(value)) for name, value in tensors.items()) if self.is_sharded else tensors.items()

    def full_model(self, model: M) -> M:
        """Return the model with full weights in this process, for inference; collective."""
        if not self.is_sharded:
            return model
        with init_empty_weights():
            copy = type(model)(model.config)
        copy.load_state_dict(dict(self.full_tensors(model.state_dict())), assign=True)
        return copy.eval().requires_grad_(False)


def full_tensor(value: Tensor) -> Tensor:
    """Gather a sharded tensor on all ranks; another one is returned as it is."""
    if (mesh := getattr(value, "device_mesh", None)) is None:
        return value
    gathered: Tensor = value.to(mesh.device_type).full_tensor()  # type: ignore[attr-defined]
    return gathered


def shard_like(weight: Tensor, value: Tensor) -> Tensor:
    """Move a full tensor to where `weight` is, and shard it in the same way."""
    if (mesh := getattr(weight, "device_mesh", None)) is None or value.shape != weight.shape:
        return value.to(weight.device)
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415 (slow import)

    placements = weight.placements  # type: ignore[attr-defined]
    return distribute_tensor(value.to(mesh.device_type), mesh, placements, src_data_rank=None).to(weight.device)

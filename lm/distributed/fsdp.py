"""Fully sharded data parallel (FSDP): each rank has a shard of every weight, gathered block by block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from lm.data.batch import Batch
from lm.distributed.strategy import LossModule, M, MicroBatch, ParallelStrategy
from lm.model.transformer import Block, init_empty_weights


class FSDPStrategy(ParallelStrategy):
    """FSDP: each weight is sharded by rows over the ranks.

    Blocks are gathered one at a time; weights outside blocks, mainly embeddings, stay gathered from their first use in
    a step to their last.

    Source: Zhao et al. 2023 (PyTorch FSDP); Rajbhandari et al. 2020 (ZeRO), stage 3.
    """

    is_sharded = True

    def __init__(self, loss: LossModule, *, size: int, offload: bool) -> None:
        """Shard the weights; collective, and all ranks must have the same weights.

        Args:
            loss: with full weights.
            offload: whether the shards of GPUs are kept in CPU memory.
        """
        super().__init__(loss)
        self._size = size
        device = next(loss.model.parameters()).device.type
        mesh = init_device_mesh(device, (size,))
        policy = CPUOffloadPolicy() if offload else OffloadPolicy()
        for block in [module for module in loss.modules() if isinstance(module, Block)]:
            fully_shard(block, mesh=mesh, offload_policy=policy)
        fully_shard(loss, mesh=mesh, offload_policy=policy)
        for module in _fsdp_modules(loss):
            module.set_force_sum_reduction_for_comms(device == "cpu")  # gloo has no average

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        loss: tuple[Tensor, Tensor] = self.loss(batch)
        return loss

    def accumulate(self, micro_batch: MicroBatch) -> AbstractContextManager[object]:
        """See `ParallelStrategy.accumulate`; gradients stay unsharded until they are synchronised."""
        _fsdp_root(self.loss).set_requires_gradient_sync(micro_batch.is_last)
        return nullcontext()

    def scale_loss(self, loss: Tensor, micro_batch: MicroBatch) -> Tensor:
        """Multiply the loss by the world size, because FSDP averages gradients."""
        return loss * (self._size if micro_batch.is_real else 0)

    def gradient_norm(self) -> Tensor:
        """See `ParallelStrategy.gradient_norm`; over all shards."""
        squares = nn.utils.get_total_norm([_local_shard(gradient) for gradient in self._gradients()]).square()
        dist.all_reduce(squares)
        return squares.sqrt()

    def clip_gradients(self, max_norm: float, norm: Tensor) -> None:
        scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)  # as in torch
        torch._foreach_mul_([_local_shard(gradient) for gradient in self._gradients()], scale)

    def shard_like(self, weight: Tensor, value: Tensor) -> Tensor:
        """See `ParallelStrategy.shard_like`; returns the shard of this rank."""
        value = value.to(weight.device)
        if not isinstance(weight, DTensor) or value.shape != weight.shape:
            return value
        mesh = weight.device_mesh
        shard = distribute_tensor(value.to(mesh.device_type), mesh, weight.placements, src_data_rank=None)
        return shard.to(weight.device)

    def full_tensors(self, tensors: Mapping[str, Tensor]) -> Iterable[tuple[str, Tensor]]:
        """See `ParallelStrategy.full_tensors`; all ranks gather each."""
        return ((name, _full_tensor(value)) for name, value in tensors.items())

    def full_model(self, model: M) -> M:
        """See `ParallelStrategy.full_model`; a copy in eval mode."""
        with init_empty_weights():
            copy = type(model)(model.config)
        copy.load_state_dict({name: _full_tensor(value) for name, value in model.state_dict().items()}, assign=True)
        return copy.eval().requires_grad_(False)


def _full_tensor(value: Tensor) -> Tensor:
    if not isinstance(value, DTensor):
        return value
    on_device = value.to(value.device_mesh.device_type)
    assert isinstance(on_device, DTensor)
    return on_device.full_tensor()


def _local_shard(value: Tensor) -> Tensor:
    return value.to_local() if isinstance(value, DTensor) else value


def _fsdp_modules(loss: nn.Module) -> list[FSDPModule]:
    return [module for module in loss.modules() if isinstance(module, FSDPModule)]


def _fsdp_root(loss: nn.Module) -> FSDPModule:
    assert isinstance(loss, FSDPModule)
    return loss

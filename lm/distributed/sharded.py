"""Sharded data parallel: each process has its share of every weight, and gathers a block's when it is its turn."""

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
from lm.distributed.placement import Loss, M, Placement
from lm.distributed.turns import Turn
from lm.model.transformer import Block, init_empty_weights


class Sharded(Placement):
    """The weights of a loss, each cut by rows into as many shares as there are processes.

    Blocks are gathered one by one; what is around them, embeddings above all, stays gathered from its first use in a
    step to its last.

    Source: Zhao et al. 2023 (PyTorch FSDP); Rajbhandari et al. 2020 (ZeRO), stage 3.
    """

    is_sharded = True

    def __init__(self, loss: Loss, *, size: int, offload: bool) -> None:
        """For so many processes, all of which do this at the same time, and have the same weights.

        Args:
            loss: with whole weights.
            size: how many processes there are.
            offload: whether a GPU's shares are kept in the machine's memory.
        """
        super().__init__(loss)
        self._size = size
        device = next(loss.model.parameters()).device.type
        mesh = init_device_mesh(device, (size,))
        policy = CPUOffloadPolicy() if offload else OffloadPolicy()
        for block in [module for module in loss.modules() if isinstance(module, Block)]:
            fully_shard(block, mesh=mesh, offload_policy=policy)
        fully_shard(loss, mesh=mesh, offload_policy=policy)
        for module in _parts(loss):
            module.set_force_sum_reduction_for_comms(device == "cpu")  # gloo knows no other

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """See `Loss.forward`."""
        found: tuple[Tensor, Tensor] = self.loss(batch)
        return found

    def accumulating(self, turn: Turn) -> AbstractContextManager[object]:
        """See `Placement.accumulating`; gradients that are added up here are whole until then."""
        _root(self.loss).set_requires_gradient_sync(turn.is_last)
        return nullcontext()

    def weighed(self, loss: Tensor, turn: Turn) -> Tensor:
        """The loss by the number of processes, over which torch takes the mean."""
        return loss * (self._size if turn.counts else 0)

    def norm(self) -> Tensor:
        """See `Placement.norm`: of all shares together."""
        squares = nn.utils.get_total_norm([_own(gradient) for gradient in self._gradients()]).square()
        dist.all_reduce(squares)
        return squares.sqrt()

    def clip(self, most: float, norm: Tensor) -> None:
        """See `Placement.clip`."""
        scale = (most / (norm + 1e-6)).clamp(max=1.0)  # as torch's own way
        torch._foreach_mul_([_own(gradient) for gradient in self._gradients()], scale)

    def like(self, weight: Tensor, value: Tensor) -> Tensor:
        """See `Placement.like`: the share of this process."""
        value = value.to(weight.device)
        if not isinstance(weight, DTensor) or value.shape != weight.shape:
            return value
        mesh = weight.device_mesh
        share = distribute_tensor(value.to(mesh.device_type), mesh, weight.placements, src_data_rank=None)
        return share.to(weight.device)

    def whole(self, tensors: Mapping[str, Tensor]) -> Iterable[tuple[str, Tensor]]:
        """See `Placement.whole`: each is gathered in all processes."""
        return ((name, _whole(value)) for name, value in tensors.items())

    def whole_model(self, model: M) -> M:
        """See `Placement.whole_model`: another one, in eval mode."""
        with init_empty_weights():
            copy = type(model)(model.config)
        copy.load_state_dict({name: _whole(value) for name, value in model.state_dict().items()}, assign=True)
        return copy.eval().requires_grad_(False)


def _whole(value: Tensor) -> Tensor:
    """A tensor of which each process may have a share, gathered."""
    if not isinstance(value, DTensor):
        return value
    on_device = value.to(value.device_mesh.device_type)
    assert isinstance(on_device, DTensor)
    return on_device.full_tensor()


def _own(value: Tensor) -> Tensor:
    """What this process has of a tensor."""
    return value.to_local() if isinstance(value, DTensor) else value


def _parts(loss: nn.Module) -> list[FSDPModule]:
    return [module for module in loss.modules() if isinstance(module, FSDPModule)]


def _root(loss: nn.Module) -> FSDPModule:
    assert isinstance(loss, FSDPModule)
    return loss

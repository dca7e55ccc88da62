"""Distributed data parallel (DDP): each rank has all weights, and gradients are summed during the backward pass."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from lm.data.batch import Batch
from lm.distributed.micro_batches import MicroBatch
from lm.distributed.strategy import LossModule, ParallelStrategy


class DDPStrategy(ParallelStrategy):
    """DDP; all ranks start with the weights of rank 0.

    Gradient buckets never change. torch would rebuild them after the first step if every weight were known to have a
    gradient, and a resumed run would then sum in another order.

    Source: Li et al. 2020 (PyTorch Distributed).
    """

    def __init__(self, loss: LossModule, *, size: int) -> None:
        super().__init__(loss)
        self._size = size
        self._parallel = DistributedDataParallel(loss, find_unused_parameters=True, gradient_as_bucket_view=True)

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """See `LossModule.forward`."""
        found: tuple[Tensor, Tensor] = self._parallel(batch)
        return found

    def accumulate(self, micro_batch: MicroBatch) -> AbstractContextManager[object]:
        """See `ParallelStrategy.accumulate`."""
        return nullcontext() if micro_batch.is_last else self._parallel.no_sync()

    def scale_loss(self, loss: Tensor, micro_batch: MicroBatch) -> Tensor:
        """Multiply the loss by the world size, because DDP averages gradients."""
        return loss * (self._size if micro_batch.is_real else 0)

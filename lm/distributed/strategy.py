"""Parallel strategies: how ranks divide a batch, and where the weights are, in one process and with DDP.

FSDP is in `fsdp`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from operator import itemgetter
from typing import NamedTuple, TypeVar

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lm.data.batch import Batch

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


class LossModule(nn.Module):
    """A model with its training loss.

    Attributes:
        model: the model; it owns all parameters.
    """

    model: nn.Module

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the summed loss of a batch and (2,) sums in nats, see `Objective.forward`."""
        raise NotImplementedError


class ParallelStrategy:
    """Training with all weights in one process, and the interface of the other strategies.

    Attributes:
        is_sharded: whether each rank holds only a shard of each weight.
    """

    is_sharded = False

    def __init__(self, loss: LossModule) -> None:
        self.loss = loss

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        loss: tuple[Tensor, Tensor] = self.loss(batch)
        return loss

    def accumulate(self, micro_batch: MicroBatch) -> AbstractContextManager[object]:  # noqa: ARG002
        """Context of a micro-batch's backward pass: gradients are synchronised only at the last one of a batch."""
        return nullcontext()

    def scale_loss(self, loss: Tensor, micro_batch: MicroBatch) -> Tensor:  # noqa: ARG002
        """Scale the loss of a micro-batch so that averaged gradients become summed ones, and dummy batches count 0."""
        return loss

    def gradient_norm(self) -> Tensor:
        return nn.utils.get_total_norm(list(self._gradients()))

    def clip_gradients(self, max_norm: float, norm: Tensor) -> None:
        """Scale the gradients down to `max_norm`, given their norm."""
        nn.utils.clip_grads_with_norm_(self.loss.model.parameters(), max_norm, norm)

    def shard_like(self, weight: Tensor, value: Tensor) -> Tensor:
        """Move a full tensor to where `weight` is, and shard it in the same way."""
        return value.to(weight.device)

    def full_tensors(self, tensors: Mapping[str, Tensor]) -> Iterable[tuple[str, Tensor]]:
        """Yield weights, or tensors sharded like them, as full tensors; copy each before taking the next."""
        return tensors.items()

    def full_model(self, model: M) -> M:
        """Return the model with full weights in this process, for inference; collective."""
        return model

    def _gradients(self) -> Iterable[Tensor]:
        return (weight.grad for weight in self.loss.model.parameters() if weight.grad is not None)


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
        loss: tuple[Tensor, Tensor] = self._parallel(batch)
        return loss

    def accumulate(self, micro_batch: MicroBatch) -> AbstractContextManager[object]:
        return nullcontext() if micro_batch.is_last else self._parallel.no_sync()

    def scale_loss(self, loss: Tensor, micro_batch: MicroBatch) -> Tensor:
        """Multiply the loss by the world size, because DDP averages gradients."""
        return loss * (self._size if micro_batch.is_real else 0)

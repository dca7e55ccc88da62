"""Data parallel: each process has all weights, and gradients are summed over the processes while backward continues."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from lm.data.batch import Batch
from lm.distributed.placement import Loss, Placement
from lm.distributed.turns import Turn


class Replicated(Placement):
    """The weights of a loss in each of several processes, made the same as the first one's.

    Gradients go round in buckets that stay what they are: were they rebuilt after the first step, as torch does
    where every weight is known to have a gradient, a run that is resumed would add up in another order.

    Source: Li et al. 2020 (PyTorch Distributed).
    """

    def __init__(self, loss: Loss, *, size: int) -> None:
        """For so many processes, all of which do this at the same time."""
        super().__init__(loss)
        self._size = size
        self._parallel = DistributedDataParallel(loss, find_unused_parameters=True, gradient_as_bucket_view=True)

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """See `Loss.forward`."""
        found: tuple[Tensor, Tensor] = self._parallel(batch)
        return found

    def accumulating(self, turn: Turn) -> AbstractContextManager[object]:
        """See `Placement.accumulating`."""
        return nullcontext() if turn.is_last else self._parallel.no_sync()

    def weighed(self, loss: Tensor, turn: Turn) -> Tensor:
        """The loss by the number of processes, over which torch takes the mean."""
        return loss * (self._size if turn.counts else 0)

"""Where the weights of a model are while it is trained: here whole, in the one process that there is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from torch import Tensor, nn

from lm.data.batch import Batch
from lm.distributed.turns import Turn

M = TypeVar("M", bound=nn.Module)


class Loss(nn.Module):
    """What is trained: a model, and what its weights are to make small.

    Attributes:
        model: the model; all weights are its.
    """

    model: nn.Module

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The summed loss of a batch, to be differentiated, and (2,) sums in nats: see `Objective.forward`."""
        raise NotImplementedError


class Placement:
    """The weights of a loss in one process, whole.

    Attributes:
        loss: what is trained.
        is_sharded: whether a process has only its share of each weight.
    """

    is_sharded = False

    def __init__(self, loss: Loss) -> None:
        self.loss = loss

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """See `Loss.forward`."""
        found: tuple[Tensor, Tensor] = self.loss(batch)
        return found

    def accumulating(self, turn: Turn) -> AbstractContextManager[object]:  # noqa: ARG002
        """While open, gradients are added up here; those of the last turn, to those of all processes."""
        return nullcontext()

    def weighed(self, loss: Tensor, turn: Turn) -> Tensor:  # noqa: ARG002
        """What of the loss of a turn goes into the gradients here, so that in all it goes in once."""
        return loss

    def norm(self) -> Tensor:
        """The norm of all gradients together."""
        return nn.utils.get_total_norm(list(self._gradients()))

    def clip(self, most: float, norm: Tensor) -> None:
        """Scale the gradients, whose norm is known, down to `most`."""
        nn.utils.clip_grads_with_norm_(self.loss.model.parameters(), most, norm)

    def like(self, weight: Tensor, value: Tensor) -> Tensor:
        """A whole tensor as `weight` is: where that is, and what of it is here."""
        return value.to(weight.device)

    def whole(self, tensors: Mapping[str, Tensor]) -> Iterable[tuple[str, Tensor]]:
        """Weights, or tensors like them, whole one after the other, to be copied before the next one is asked for."""
        return tensors.items()

    def whole_model(self, model: M) -> M:
        """The model with all its weights in this process, to be used but not trained; all processes ask for it."""
        return model

    def _gradients(self) -> Iterable[Tensor]:
        return (weight.grad for weight in self.loss.model.parameters() if weight.grad is not None)

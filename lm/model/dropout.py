"""Dropout whose masks are cheap to draw."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Dropout(nn.Module):
    """Drops a share of the values while training, and scales the others up. Source: Srivastava et al. 2014."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        """The same shape; what is dropped follows from torch's generator."""
        return dropout(x, self.share) if self.training else x


def dropout(x: Tensor, share: float) -> Tensor:
    """`x` with a share of its values zeroed at random, and the others divided by the share that is kept.

    On a CPU torch draws a number for each value, which takes a quarter of the step of a small encoder-decoder; a byte
    each costs a tenth of that. There the share is a multiple of 1/256, and the scale is that of what is really kept.
    """
    if share == 0.0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, share)
    draw = torch.ops.lm.kept if torch.compiler.is_compiling() else _kept
    return x * draw(x.detach(), max(1, round(256 * share)))


def _kept(like: Tensor, dropped: int) -> Tensor:
    """Zeros for `dropped` of 256 values, and for the others what keeps the mean; shape and type of `like`."""
    words = torch.empty(-(-like.numel() // 8), dtype=torch.int64).random_(-(2**63), None)
    bytes_ = words.view(torch.uint8)[: like.numel()].view(like.shape)
    keep = torch.ge(bytes_, dropped, out=torch.empty_like(like, memory_format=torch.contiguous_format))
    return keep.mul_(256 / (256 - dropped))


# A compiled model draws its masks so too: what torch.compile makes of F.dropout on a CPU costs more than it saves
_compilable = torch.library.custom_op("lm::kept", _kept, mutates_args=(), tags=torch.Tag.nondeterministic_seeded)


@_compilable.register_fake
def _(like: Tensor, dropped: int) -> Tensor:  # noqa: ARG001
    return torch.empty_like(like, memory_format=torch.contiguous_format)

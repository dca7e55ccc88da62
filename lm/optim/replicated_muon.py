"""Muon on matrices that each process has whole: each orthogonalises its part of the updates, and all get them all."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from lm.optim.muon import Muon, orthogonalised


class ReplicatedMuon(Muon):
    """Muon for weights of which each process has the same. As many matrices of a shape go to each, or one less.

    Source: Jordan et al. 2024, whose implementation shares matrices out so.
    """

    def _orthogonalised(self, matrices: Tensor) -> Tensor:
        """See `orthogonalised`; all processes do this at the same time."""
        each = -(-len(matrices) // dist.get_world_size())
        begin = dist.get_rank() * each
        part = orthogonalised(matrices[begin : begin + each])
        padded = F.pad(part, (0, 0, 0, 0, 0, each - len(part))).contiguous()
        found = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
        dist.all_gather(found, padded)
        return torch.cat(found)[: len(matrices)]

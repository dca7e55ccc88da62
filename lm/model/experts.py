"""Mixture of experts with top-k gating: a router selects a few feed-forward layers for each position."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lm.config.model import ModelConfig
from lm.errors import UsageError
from lm.model.attention import AttentionInputs
from lm.model.layers import FeedForward, Linear


class Routing(NamedTuple):
    """The experts selected for the positions of a batch.

    Attributes:
        experts: (positions, k) indices of experts, the most probable first; for padding, the number of experts.
        weights: (positions, k) weights of the experts' outputs.
        probabilities: (positions, experts) by the router.
    """

    experts: Tensor
    weights: Tensor
    probabilities: Tensor

    @property
    def counts(self) -> Tensor:
        """(experts + 1,) positions routed to each expert, and padding, which counts k times."""
        return self.experts.flatten().bincount(minlength=self.probabilities.shape[1] + 1)


class Router(nn.Module):
    """Scores the experts by a linear layer, with learned noise in training, and selects the top k.

    Several are weighted by a softmax over their own scores; a single one by its probability among all, without which
    its score would have no gradient.

    Source: Shazeer et al. 2017, section 2.1; one alone: Fedus et al. 2021, section 2.1, and in float32, section 2.4.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        if config.experts_per_token > config.experts:
            raise UsageError(f"experts_per_token {config.experts_per_token} is more than experts {config.experts}")
        build_projection = partial(Linear, config.d_model, config.experts, bias=False, std=config.init_std)
        self.score, self.noise = build_projection(), build_projection() if config.gate_noise else None
        self.noise_scale, self.experts_per_token = config.gate_noise, config.experts_per_token

    def forward(self, x: Tensor, is_real: Tensor | None = None) -> Routing:
        """Select experts for (positions, d_model); positions that are not `real` (positions,) get none."""
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(torch.promote_types(x.dtype, torch.float32))
            scores = self.score.matmul_in_dtype_of(x)
            if self.noise is not None and self.training:
                scores = scores + self.noise_scale * torch.randn_like(scores) * F.softplus(
                    self.noise.matmul_in_dtype_of(x)
                )
        probabilities = scores.softmax(-1)
        weights, experts = probabilities.topk(self.experts_per_token)
        if self.experts_per_token > 1:
            weights = weights / weights.sum(-1, keepdim=True)
        if is_real is not None:
            experts = experts.masked_fill(~is_real[:, None], probabilities.shape[1])
        return Routing(experts, weights, probabilities)


class MixtureOfExperts(nn.Module):
    """A mixture of feed-forward layers: positions are grouped by expert, with one pass for each.

    In training an expert processes at most as many positions as its capacity, the first ones; the others, like padding,
    get zeros, so that only the residual connection passes them on. At inference there is no limit: results must not
    depend on the batch.

    Source: Shazeer et al. 2017; capacity: Lepikhin et al. 2020; Fedus et al. 2021, section 2.2.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = Router(config)
        self.experts = nn.ModuleList(FeedForward(config) for _ in range(config.experts))
        self.capacity = config.expert_capacity

    def forward(self, x: Tensor, inputs: AttentionInputs) -> Tensor:
        """(batch, length, d_model) -> the same shape."""
        positions, is_real, capacity = x.flatten(0, 1), None, None
        if inputs.lengths is not None:
            is_real = (torch.arange(x.shape[1], device=x.device) < inputs.lengths[:, None]).flatten()
        routes = self.gate(positions, is_real)
        chosen = routes.experts.shape[1]
        order = routes.experts.flatten().argsort(stable=True)
        *counts, n_padding = routes.counts.tolist()  # a GPU synchronises here
        if self.training and self.capacity:
            capacity = math.ceil(self.capacity * sum(counts) / len(counts))
        grouped = positions.repeat_interleave(chosen, dim=0).index_select(0, order)
        outputs: list[Tensor] = []
        for expert, part in zip(self.experts, grouped.split([*counts, n_padding]), strict=False):
            # in training, an expert without positions gets a gradient of zero, as optimizers step all experts
            if len(part) or self.training:
                output = expert(part[:capacity])
                outputs.append(F.pad(output, (0, 0, 0, len(part) - len(output))))
        together = F.pad(torch.cat(outputs), (0, 0, 0, n_padding)).index_select(0, order.argsort())
        weighted = together.unflatten(0, (-1, chosen)) * routes.weights.to(together.dtype)[..., None]
        return weighted.sum(1).view_as(x)


def load_balancing_loss(routes: Routing) -> Tensor:
    """Return the load-balancing loss: experts · Σ fraction of positions · mean probability; 1 if balanced.

    Padding is excluded; the fraction is of positions as routed, regardless of capacity.

    Source: Fedus et al. 2021, section 2.2, equations 4 to 6.
    """
    n_experts = routes.probabilities.shape[1]
    counts, is_real = routes.counts[:n_experts], routes.experts[:, :1] < n_experts
    mean_probabilities = (routes.probabilities * is_real).sum(0) / is_real.sum()
    return n_experts * (counts / counts.sum() * mean_probabilities).sum()


@contextmanager
def capture_routing(model: nn.Module) -> Iterator[list[Routing]]:
    """Capture the routing of each router that runs inside the `with`; empty for a model without experts."""
    routings: list[Routing] = []
    with ExitStack() as hooks:
        for layer in model.modules():
            if isinstance(layer, MixtureOfExperts):
                hook = layer.gate.register_forward_hook(lambda _, __, routes: routings.append(routes))
                hooks.callback(hook.remove)
        yield routings

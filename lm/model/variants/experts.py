"""Mixture of experts with top-k gating: a router selects a few feed-forward layers for each position."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lm.config.model import ModelConfig
from lm.model.attention_inputs import AttentionInputs
from lm.model.layers import FeedForward, Linear
from lm.model.module import Module


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


class Router(Module):
    """Scores the experts by a linear layer, with learned noise in training, and selects the top k.

    Several are weighted by a softmax over their own scores; a single one by its probability among all, without which
    its score would have no gradient.

    Source: Shazeer et al. 2017, section 2.1; one alone: Fedus et al. 2021, section 2.1, and in float32, section 2.4.
    """

    part = "gates"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
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


class MixtureOfExperts(Module):
    """A mixture of feed-forward layers: positions are grouped by expert, with one pass for each.

    In training an expert processes at most as many positions as its capacity, the first ones; the others, like padding,
    get zeros, so that only the residual connection passes them on. At inference there is no limit: results must not
    depend on the batch.

    Source: Shazeer et al. 2017; capacity: Lepikhin et al. 2020; Fedus et al. 2021, section 2.2.
    """

    part = "experts"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = Router(config)
        experts = [FeedForward(config, part=self.part) for _ in range(config.experts)]
        for idle in experts[config.experts_per_token :]:
            idle.uses = 0.0
        self.experts = nn.ModuleList(experts)
        self.capacity = config.expert_capacity

    def forward(self, x: Tensor, inputs: AttentionInputs) -> Tensor:
        """(batch, length, d_model) -> the same shape."""
        positions = x.flatten(0, 1)
        routes = self.gate(positions, _real_positions(x, inputs.lengths))
        chosen = routes.weights.shape[1]
        order = routes.experts.flatten().argsort(stable=True)
        inverse = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order), device=order.device))
        copies = positions if chosen == 1 else positions.repeat_interleave(chosen, dim=0)
        grouped = _permute_rows(copies, order, inverse)
        outputs = self._through_experts(grouped.split(routes.counts.tolist()))  # a GPU synchronises here
        outputs = _permute_rows(outputs, inverse, order).unflatten(0, (-1, chosen))
        weighted = outputs * routes.weights.to(outputs.dtype)[..., None]
        return (weighted.squeeze(1) if chosen == 1 else weighted.sum(1)).view_as(x)

    def _through_experts(self, parts: tuple[Tensor, ...]) -> Tensor:
        """Apply each expert to its part; zeros for the padding, which comes last."""
        *routed, padding = parts
        capacity = None
        if self.training and self.capacity:
            capacity = math.ceil(self.capacity * sum(map(len, routed)) / len(routed))
        # in training, an expert without positions gets a gradient of zero, as optimizers step all experts
        outputs = [
            _apply_up_to_capacity(expert, part, capacity)
            for expert, part in zip(self.experts, routed, strict=True)
            if len(part) or self.training
        ]
        if len(padding):
            outputs.append(padding.new_zeros(padding.shape, dtype=outputs[0].dtype if outputs else padding.dtype))
        return torch.cat(outputs)


def _real_positions(x: Tensor, lengths: Tensor | None) -> Tensor | None:
    """(batch · length,) whether each position is within the `lengths` of its row."""
    return None if lengths is None else (torch.arange(x.shape[1], device=x.device) < lengths[:, None]).flatten()


def _apply_up_to_capacity(expert: nn.Module, part: Tensor, capacity: int | None) -> Tensor:
    """Apply an expert to the first `most` positions; zeros for the others."""
    if capacity is None or len(part) <= capacity:
        return expert(part)
    return F.pad(expert(part[:capacity]), (0, 0, 0, len(part) - capacity))


class _PermuteRows(torch.autograd.Function):
    """Permutes rows; gradients are permuted back instead of scattered row by row."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.inverse = inverse
        return rows.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient.index_select(0, ctx.inverse), None, None


def _permute_rows(rows: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    """Row `order[i]` of (n, d_model) as row i; `inverse` is the inverse permutation."""
    reordered: Tensor = _PermuteRows.apply(rows, order, inverse)  # type: ignore[no-untyped-call]
    return reordered


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
    with _hook_routers(model, lambda _, routes: routings.append(routes)):
        yield routings


@contextmanager
def count_expert_tokens(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Count the positions routed to each expert inside the `with`: (experts,) by name of the layer."""
    counts: dict[str, Tensor] = {}

    def note(name: str, routes: Routing) -> None:
        counts[name] = counts.get(name, 0) + routes.counts[:-1]

    with _hook_routers(model, note):
        yield counts


def expert_fractions(counts: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """Return the fraction of positions of each expert, by layer, from `count_expert_tokens`."""
    return {name: (tokens / tokens.sum()).tolist() for name, tokens in counts.items()}


@contextmanager
def _hook_routers(model: nn.Module, note: Callable[[str, Routing], None]) -> Iterator[None]:

    def hook(name: str) -> Callable[[nn.Module, Any, Routing], None]:
        return lambda _, __, routes: note(name, routes)

    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, MixtureOfExperts)]
    handles = [layer.gate.register_forward_hook(hook(name)) for name, layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()

"""A mixture of experts in the place of a feed-forward layer: a gate sends each position through a few of many."""

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
from lm.model.module import Module, macs_per_position


class Routing(NamedTuple):
    """Where the positions of a batch go.

    Attributes:
        experts: (positions, k) numbers of experts, the likeliest first; for padding one more than there is.
        weights: (positions, k) what their outputs are multiplied by.
        probabilities: (positions, experts) that the gate gives to each.
    """

    experts: Tensor
    weights: Tensor
    probabilities: Tensor

    @property
    def counts(self) -> Tensor:
        """(experts + 1,) how many positions go to each expert, and how many are padding, k times each."""
        return self.experts.flatten().bincount(minlength=self.probabilities.shape[1] + 1)


class Router(Module):
    """Scores the experts by a linear layer, with noise of a learned size while training, and takes the best.

    Several are weighed by a softmax over their own scores; one alone by its probability among all, without which its
    score would have no gradient.

    Source: Shazeer et al. 2017, section 2.1; one alone: Fedus et al. 2021, section 2.1, and in float32, section 2.4.
    """

    part = "gates"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        of_scores = partial(Linear, config.d_model, config.experts, bias=False, std=config.init_std)
        self.score, self.noise = of_scores(), of_scores() if config.gate_noise else None
        self.noise_scale, self.experts_per_token = config.gate_noise, config.experts_per_token

    def forward(self, x: Tensor, real: Tensor | None = None) -> Routing:
        """Choose experts for (positions, d_model); only those that are `real` (positions,), if given, have any."""
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
        if real is not None:
            experts = experts.masked_fill(~real[:, None], probabilities.shape[1])
        return Routing(experts, weights, probabilities)


class MixtureOfExperts(Module):
    """Feed-forward layers of which each position goes through a few: grouped by expert, one pass for each.

    In training each takes only as many positions as its capacity allows, the first ones; those beyond, like padding,
    get zeros, so that the residual connection carries them past. Elsewhere there is no limit: what one text makes of
    another beside it in the batch would be no property of the model.

    Source: Shazeer et al. 2017; capacity: Lepikhin et al. 2020; Fedus et al. 2021, section 2.2.
    """

    part = "experts"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate, self.experts_per_token = Router(config), config.experts_per_token
        self.experts = nn.ModuleList(FeedForward(config, part=self.part) for _ in range(config.experts))
        self.capacity = config.expert_capacity

    def macs_per_position(self) -> float:
        """See `Module`: the gate, and as many experts as a position goes through."""
        return self.gate.macs_per_position() + self.experts_per_token * macs_per_position(self.experts[0])

    def forward(self, x: Tensor, inputs: AttentionInputs) -> Tensor:
        """(batch, length, d_model) -> the same shape."""
        positions = x.flatten(0, 1)
        routes = self.gate(positions, _real_positions(x, inputs.lengths))
        chosen = routes.weights.shape[1]
        order = routes.experts.flatten().argsort(stable=True)
        inverse = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order), device=order.device))
        copies = positions if chosen == 1 else positions.repeat_interleave(chosen, dim=0)
        grouped = _permute_rows(copies, order, inverse)
        outputs = self._through_experts(grouped.split(routes.counts.tolist()))  # a GPU is waited for here
        outputs = _permute_rows(outputs, inverse, order).unflatten(0, (-1, chosen))
        weighted = outputs * routes.weights.to(outputs.dtype)[..., None]
        return (weighted.squeeze(1) if chosen == 1 else weighted.sum(1)).view_as(x)

    def _through_experts(self, parts: tuple[Tensor, ...]) -> Tensor:
        """What each expert makes of its part, one below the other, and zeros for the padding, which comes last."""
        *taken, padding = parts
        most = None
        if self.training and self.capacity:
            most = math.ceil(self.capacity * sum(map(len, taken)) / len(taken))
        # in training, an expert without positions goes along for its gradient of zero: optimizers step it like all
        outputs = [
            _apply_up_to_capacity(expert, part, most)
            for expert, part in zip(self.experts, taken, strict=True)
            if len(part) or self.training
        ]
        if len(padding):
            outputs.append(padding.new_zeros(padding.shape, dtype=outputs[0].dtype if outputs else padding.dtype))
        return torch.cat(outputs)


def _real_positions(x: Tensor, lengths: Tensor | None) -> Tensor | None:
    """(batch · length,) whether each position of (batch, length, d_model) is one of the first `lengths` of its row."""
    return None if lengths is None else (torch.arange(x.shape[1], device=x.device) < lengths[:, None]).flatten()


def _apply_up_to_capacity(expert: nn.Module, part: Tensor, most: int | None) -> Tensor:
    """What an expert makes of the first positions of its part, at most so many, and zeros for the others."""
    if most is None or len(part) <= most:
        return expert(part)
    return F.pad(expert(part[:most]), (0, 0, 0, len(part) - most))


class _PermuteRows(torch.autograd.Function):
    """Rows in another order. Their gradients go back the same way, in place of torch's addition row by row."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, inverse: Tensor) -> Tensor:  # noqa: ANN401 (torch's own)
        ctx.inverse = inverse
        return rows.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        return gradient.index_select(0, ctx.inverse), None, None


def _permute_rows(rows: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    """Row `order[i]` of (n, d_model) as row i; `inverse` undoes it."""
    reordered: Tensor = _PermuteRows.apply(rows, order, inverse)  # type: ignore[no-untyped-call]
    return reordered


def load_balancing_loss(routes: Routing) -> Tensor:
    """How unevenly a gate spreads the positions: experts · Σ share of the positions · mean probability, 1 if evenly.

    Padding counts nothing; a share is of positions as they were chosen, whatever the capacity.

    Source: Fedus et al. 2021, section 2.2, equations 4 to 6.
    """
    n_experts = routes.probabilities.shape[1]
    counts, real = routes.counts[:n_experts], routes.experts[:, :1] < n_experts
    mean_probabilities = (routes.probabilities * real).sum(0) / real.sum()
    return n_experts * (counts / counts.sum() * mean_probabilities).sum()


@contextmanager
def capture_routing(model: nn.Module) -> Iterator[list[Routing]]:
    """A list that grows by the routes of each gate that runs inside the `with`; of none, in a model without experts."""
    found: list[Routing] = []
    with _hook_routers(model, lambda _, routes: found.append(routes)):
        yield found


@contextmanager
def count_expert_tokens(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """How many positions went to each expert, (experts,) for each layer by its name, once the `with` is left."""
    counts: dict[str, Tensor] = {}

    def note(name: str, routes: Routing) -> None:
        counts[name] = counts.get(name, 0) + routes.counts[:-1]

    with _hook_routers(model, note):
        yield counts


def expert_fractions(counts: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """The share of the positions that each expert took, by layer, of what `count_expert_tokens` has found."""
    return {name: (each / each.sum()).tolist() for name, each in counts.items()}


@contextmanager
def _hook_routers(model: nn.Module, note: Callable[[str, Routing], None]) -> Iterator[None]:
    """While open, `note` is called whenever a gate of a model runs, with the name of its layer and its routes."""

    def hook(name: str) -> Callable[[nn.Module, Any, Routing], None]:
        return lambda _, __, routes: note(name, routes)

    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, MixtureOfExperts)]
    hooks = [layer.gate.register_forward_hook(hook(name)) for name, layer in layers]
    try:
        yield
    finally:
        for each in hooks:
            each.remove()

"""Low-rank adapters (LoRA): layers with adapters, and merging adapters into the weights.

The model doesn't know of adapters: a linear layer is replaced by a `LoraLinear` with the same weights under the same
name.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

import torch
from torch import Tensor, nn

from lm.config.model import ModelConfig
from lm.config.run_config import LoraConfig
from lm.model import Model, build_model, init_empty_weights
from lm.model.attention import MultiHeadAttention
from lm.model.layers import ClassificationHead, FeedForward, Int8Linear, Linear, dropout, linear

_OWNERS = {"attention": MultiHeadAttention, "feed-forward": FeedForward}


class LoraLinear(Linear):
    """W x + scale · B A x: a linear layer with frozen W and two trained low-rank matrices.

    A layer that holds several projections (queries, keys and values; SwiGLU's gate and value) has an A and a B for
    each. B starts at zero.

    Attributes:
        lora_a: (projections · rank, inputs), the A of each projection, stacked.
        lora_b: (outputs, rank), likewise.

    Source: Hu et al. 2021 (LoRA), section 4.1.
    """

    def __init__(self, layer: Linear, config: LoraConfig) -> None:
        """Replace a layer, whose weights are shared."""
        self.take_shape(layer)
        self.weight, self.bias = layer.weight, layer.bias
        self.rank, self.scale, self.dropout = config.rank, config.scale, config.dropout
        bound = layer.in_features**-0.5
        a = torch.empty(len(self.projected) * self.rank, layer.in_features, device=layer.weight.device)
        self.lora_a = nn.Parameter(a.uniform_(-bound, bound))
        self.lora_b = nn.Parameter(torch.zeros(layer.out_features, self.rank, device=layer.weight.device))

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        """(…, inputs) -> (…, outputs)."""
        return super().forward(input) + self._adapter_output(input, slice(0, None))

    def forward_slice(self, x: Tensor, outputs: slice) -> Tensor:
        """(…, inputs) -> (…, some of the outputs), of whole projections."""
        return super().forward_slice(x, outputs) + self._adapter_output(x, outputs)

    def _adapter_output(self, x: Tensor, outputs: slice) -> Tensor:
        low = linear(dropout(x, self.dropout) if self.training else x, self.lora_a) * self.scale
        first, last = outputs.indices(self.out_features)[:2]
        ends = accumulate(self.projected)  # of the outputs of each projection
        parts = zip(low.split(self.rank, dim=-1), self.lora_b.split(self.projected), ends, strict=True)
        added = [linear(part, b) for part, b, end in parts if first < end <= last]
        return added[0] if len(added) == 1 else torch.cat(added, dim=-1)

    def to_int8(self) -> Int8Linear:
        return self.merge().to_int8()

    @torch.no_grad()
    def merge(self) -> Linear:
        """Return the equivalent plain layer, W + scale · B A, in float32 or better."""
        parts = zip(self.lora_a.split(self.rank), self.lora_b.split(self.projected), strict=True)
        deltas = [b.float() * self.scale @ a for a, b in parts]
        with init_empty_weights():
            plain = Linear(self.in_features, self.out_features, bias=False, std=self.std, projected=self.projected)
        plain.weight, plain.bias = nn.Parameter(self.weight + torch.cat(deltas)), self.bias
        return plain


def build_model_with_lora(model: ModelConfig, lora: LoraConfig, *, seed: int = 0) -> Model:
    """Build a model; if a rank is given, add adapters and freeze all other weights except the classification head."""
    built = build_model(model, seed=seed)
    if lora:
        built.requires_grad_(False)
        for module in built.modules():
            if isinstance(module, ClassificationHead):  # it is randomly initialised
                module.requires_grad_()
        owners = tuple(_OWNERS[kind] for kind in lora.kinds)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for owner in [module for module in built.modules() if isinstance(module, owners)]:
                for name, layer in list(owner.named_children()):
                    if isinstance(layer, Linear):
                        setattr(owner, name, LoraLinear(layer, lora))
    return built


def lora_layers(model: nn.Module) -> dict[str, LoraLinear]:
    """Return the layers of a model that have an adapter, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLinear)}


def merge_adapters(model: ModelConfig, lora: LoraConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Merge adapters into the weights of a plain model; in float32, if the base model has lower precision.

    Args:
        weights: of both, by name; those that the model doesn't have (another output head) are left out.

    Raises:
        RuntimeError: a weight is missing, or has another shape.
    """
    with init_empty_weights():
        built = build_model_with_lora(model, lora)
    built.load_state_dict({name: weights[name] for name in built.state_dict() if name in weights}, assign=True)
    for name, layer in lora_layers(built).items():
        owner, _, own_name = name.rpartition(".")
        setattr(built.get_submodule(owner), own_name, layer.merge())
    merged = built.state_dict()
    return {name: value.to(torch.promote_types(value.dtype, torch.float32)) for name, value in merged.items()}


def trainable_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights that training changes, by name: all, or with adapters the unfrozen ones."""
    frozen = _frozen_names(model)
    return {name: value for name, value in model.state_dict().items() if name not in frozen}


def load_trainable(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load the result of `trainable_weights`; RuntimeError if one is missing or has another shape."""
    own = model.state_dict()
    model.load_state_dict({name: own[name] for name in _frozen_names(model)} | dict(weights))


def load_frozen(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load the base model's weights into a model with adapters; KeyError or RuntimeError if they don't fit."""
    model.load_state_dict(trainable_weights(model) | {name: weights[name] for name in _frozen_names(model)})


def _frozen_names(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if not parameter.requires_grad}

"""Build the optimizers of a model, and convert their state to named tensors; moving averages of weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lm.config.run_config import TrainingConfig
from lm.distributed.parallel import Ranks, shard_like
from lm.model.layers import Linear
from lm.model.lora import LoraLinear, load_trainable, trainable_weights
from lm.model.transformer import Block
from lm.optim.muon import Muon


def build_optimizers(
    model: nn.Module, config: TrainingConfig, *, dtype: torch.dtype = torch.bfloat16, ranks: Ranks = "single"
) -> list[torch.optim.Optimizer]:
    """Create AdamW for all parameters, or Muon for the matrices of blocks and AdamW for the rest.

    Matrices and embeddings are decayed, vectors (norms, biases) are not.

    Args:
        dtype: of Muon's matmuls.
        ranks: how several ranks hold the weights.

    Source: Loshchilov and Hutter 2019; weight decay groups: Radford et al. 2018, section 4.1.
    """
    matrices = hidden_matrices(model) if config.optimizer == "muon" else {}
    rate, decay = config.learning_rate, config.weight_decay
    others = [parameter for parameter in model.parameters() if parameter.requires_grad and parameter not in matrices]
    groups = [
        {
            "params": [parameter for parameter in others if (parameter.ndim > 1) is is_decayed],
            "weight_decay": decay * is_decayed,
        }
        for is_decayed in (True, False)
    ]
    optimizers: list[torch.optim.Optimizer] = []
    if others:
        optimizers.append(
            torch.optim.AdamW(groups, lr=rate, betas=(config.beta1, config.beta2), eps=config.epsilon, fused=True)
        )
    if matrices:
        optimizers.append(Muon(matrices, lr=rate, weight_decay=decay, dtype=dtype, ranks=ranks))
    return optimizers


def hidden_matrices(model: nn.Module) -> dict[Tensor, Sequence[int]]:
    """Return the matrices of blocks; for a model with adapters, only theirs.

    Returns:
        The row counts of the matrices stacked in each parameter, as in fused QKV.
    """
    matrices: dict[Tensor, Sequence[int]] = {}
    for module in model.modules():
        if isinstance(module, Block):
            matrices |= {parameter: (len(parameter),) for parameter in module.parameters() if parameter.ndim == 2}
        elif isinstance(module, Linear) and module.weight in matrices:  # after its block
            matrices[module.weight] = module.projected
            if isinstance(module, LoraLinear):
                matrices |= {module.lora_a: [module.rank] * len(module.projected), module.lora_b: module.projected}
    return {parameter: rows for parameter, rows in matrices.items() if parameter.requires_grad}


def optimizer_state_tensors(optimizers: Sequence[torch.optim.Optimizer], model: nn.Module) -> dict[str, Tensor]:
    """Return the optimizer state as {"parameter.key": tensor}."""
    return {
        f"{name}.{key}": value
        for optimizer in optimizers
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_state(
    optimizers: Sequence[torch.optim.Optimizer], model: nn.Module, tensors: Mapping[str, Tensor]
) -> None:
    """Load what `optimizer_state_tensors` returned, as full tensors."""
    states: dict[str, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        owner, _, key = name.rpartition(".")
        states.setdefault(owner, {})[key] = value
    names = {parameter: name for name, parameter in model.named_parameters()}
    for optimizer in optimizers:
        for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
            state = states.get(names[parameter], {})
            optimizer.state[parameter] = {key: shard_like(parameter, value) for key, value in state.items()}


class MovingAverage:
    """Exponential moving average (EMA) of the trainable weights of a model.

    Source: Polyak and Juditsky 1992; exponential, with a decay that grows to its final value, as in TensorFlow.
    """

    def __init__(self, model: nn.Module, *, decay: float) -> None:
        """Start at the model's weights; `decay` is the final value."""
        self._model, self._decay = model, decay
        self.weights = {name: value.detach().clone() for name, value in trainable_weights(model).items()}

    def update(self, step: int) -> None:
        """Update the average after optimizer step `step`, counted from 1."""
        decay = min(self._decay, (1 + step) / (10 + step))
        averages, weights = [*self.weights.values()], [*trainable_weights(self._model).values()]
        torch._foreach_lerp_(averages, weights, 1 - decay)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Load a saved average; KeyError if a weight is missing."""
        for name, value in self.weights.items():
            value.copy_(weights[name])

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Within the context, the model has the averaged weights."""
        trained = {name: value.clone() for name, value in trainable_weights(self._model).items()}
        load_trainable(self._model, self.weights)
        try:
            yield
        finally:
            load_trainable(self._model, trained)

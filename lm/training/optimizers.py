"""The optimizers, and their state as named tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from lm.config import TrainingConfig
from lm.training.muon import Muon


def make_optimizers(model: nn.Module, config: TrainingConfig) -> list[torch.optim.Optimizer]:
    """AdamW for everything; or Muon for the matrices of the blocks, and AdamW for embeddings, output and vectors.

    Matrices and embeddings are decayed, vectors (norms, biases) are not.

    Source: Loshchilov and Hutter 2019; what decays: Radford et al. 2018, section 4.1.
    """
    inner = (
        [p for name, p in model.named_parameters() if _is_inner_matrix(name, p)] if config.optimizer == "muon" else []
    )
    chosen = {id(p) for p in inner}
    others = [p for p in model.parameters() if id(p) not in chosen]
    groups = [
        {"params": [p for p in others if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in others if p.ndim < 2], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        fused=True,
    )
    return [adamw, *([Muon(inner, lr=config.learning_rate, weight_decay=config.weight_decay)] if inner else [])]


def _is_inner_matrix(name: str, parameter: Tensor) -> bool:
    return parameter.ndim == 2 and name.startswith(("encoder.", "decoder."))


def optimizer_tensors(optimizers: Sequence[torch.optim.Optimizer], model: nn.Module) -> dict[str, Tensor]:
    """The optimizers' state as {"parameter.what": tensor}."""
    return {
        f"{name}.{key}": value
        for optimizer in optimizers
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def restore_optimizers(
    optimizers: Sequence[torch.optim.Optimizer], model: nn.Module, tensors: Mapping[str, Tensor]
) -> None:
    """Put back what `optimizer_tensors` took out."""
    owners = {
        id(parameter): optimizer
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    for name, parameter in model.named_parameters():
        prefix = name + "."
        owners[id(parameter)].state[parameter] = {
            key.removeprefix(prefix): value.to(parameter.device)
            for key, value in tensors.items()
            if key.startswith(prefix) and "." not in key.removeprefix(prefix)
        }

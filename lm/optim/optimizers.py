"""The optimizers, and their state as named tensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from lm.config.lora import LoraConfig
from lm.config.model import ModelConfig
from lm.config.training import TrainingConfig
from lm.model.layers import Linear
from lm.model.lora import LoraLinear, build_model_with_lora
from lm.model.transformer import Block, init_empty_weights
from lm.model.variants.recurrent import RecurrentDecoder, RecurrentEncoder
from lm.optim.muon import Muon

_NO_ADAPTERS = LoraConfig()


def make_optimizers(
    model: nn.Module,
    config: TrainingConfig,
    *,
    dtype: torch.dtype = torch.bfloat16,
    processes: int = 1,
    is_sharded: bool = False,
) -> list[torch.optim.Optimizer]:
    """AdamW for everything; or Muon for the matrices of the blocks, and AdamW for embeddings, output and vectors.

    Matrices and embeddings are decayed, vectors (norms, biases) are not. The products of Muon are of type `dtype`. Each
    of several processes has all weights or, with `is_sharded`, its share of each.

    Source: Loshchilov and Hutter 2019; what decays: Radford et al. 2018, section 4.1.
    """
    matrices = inner_matrices(model) if config.optimizer == "muon" else {}
    others = [parameter for parameter in model.parameters() if parameter.requires_grad and parameter not in matrices]
    groups = [
        {"params": [p for p in others if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in others if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizers: list[torch.optim.Optimizer] = []
    if others:
        kept = [group for group in groups if group["params"]]
        betas = (config.beta1, config.beta2)
        optimizers.append(torch.optim.AdamW(kept, lr=config.learning_rate, betas=betas, eps=config.epsilon, fused=True))
    if matrices:
        muon = _muon(processes, is_sharded=is_sharded)
        optimizers.append(muon(matrices, lr=config.learning_rate, weight_decay=config.weight_decay, dtype=dtype))
    return optimizers


def _muon(processes: int, *, is_sharded: bool) -> type[Muon]:
    """Muon as so many processes do it; what only several need takes a while to import."""
    if is_sharded:
        from lm.optim.sharded_muon import ShardedMuon  # noqa: PLC0415

        return ShardedMuon
    if processes > 1:
        from lm.optim.replicated_muon import ReplicatedMuon  # noqa: PLC0415

        return ReplicatedMuon
    return Muon


def inner_matrices(model: nn.Module) -> dict[Tensor, Sequence[int]]:
    """The matrices of the blocks, or of recurrent layers and their attention; each gate's is one of its own.

    Of a model with adapters, it is theirs alone.

    Returns:
        Each parameter with the numbers of outputs of the matrices stacked in it, such as queries, keys and values.
    """
    found: dict[Tensor, Sequence[int]] = {}
    for block in (module for module in model.modules() if isinstance(module, Block)):
        found |= {parameter: (len(parameter),) for parameter in block.parameters() if parameter.ndim == 2}
        for module in block.modules():
            if isinstance(module, Linear):
                found[module.weight] = module.projected
            if isinstance(module, LoraLinear):
                found |= {module.lora_a: [module.rank] * len(module.projected), module.lora_b: module.projected}
    for stack in (module for module in model.modules() if isinstance(module, (RecurrentEncoder, RecurrentDecoder))):
        width = stack.recurrent[0].hidden_size
        assert isinstance(width, int)
        of_stack = {parameter: len(parameter) // width for parameter in stack.parameters() if parameter.ndim == 2}
        found |= {parameter: (width,) * matrices for parameter, matrices in of_stack.items() if matrices}
    return {parameter: rows for parameter, rows in found.items() if parameter.requires_grad}


def training_bytes(model: ModelConfig, config: TrainingConfig, lora: LoraConfig = _NO_ADAPTERS) -> int:
    """Bytes of float32 weights, their gradients, their average if there is one, and the optimizers' state.

    AdamW keeps the mean of a gradient and of its square, Muon a momentum. What adapters leave alone has none of these.
    Activations come on top.
    """
    with init_empty_weights():
        built = build_model_with_lora(model, lora)
    weights = sum(parameter.numel() for parameter in built.parameters())
    trained = sum(parameter.numel() for parameter in built.parameters() if parameter.requires_grad)
    of_muon = sum(parameter.numel() for parameter in inner_matrices(built)) if config.optimizer == "muon" else 0
    copies = 1 + bool(config.ema)
    return 4 * (weights + copies * trained + 2 * (trained - of_muon) + of_muon)


def optimizer_tensors(optimizers: Sequence[torch.optim.Optimizer], model: nn.Module) -> dict[str, Tensor]:
    """The optimizers' state as {"parameter.what": tensor}."""
    return {
        f"{name}.{key}": value
        for optimizer in optimizers
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def restore_optimizers(
    optimizers: Sequence[torch.optim.Optimizer],
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    *,
    place: Callable[[Tensor, Tensor], Tensor] = lambda parameter, value: value.to(parameter.device),
) -> None:
    """Put back what `optimizer_tensors` took out; `place` makes of a whole tensor one as a parameter is."""
    owners = {
        id(parameter): optimizer
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    states: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, value in tensors.items():
        owner, _, key = name.rpartition(".")
        states[owner][key] = value
    for name, parameter in (each for each in model.named_parameters() if each[1].requires_grad):
        state = {key: place(parameter, value) for key, value in states[name].items()}
        owners[id(parameter)].state[parameter] = state

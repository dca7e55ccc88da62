"""Build the optimizers of a model, and convert their state to named tensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from lm.config.lora import LoraConfig
from lm.config.model import ModelConfig
from lm.config.training import TrainingConfig
from lm.distributed.parallel import shard_like
from lm.model.layers import Linear
from lm.model.lora import LoraLinear, build_model_with_lora
from lm.model.transformer import Block, init_empty_weights
from lm.model.variants.recurrent import RecurrentDecoder, RecurrentEncoder
from lm.optim.muon import Muon, ReplicatedMuon, ShardedMuon

_NO_ADAPTERS = LoraConfig()


def build_optimizers(
    model: nn.Module,
    config: TrainingConfig,
    *,
    dtype: torch.dtype = torch.bfloat16,
    processes: int = 1,
    is_sharded: bool = False,
) -> list[torch.optim.Optimizer]:
    """Create AdamW for all parameters, or Muon for the matrices of blocks and AdamW for the rest.

    Matrices and embeddings are decayed, vectors (norms, biases) are not.

    Args:
        dtype: of Muon's matmuls.
        is_sharded: whether each rank has only a shard of the weights.

    Source: Loshchilov and Hutter 2019; weight decay groups: Radford et al. 2018, section 4.1.
    """
    matrices = hidden_matrices(model) if config.optimizer == "muon" else {}
    others = [parameter for parameter in model.parameters() if parameter.requires_grad and parameter not in matrices]
    decayed, vectors = [p for p in others if p.ndim >= 2], [p for p in others if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizers: list[torch.optim.Optimizer] = []
    if others:
        kept = [group for group in groups if group["params"]]
        betas = (config.beta1, config.beta2)
        optimizers.append(torch.optim.AdamW(kept, lr=config.learning_rate, betas=betas, eps=config.epsilon, fused=True))
    if matrices:
        muon = ShardedMuon if is_sharded else ReplicatedMuon if processes > 1 else Muon
        optimizers.append(
            muon(
                matrices,
                lr=config.learning_rate,
                weight_decay=config.weight_decay,
                dtype=dtype,
                orthogonalisation=config.orthogonalisation,
            )
        )
    return optimizers


def hidden_matrices(model: nn.Module) -> dict[Tensor, Sequence[int]]:
    """Return the matrices of blocks, or of recurrent layers and their attention, one per gate.

    For a model with adapters, only theirs.

    Returns:
        The row counts of the matrices stacked in each parameter, as in fused QKV.
    """
    matrices: dict[Tensor, Sequence[int]] = {}
    for block in (module for module in model.modules() if isinstance(module, Block)):
        matrices |= {parameter: (len(parameter),) for parameter in block.parameters() if parameter.ndim == 2}
        for module in block.modules():
            if isinstance(module, Linear):
                matrices[module.weight] = module.projected
            if isinstance(module, LoraLinear):
                matrices |= {module.lora_a: [module.rank] * len(module.projected), module.lora_b: module.projected}
    for stack in (module for module in model.modules() if isinstance(module, (RecurrentEncoder, RecurrentDecoder))):
        width = stack.recurrent[0].hidden_size
        assert isinstance(width, int)
        matrices_of_stack = {
            parameter: len(parameter) // width for parameter in stack.parameters() if parameter.ndim == 2
        }
        matrices |= {parameter: (width,) * n_gates for parameter, n_gates in matrices_of_stack.items() if n_gates}
    return {parameter: rows for parameter, rows in matrices.items() if parameter.requires_grad}


def training_state_bytes(model: ModelConfig, config: TrainingConfig, lora: LoraConfig = _NO_ADAPTERS) -> int:
    """Return the bytes of float32 weights, gradients, moving average and optimizer state; without activations.

    AdamW keeps two moments, Muon one. Weights frozen by adapters have none of these.
    """
    with init_empty_weights():
        built = build_model_with_lora(model, lora)
    weights = sum(parameter.numel() for parameter in built.parameters())
    trained = sum(parameter.numel() for parameter in built.parameters() if parameter.requires_grad)
    muon_values = sum(parameter.numel() for parameter in hidden_matrices(built)) if config.optimizer == "muon" else 0
    copies = 1 + bool(config.ema)
    return 4 * (weights + copies * trained + 2 * (trained - muon_values) + muon_values)


def optimizer_state_tensors(optimizers: Sequence[torch.optim.Optimizer], model: nn.Module) -> dict[str, Tensor]:
    """Return the optimizer state as {"parameter.key": tensor}."""
    return {
        f"{name}.{key}": value
        for optimizer in optimizers
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_state(
    optimizers: Sequence[torch.optim.Optimizer],
    model: nn.Module,
    tensors: Mapping[str, Tensor],
) -> None:
    """Load what `optimizer_state_tensors` returned, as full tensors."""
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
    for name, parameter in (named for named in model.named_parameters() if named[1].requires_grad):
        state = {key: shard_like(parameter, value) for key, value in states[name].items()}
        owners[id(parameter)].state[parameter] = state

"""Optimizers (AdamW, Muon), their schedules and state, moving averages of weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from lm.config.run_config import TrainingConfig
from lm.model import Block, Model
from lm.model.layers import Linear
from lm.model.lora import LoraLinear, load_trainable, trainable_weights
from lm.training.parallel import Ranks, full_tensor, shard_like


def learning_rate(
    step: int, *, config: TrainingConfig, steps: int | None, decay_start: tuple[int, float] | None = None
) -> float:
    """Return the learning rate of a step, counted from 0, in a run of `steps` (None: not known yet).

    Linear warm-up, then the schedule decays to `final_learning_rate_fraction` × peak (except inverse-sqrt and
    constant). With `decay_start` (step, fraction), chosen by a budget or the extension of a run, it decays linearly
    from that fraction of the peak after that step; until `steps` is known it stays there.

    Source: cosine: Loshchilov and Hutter 2017; inverse-sqrt: Vaswani et al. 2017; wsd: Hu et al. 2024 (MiniCPM).
    """
    warmup, final, fraction = config.warmup_steps, config.final_learning_rate_fraction, 1.0
    if step < warmup:
        return config.learning_rate * (step + 1) / (warmup + 1)
    if decay_start is not None:
        since, fraction = decay_start
        if steps is not None:
            fraction -= (fraction - final) * min(1.0, (step - since) / max(1, steps - since))
    elif steps is not None:
        progress = min(1.0, (step - warmup) / max(1, steps - warmup))
        if config.schedule == "cosine":
            fraction = final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2
        elif config.schedule == "linear":
            fraction = 1 - (1 - final) * progress
        elif config.schedule == "inverse-sqrt":
            fraction = math.sqrt(max(1, warmup) / (max(1, warmup) + step - warmup))
        elif config.schedule == "wsd" and config.decay_fraction:
            fraction = 1 - (1 - final) * max(0.0, 1 - (1 - progress) / config.decay_fraction)
    return config.learning_rate * fraction


def total_steps_from_decay(step: int, *, config: TrainingConfig, since: int = 0) -> int:
    """Return the total steps of a wsd run that starts to decay after `step`; `since` is the step of an extension."""
    start = max(config.warmup_steps, since)
    return step if step <= start else start + math.ceil((step - start) / (1 - config.decay_fraction))


_NS_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_NS_STEPS = 5
_MIN_ASPECT_RATIO = 1.5
"""Columns per row from which iterating on Gram matrices takes fewer FLOPs."""
_ADAMW_UPDATE_RMS = 0.2
_ADAMW_BESIDE_MUON = 0.5
"""Learning rate of AdamW for the other weights, as a fraction of Muon's, whose rate is lower for translation."""


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalised updates of matrices.

    Updates are scaled to the RMS of AdamW's (0.2), so that its learning rate and weight decay can be used. Equals
    `torch.optim.Muon(adjust_lr_fn="match_rms_adamw")`, which handles one matrix at a time and is slow for small models.

    Source: Jordan et al. 2024; scale of the update: Liu et al. 2025 (Moonlight), section 2.2.
    """

    def __init__(
        self,
        parameters: Mapping[Tensor, Sequence[int]],
        *,
        lr: float,
        weight_decay: float = 0.0,
        momentum: float = 0.9,
        dtype: torch.dtype = torch.bfloat16,
        ranks: Ranks = "single",
    ) -> None:
        """Create the optimizer for matrices of hidden layers, (outputs, inputs); several may be stacked in a parameter.

        Args:
            parameters: maps each parameter to the row counts of the matrices stacked in it, as in fused QKV.
            weight_decay: multiplied by the learning rate.
            momentum: decay of the gradient's moving average.
            dtype: of the orthogonalisation, which may be approximate.
            ranks: whether several ranks divide the matrices of a shape and gather their updates (DDP), or gather and
                orthogonalise one parameter at a time, of which each has a shard (FSDP).
        """
        super().__init__(list(parameters), {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        self._dtype, self._ranks = dtype, ranks
        self._rows = {parameter: list(rows) for parameter, rows in parameters.items()}

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            rate, is_sharded = group["lr"], self._ranks == "sharded"
            weights = [weight for weight in group["params"] if weight.grad is not None]
            for at_once in [[weight] for weight in weights] if is_sharded else [weights]:
                for weight in at_once:
                    if "momentum" not in self.state[weight]:
                        self.state[weight]["momentum"] = torch.zeros_like(weight)
                averages = [self.state[weight]["momentum"] for weight in at_once]
                gradients: list[Any] = [weight.grad for weight in at_once]
                torch._foreach_lerp_(averages, gradients, 1 - group["momentum"])
                nesterov = [*map(full_tensor, torch._foreach_lerp(gradients, averages, group["momentum"]))]
                torch._foreach_mul_(at_once, 1 - rate * group["weight_decay"])
                # shards get their part of an update that is computed in full
                targets = [torch.zeros_like(update) for update in nesterov] if is_sharded else at_once
                by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
                for weight, *stacked in zip(at_once, targets, nesterov, strict=True):
                    for matrices in zip(*(tensor.split(self._rows[weight]) for tensor in stacked), strict=True):
                        by_shape.setdefault(matrices[0].shape, []).append(matrices)
                for shape, pairs in by_shape.items():
                    of_shape, updates = map(list, zip(*pairs, strict=True))
                    orthogonal = self._orthogonalise(torch.stack(updates).to(self._dtype)).to(updates[0].dtype)
                    scale = _ADAMW_UPDATE_RMS * max(shape) ** 0.5
                    torch._foreach_add_(of_shape, [*orthogonal], alpha=-rate * scale)
                if is_sharded:
                    at_once[0].add_(shard_like(at_once[0], targets[0]))

    def _orthogonalise(self, matrices: Tensor) -> Tensor:
        """Orthogonalise (matrices, rows, columns); replicated ranks divide them."""
        if self._ranks != "replicated":
            return orthogonalise(matrices)
        n_per_rank = -(-len(matrices) // dist.get_world_size())
        begin = dist.get_rank() * n_per_rank
        part = orthogonalise(matrices[begin : begin + n_per_rank])
        padded = F.pad(part, (0, 0, 0, 0, 0, n_per_rank - len(part))).contiguous()
        gathered = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, padded)
        return torch.cat(gathered)[: len(matrices)]


def orthogonalise(matrices: Tensor) -> Tensor:
    """Orthogonalise (matrices, rows, columns): singular values become about 0.7 to 1.2.

    In float32 it iterates on Gram matrices where that takes fewer FLOPs; the rounding errors of bfloat16 would grow.

    Source: the Newton-Schulz iteration of Jordan et al. 2024.
    """
    a, b, c = _NS_COEFFICIENTS
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    rows, columns = x.shape[-2:]
    if x.dtype is torch.float32 and columns >= _MIN_ASPECT_RATIO * rows:
        x = _compose_iterations(x @ x.mT, _NS_STEPS) @ x
    else:
        for _ in range(_NS_STEPS):
            gram = x @ x.mT
            polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
            x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if tall else x


def _compose_iterations(gram: Tensor, steps: int) -> Tensor:
    """Return what `steps` iterations together multiply matrices by, given their (matrices, rows, rows) Gram matrices.

    An iteration takes 4 rows³ MACs, and on the matrices themselves 2 rows² columns + rows³.
    """
    a, b, c = _NS_COEFFICIENTS
    polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
    polynomial.diagonal(dim1=-2, dim2=-1).add_(a)
    if steps == 1:
        return polynomial
    return _compose_iterations(polynomial @ gram @ polynomial, steps - 1) @ polynomial


def build_optimizers(
    model: Model, config: TrainingConfig, *, dtype: torch.dtype = torch.bfloat16, ranks: Ranks = "single"
) -> list[torch.optim.Optimizer]:
    """Create AdamW for all parameters, or Muon for the matrices of blocks and AdamW for the rest.

    Beside Muon, AdamW has half of its rate, but not to translate. Matrices and embeddings decay alike, vectors (norms,
    biases) don't.

    Args:
        dtype: of Muon's matmuls.
        ranks: how several ranks hold the weights.

    Source: Loshchilov and Hutter 2019; weight decay groups: Radford et al. 2018, section 4.1.
    """
    matrices = hidden_matrices(model) if config.optimizer == "muon" else {}
    rate, decay = config.learning_rate, config.weight_decay
    fraction = 1.0 if model.config.translates or not matrices else _ADAMW_BESIDE_MUON
    others = [parameter for parameter in model.parameters() if parameter.requires_grad and parameter not in matrices]
    groups = [
        {
            "params": [parameter for parameter in others if (parameter.ndim > 1) is is_decayed],
            "weight_decay": decay * is_decayed / fraction,
            "rate_fraction": fraction,
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

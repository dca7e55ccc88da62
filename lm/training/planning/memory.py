"""Estimated memory of training on each rank."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.data.batch import batch_rows
from lm.errors import UsageError
from lm.hardware import Hardware, free_gpu_memory
from lm.model.lora import build_model_with_lora
from lm.model.loss import estimate_loss_bytes
from lm.model.transformer import Block, build_model, init_empty_weights, set_activation_checkpointing
from lm.optim.optimizers import hidden_matrices
from lm.training.objective import hidden_states_fn

_CPU = torch.device("cpu")
_SMALL_VOCAB_SIZE = 64  # vocabulary size: the loss is estimated separately
_GATHERED_BLOCKS = 2
"""Number of blocks gathered at a time by FSDP: the current one and the prefetched next one."""
_USABLE_FRACTION = 0.85
"""Fraction of a GPU's free memory that is planned for; the rest is for workspaces and fragmentation."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes per rank.

    Attributes:
        weights: of the model and its moving average; with FSDP including gathered blocks.
        gradients: with FSDP including those not yet reduced, which with gradient accumulation are all.
        activations: kept by the forward pass of a micro-batch for the backward pass.
        loss: peak of the loss: logits, and gradients of the output layer.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    loss: int

    @property
    def total(self) -> int:
        """Memory needed on the training device."""
        return sum(dataclasses.astuple(self))


def estimate_memory(config: RunConfig, *, processes: int, dtype: str) -> MemoryEstimate:
    """Estimate the memory of each rank during a training step.

    Args:
        config: of the run; its batch is divided over the ranks, and into micro-batches if it says so.
    """
    rows = max(1, -(-batch_rows(config) // processes))
    micro_batch_rows = min(rows, config.training.micro_batch_size or rows)
    return MemoryEstimate(
        *_state_bytes(config, processes=processes, accumulates=micro_batch_rows < rows),
        activations=measure_activation_bytes(config, rows=micro_batch_rows, dtype=dtype),
        loss=_loss_bytes(config, micro_batch_rows, dtype),
    )


def training_state_bytes(config: RunConfig) -> int:
    """Return the bytes of float32 weights, gradients, moving average and optimizer state; without activations."""
    return sum(_state_bytes(config))


def _state_bytes(config: RunConfig, *, processes: int = 1, accumulates: bool = False) -> tuple[int, int, int]:
    """Return the bytes of weights, gradients and optimizer state; weights frozen by adapters have only the first.

    AdamW keeps two moments, Muon one.
    """
    with init_empty_weights():
        model = build_model_with_lora(config.model, config.lora)
    total, trained = _count(model.parameters()), _count(weight for weight in model.parameters() if weight.requires_grad)
    muon = _count(hidden_matrices(model)) if config.training.optimizer == "muon" else 0
    weights, gradients, moments = total + bool(config.training.ema) * trained, trained, 2 * trained - muon
    if config.distribution.shard and processes > 1:
        blocks = [_count(block.parameters()) for block in model.modules() if isinstance(block, Block)]
        outside = total - sum(blocks)
        weights = weights // processes + outside + min(_GATHERED_BLOCKS, len(blocks)) * max(blocks)
        gradients = gradients if accumulates else gradients // processes + outside + max(blocks)
        moments //= processes
    return 4 * weights, 4 * gradients, 4 * moments


def _count(weights: Iterable[Tensor]) -> int:
    return sum(weight.numel() for weight in weights)


def estimate_micro_batch_tokens(config: RunConfig, hardware: Hardware, *, processes: int = 1) -> int | None:
    """Estimate how many tokens fit into the free memory of a GPU in one forward and backward pass.

    Weights, gradients and optimizer state are subtracted first; the rest is for activations, another layer of them
    (their gradients; with activation checkpointing also the recomputed layer) and the loss.

    Args:
        config: of the run; tokens are positions of its context, for encoder-decoders of both sides together.

    Returns:
        At least one sequence; None on other devices, or for sources with dependency trees.
    """
    if hardware.device != "cuda" or config.model.syntax != "none":
        return None
    length = config.model.context_length
    try:
        first, per_sequence, layer_bytes = _sequence_bytes(config, dtype=hardware.dtype, device=hardware.torch_device)
    except torch.OutOfMemoryError:
        return length
    gc.collect()  # frees trial models
    state = sum(_state_bytes(config, processes=processes, accumulates=True))
    free = _USABLE_FRACTION * free_gpu_memory(hardware) - state - (first - per_sequence)
    extra = (1 + config.training.gradient_checkpointing) * layer_bytes

    def needed(rows: int) -> float:
        return rows * (per_sequence + extra) + _loss_bytes(config, rows, hardware.dtype, on_cpu=False)

    rows, more = 1, 1 << 20
    while more := more >> 1:  # binary search
        rows += more if needed(rows + more) <= free else 0
    return rows * length


def measure_activation_bytes(config: RunConfig, *, rows: int, dtype: str, device: torch.device = _CPU) -> int:
    """Measure the bytes of activations kept for the backward pass of `rows` sequences on a device.

    Raises:
        UsageError: sources have dependency trees, which cannot be tried out.
    """
    if config.model.syntax != "none":
        raise UsageError("activation memory cannot be measured for sources with dependency trees")
    first, per_sequence, _ = _sequence_bytes(config, dtype=dtype, device=device)
    return first + (rows - 1) * per_sequence


def _sequence_bytes(config: RunConfig, *, dtype: str, device: torch.device) -> tuple[int, int, int]:
    """Measure the activation bytes per sequence, with one and two sequences in one and two layers.

    Returns:
        Bytes of the first sequence, including weights cast to `dtype`; of each further one; and of one layer of it
            without recomputation. With R-Drop a sequence passes twice.
    """
    training, passes, hardware = (
        config.training,
        config.training.forward_passes,
        Hardware(device.type, dtype, threads=1),
    )

    def of_layer(*, recomputed: bool) -> list[tuple[int, int]]:
        """Return the bytes of one layer, and of a further one; for one and two sequences."""
        return [
            (one := _measure_activations(config.model, rows, 1, hardware, recomputed=recomputed),
             _measure_activations(config.model, rows, 2, hardware, recomputed=recomputed) - one)
            for rows in (1, 2)
        ]  # fmt: skip

    sizes = of_layer(recomputed=training.gradient_checkpointing)
    plain = of_layer(recomputed=False) if training.gradient_checkpointing else sizes
    total, both = (whole + (config.model.n_layers - 1) * layer for whole, layer in sizes)
    per_sequence = both - total
    return total + (passes - 1) * per_sequence, passes * per_sequence, passes * (plain[1][1] - plain[0][1])


def _measure_activations(model: ModelConfig, rows: int, layers: int, hardware: Hardware, *, recomputed: bool) -> int:
    """Measure the activation bytes of a model with `layers` layers (per side, for encoder-decoders)."""
    shape = dataclasses.replace(
        model,
        n_layers=layers,
        n_encoder_layers=layers if model.n_encoder_layers else 0,
        vocab_size=_SMALL_VOCAB_SIZE,
        source_vocab_size=None,
        labels=(),
    )
    built, saved = build_model(shape).to(hardware.torch_device), dict[int, int]()
    set_activation_checkpointing(built, enabled=recomputed)

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage._cdata] = storage.nbytes()
        return tensor

    ids = torch.zeros(rows, shape.context_length, dtype=torch.long, device=hardware.torch_device)
    inputs = (ids, ids) if shape.is_encoder_decoder else (ids,)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor), hardware.autocast():
        states = hidden_states_fn(built)(*inputs)
    assert states.requires_grad  # keeps the saved tensors alive
    for weight in built.parameters():
        saved.pop(weight.untyped_storage()._cdata, None)
    return sum(saved.values())


def _loss_bytes(config: RunConfig, rows: int, dtype: str, *, on_cpu: bool = True) -> int:
    """Return the peak bytes of the loss of `rows` sequences; with R-Drop a sequence passes twice."""
    model = config.model
    positions = rows * config.training.forward_passes * model.context_length
    size = getattr(torch, dtype).itemsize
    return estimate_loss_bytes(positions, model.vocab_size, model.d_model, bytes_per_value=size, on_cpu=on_cpu)

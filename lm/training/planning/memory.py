"""Estimated memory and communication of training on each rank."""

from __future__ import annotations

import dataclasses
import gc
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.data.batch import batch_rows
from lm.errors import UsageError
from lm.hardware import Hardware, free_gpu_memory
from lm.model.loss import estimate_loss_bytes
from lm.model.transformer import Block, build_model, init_empty_weights, set_activation_checkpointing
from lm.optim.optimizers import hidden_matrices, training_state_bytes
from lm.training.objective import hidden_states_fn

_CPU = torch.device("cpu")
_FLOAT32 = 4
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
        copied: CPU memory of rank 0 for writing checkpoints.
        exchanged: sent to other ranks per step.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    loss: int
    copied: int
    exchanged: int

    @property
    def total(self) -> int:
        """Memory needed on the training device."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.loss


def estimate_memory(config: RunConfig, *, processes: int, dtype: str) -> MemoryEstimate:
    """Estimate the memory and communication of each rank during a training step.

    Args:
        config: of the run; its batch is divided over the ranks, and into micro-batches if it says so.
    """
    with init_empty_weights():
        model = build_model(config.model)
    weights, matrices = _count_parameters(model), sum(weight.numel() for weight in hidden_matrices(model))
    moments = 2 * weights if config.training.optimizer == "adamw" else 2 * (weights - matrices) + matrices
    copies = 1 + bool(config.training.ema)
    rows = max(1, -(-batch_rows(config) // processes))
    micro_batch_rows = min(rows, config.training.micro_batch_size or rows)
    gathered = other_weights = 0
    if is_sharded := config.distribution.shard and processes > 1:
        blocks = [_count_parameters(block) for block in model.modules() if isinstance(block, Block)]
        other_weights = weights - sum(blocks)
        gathered = other_weights + min(_GATHERED_BLOCKS, len(blocks)) * max(blocks)
    n_shards, micro_batches = processes if is_sharded else 1, -(-rows // micro_batch_rows)
    gradients = weights // n_shards + other_weights + max(blocks) if is_sharded and micro_batches == 1 else weights
    return MemoryEstimate(
        weights=_FLOAT32 * (copies * weights // n_shards + gathered),
        gradients=_FLOAT32 * gradients,
        optimizer=_FLOAT32 * moments // n_shards,
        activations=measure_activation_bytes(config, rows=micro_batch_rows, dtype=dtype),
        loss=_loss_bytes(config, micro_batch_rows, dtype),
        copied=_FLOAT32 * (copies * weights + moments),
        exchanged=_communication_bytes(
            weights, other_weights, processes, micro_batches=micro_batches, is_sharded=is_sharded
        )
        + (config.training.optimizer == "muon")
        * _muon_communication_bytes(matrices, processes, dtype, is_sharded=is_sharded),
    )


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
    free = _USABLE_FRACTION * free_gpu_memory(hardware) - _static_bytes(config, processes) - (first - per_sequence)
    extra = (1 + config.training.gradient_checkpointing) * layer_bytes

    def needed(rows: int) -> float:
        return rows * (per_sequence + extra) + _loss_bytes(config, rows, hardware.dtype, on_cpu=False)

    rows, more = 1, 1 << 20
    while more := more >> 1:  # binary search
        rows += more if needed(rows + more) <= free else 0
    return rows * length


def _static_bytes(config: RunConfig, processes: int) -> int:
    """Bytes of weights, gradients and optimizer state on each GPU."""
    if not config.distribution.shard or processes == 1:
        return training_state_bytes(config.model, config.training, config.lora)
    with init_empty_weights():
        model = build_model(config.model)
    blocks = [_count_parameters(block) for block in model.modules() if isinstance(block, Block)]
    gathered = _FLOAT32 * (_count_parameters(model) - sum(blocks) + min(_GATHERED_BLOCKS, len(blocks)) * max(blocks))
    sharded = 0 if config.distribution.offload else training_state_bytes(config.model, config.training) // processes
    return sharded + 2 * gathered  # weights and their gradients


def _communication_bytes(
    weights: int, other_weights: int, processes: int, *, micro_batches: int, is_sharded: bool
) -> int:
    """Return the bytes that a rank sends per step with ring collectives.

    DDP all-reduces the gradients once. FSDP reduce-scatters them once, gathers blocks in the forward and backward pass
    of each micro-batch, and other weights once per micro-batch.
    """
    ring_factor = _FLOAT32 * (processes - 1) / processes
    if not is_sharded:
        return round(ring_factor * 2 * weights)
    return round(ring_factor * (weights + micro_batches * (2 * (weights - other_weights) + other_weights)))


def _muon_communication_bytes(matrices: int, processes: int, dtype: str, *, is_sharded: bool) -> int:
    """Bytes sent for orthogonalised updates; with FSDP also for their inputs, in float32."""
    bytes_per_value = 2 * _FLOAT32 if is_sharded else getattr(torch, dtype).itemsize
    return round(bytes_per_value * matrices * (processes - 1) / processes)


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
    layers, sides, training = config.model.n_layers, (1, 2), config.training

    def of_layer(*, recomputed: bool) -> tuple[dict[int, int], dict[int, int]]:
        sizes = {
            (rows, n): _measure_activations(
                config.model, rows=rows, layers=n, dtype=dtype, device=device, recomputed=recomputed
            )
            for rows in sides
            for n in sides
        }
        return {n: sizes[n, 1] for n in sides}, {n: sizes[n, 2] - sizes[n, 1] for n in sides}

    whole, layer = of_layer(recomputed=training.gradient_checkpointing)
    total = {n: whole[n] + (layers - 1) * layer[n] for n in sides}
    _, plain = of_layer(recomputed=False) if training.gradient_checkpointing else (whole, layer)
    per_sequence = total[2] - total[1]
    return (
        total[1] + (training.forward_passes - 1) * per_sequence,
        training.forward_passes * per_sequence,
        training.forward_passes * (plain[2] - plain[1]),
    )


def _measure_activations(
    model: ModelConfig, *, rows: int, layers: int, dtype: str, device: torch.device, recomputed: bool
) -> int:
    """Measure the activation bytes of a model with `layers` layers (per side, for encoder-decoders)."""
    encoders = layers if model.n_encoder_layers else 0
    shape = dataclasses.replace(
        model,
        n_layers=layers,
        n_encoder_layers=encoders,
        vocab_size=_SMALL_VOCAB_SIZE,
        source_vocab_size=None,
        labels=(),
    )
    built, saved = build_model(shape).to(device), dict[int, int]()
    set_activation_checkpointing(built, enabled=recomputed)

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage._cdata] = storage.nbytes()
        return tensor

    ids = torch.zeros(rows, shape.context_length, dtype=torch.long, device=device)
    inputs = (ids, ids) if shape.is_encoder_decoder else (ids,)
    hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
    with hooks, Hardware(device.type, dtype, threads=1).autocast():
        states = hidden_states_fn(built)(*inputs)
    assert states.requires_grad  # keeps the saved tensors alive
    for weight in built.parameters():
        saved.pop(weight.untyped_storage()._cdata, None)
    return sum(saved.values())


def _loss_bytes(config: RunConfig, rows: int, dtype: str, *, on_cpu: bool = True) -> int:
    """Return the peak bytes of the loss of `rows` sequences; with R-Drop a sequence passes twice."""
    model = config.model
    positions = rows * config.training.forward_passes * model.context_length
    bytes_per_value = getattr(torch, dtype).itemsize
    return estimate_loss_bytes(
        positions, model.vocab_size, model.d_model, bytes_per_value=bytes_per_value, on_cpu=on_cpu
    )


def _count_parameters(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())

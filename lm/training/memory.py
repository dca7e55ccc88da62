"""What each of several processes holds while it trains, and what they exchange, estimated before training."""

from __future__ import annotations

import dataclasses
import gc
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lm.config.model import ModelConfig
from lm.config.run import RunConfig
from lm.data.batch import batch_rows
from lm.errors import UsageError
from lm.hardware import Hardware, free_memory
from lm.model.loss import estimate_loss_bytes
from lm.model.transformer import Block, build_model, init_empty_weights, set_activation_checkpointing
from lm.optim.optimizers import inner_matrices, training_bytes
from lm.training.objective import final_states

_CPU = torch.device("cpu")
_FLOAT32 = 4
_FEW = 64  # tokens of a vocabulary: what the loss holds is told apart
_AT_WORK = 2
"""Blocks that are gathered at a time: the one at work, and the next on its way."""
_USED = 0.85
"""Fraction of a GPU's free memory that is planned for: the rest is for workspaces and fragmentation."""


@dataclass(frozen=True)
class Held:
    """Bytes in each process; of the last two, one is in the first process, and one is what is sent in a step.

    Attributes:
        weights: of the model, and of their moving average, if there is one; with shares, those gathered too.
        gradients: of the weights; with shares, those not yet added up too, which in several turns are all of them.
        optimizer: moments.
        activations: what the forward pass of one turn keeps for the backward pass.
        loss: what the loss holds at a time: logits, and gradients of the output layer.
        copied: what the first process has in the memory of the machine, whole, to write checkpoints from.
        exchanged: what each process sends to others.
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
        """What there must be memory for in each, where it computes."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.loss


def held(config: RunConfig, *, processes: int, dtype: str) -> Held:
    """What each process holds in a step of a run, and sends.

    Args:
        config: of the run; its batch is shared out, and goes through in micro-batches if it says so.
        processes: how many.
        dtype: arithmetic of the products.
    """
    with init_empty_weights():
        model = build_model(config.model)
    weights, matrices = _size(model), sum(weight.numel() for weight in inner_matrices(model))
    moments = 2 * weights if config.training.optimizer == "adamw" else 2 * (weights - matrices) + matrices
    copies = 1 + bool(config.training.ema)
    rows = max(1, -(-batch_rows(config) // processes))
    at_once = min(rows, config.training.micro_batch_size or rows)
    gathered = around = 0
    if shares := config.distribution.shard and processes > 1:
        blocks = [_size(block) for block in model.modules() if isinstance(block, Block)]
        around = weights - sum(blocks)
        gathered = around + min(_AT_WORK, len(blocks)) * max(blocks)
    each, turns = processes if shares else 1, -(-rows // at_once)
    of_gradients = weights // each + around + max(blocks) if shares and turns == 1 else weights
    return Held(
        weights=_FLOAT32 * (copies * weights // each + gathered),
        gradients=_FLOAT32 * of_gradients,
        optimizer=_FLOAT32 * moments // each,
        activations=kept(config, rows=at_once, dtype=dtype),
        loss=_bytes_of_loss(config, at_once, dtype),
        copied=_FLOAT32 * (copies * weights + moments),
        exchanged=_exchanged(weights, around, processes, turns=turns, shares=shares)
        + (config.training.optimizer == "muon") * _of_muon(matrices, processes, dtype, shares=shares),
    )


def fitting_tokens(config: RunConfig, hardware: Hardware, *, processes: int = 1) -> int | None:
    """Estimate how many positions fit into the free memory of a GPU in one pass, forward and backward.

    Weights, gradients and the optimizer's state come first; the rest is for what the forward pass keeps, for one more
    layer of it (gradients of activations; with activation checkpointing also the recomputed layer) and for the loss.

    Args:
        config: of the run; positions are those of its context, of both sides of an encoder-decoder one after the other.
        hardware: that the run trains on.
        processes: that train it together, each on a GPU of its own.

    Returns:
        At least one sequence; None where it is not known: on other devices, or where sources come with trees.
    """
    if hardware.device != "cuda" or config.model.syntax != "none":
        return None
    length = config.model.context_length
    try:
        first, each, of_layer = _sequence_bytes(config, dtype=hardware.dtype, device=hardware.torch_device)
    except torch.OutOfMemoryError:
        return length
    gc.collect()  # of models that were only tried
    free = _USED * free_memory(hardware) - _lasting_bytes(config, processes) - (first - each)
    extra = (1 + config.training.checkpoint_activations) * of_layer

    def needed(rows: int) -> float:
        return rows * (each + extra) + _bytes_of_loss(
            config, rows * config.training.passes, hardware.dtype, on_cpu=False
        )

    rows, more = 1, 1 << 20
    while more := more >> 1:  # a binary search: what is needed grows with the rows
        rows += more if needed(rows + more) <= free else 0
    return rows * length


def _lasting_bytes(config: RunConfig, processes: int) -> int:
    """Bytes of weights, gradients and the optimizer's state on each GPU."""
    if not config.distribution.shard or processes == 1:
        return training_bytes(config.model, config.training, config.lora)
    with init_empty_weights():
        model = build_model(config.model)
    blocks = [_size(block) for block in model.modules() if isinstance(block, Block)]
    gathered = _FLOAT32 * (_size(model) - sum(blocks) + min(_AT_WORK, len(blocks)) * max(blocks))
    shares = 0 if config.distribution.offload else training_bytes(config.model, config.training) // processes
    return shares + 2 * gathered  # weights and their gradients


def _exchanged(weights: int, around: int, processes: int, *, turns: int, shares: bool) -> int:
    """Bytes that a process sends in a step, where each passes on what it has in a ring.

    Gradients are summed once a step: each share goes round once, and where all have all, once more. Shares of blocks
    are gathered forward and back in each turn, those around them once.
    """
    of_one_round = _FLOAT32 * (processes - 1) / processes
    if not shares:
        return round(of_one_round * 2 * weights)
    return round(of_one_round * (weights + turns * (2 * (weights - around) + around)))


def _of_muon(matrices: int, processes: int, dtype: str, *, shares: bool) -> int:
    """The same of what processes have orthogonalised for each other; of shares, what is to be, too, in float32."""
    each = 2 * _FLOAT32 if shares else getattr(torch, dtype).itemsize
    return round(each * matrices * (processes - 1) / processes)


def kept(config: RunConfig, *, rows: int, dtype: str, device: torch.device = _CPU) -> int:
    """Bytes that a forward pass of so many sequences keeps for the backward pass on a device, as measured there.

    Raises:
        UsageError: sources come with trees, which are not there to try.
    """
    if config.model.syntax != "none":
        raise UsageError("what training keeps is not known for sources with trees", settings=("syntax",))
    first, each, _ = _sequence_bytes(config, dtype=dtype, device=device)
    return first + (rows - 1) * each


def _sequence_bytes(config: RunConfig, *, dtype: str, device: torch.device) -> tuple[int, int, int]:
    """Bytes that a forward pass keeps for the backward pass, measured on a device.

    Measured with one and two sequences in one and two layers: each layer keeps the same, and so does each sequence.

    Returns:
        What the first sequence keeps, which includes weights cast to `dtype`; what each further one keeps; and of that
        what one layer keeps while its activations are not recomputed. With R-Drop a sequence passes twice.
    """
    layers, sides, training = config.model.n_layers, (1, 2), config.training

    def of_layer(*, recomputed: bool) -> tuple[dict[int, int], dict[int, int]]:
        found = {
            (rows, n): _kept(config.model, rows=rows, layers=n, dtype=dtype, device=device, recomputed=recomputed)
            for rows in sides
            for n in sides
        }
        return {n: found[n, 1] for n in sides}, {n: found[n, 2] - found[n, 1] for n in sides}

    whole, layer = of_layer(recomputed=training.checkpoint_activations)
    total = {n: whole[n] + (layers - 1) * layer[n] for n in sides}
    _, plain = of_layer(recomputed=False) if training.checkpoint_activations else (whole, layer)
    each = total[2] - total[1]
    return total[1] + (training.passes - 1) * each, training.passes * each, training.passes * (plain[2] - plain[1])


def _kept(model: ModelConfig, *, rows: int, layers: int, dtype: str, device: torch.device, recomputed: bool) -> int:
    """The same of so many sequences in a model of so many layers (on each side, where there are two)."""
    encoders = layers if model.n_encoder_layers else 0
    shape = dataclasses.replace(
        model, n_layers=layers, n_encoder_layers=encoders, vocab_size=_FEW, source_vocab_size=None, labels=()
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
        states = final_states(built)(*inputs)
    assert states.requires_grad  # what it keeps is still there, each in a storage of its own
    for weight in built.parameters():
        saved.pop(weight.untyped_storage()._cdata, None)
    return sum(saved.values())


def _bytes_of_loss(config: RunConfig, rows: int, dtype: str, *, on_cpu: bool = True) -> int:
    """Bytes that the loss of so many sequences holds at a time."""
    model = config.model
    positions, bytes_per_value = rows * model.context_length, getattr(torch, dtype).itemsize
    return estimate_loss_bytes(
        positions, model.vocab_size, model.d_model, bytes_per_value=bytes_per_value, on_cpu=on_cpu
    )


def _size(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())

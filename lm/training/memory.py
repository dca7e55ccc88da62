"""What each of several processes holds while it trains, and what they exchange, worked out before training."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lm.config.run import RunConfig
from lm.data.batch import batch_rows
from lm.errors import UsageError
from lm.hardware import Hardware
from lm.model.block import Block, recompute
from lm.model.loss import loss_bytes
from lm.model.shapes import without_weights
from lm.model.transformer import build_model
from lm.optimization.optimizers import inner_matrices
from lm.training.objective import final_states

_FLOAT32 = 4
_FEW = 64  # tokens of a vocabulary: what the loss holds is told apart
_AT_WORK = 2
"""Blocks that are gathered at a time: the one at work, and the next on its way."""


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
    with without_weights():
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
        loss=loss_bytes(
            at_once * config.model.context_length,
            config.model.vocab_size,
            config.model.d_model,
            bytes_per_value=getattr(torch, dtype).itemsize,
        ),
        copied=_FLOAT32 * (copies * weights + moments),
        exchanged=_exchanged(weights, around, processes, turns=turns, shares=shares)
        + (config.training.optimizer == "muon") * _of_muon(matrices, processes, dtype, shares=shares),
    )


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


def kept(config: RunConfig, *, rows: int, dtype: str) -> int:
    """Bytes that a forward pass of so many sequences keeps for the backward pass.

    What one and two sequences keep in one and two layers tells it: each layer keeps as much, and so does each sequence.

    Raises:
        UsageError: sources come with trees, which are not there to try.
    """
    if config.model.syntax != "none":
        raise UsageError("what training keeps is not known for sources with trees (--syntax)")
    model, rows = config.model, rows * config.training.passes
    layers, sides = model.n_layers, (1, 2)
    found = {(n, of): _kept(config, rows=n, layers=of, dtype=dtype) for n in sides for of in sides}
    of_layer = {n: found[n, 2] - found[n, 1] for n in sides}
    of_all = {n: found[n, 1] + (layers - 1) * of_layer[n] for n in sides}
    return of_all[1] + (rows - 1) * (of_all[2] - of_all[1])


def _kept(config: RunConfig, *, rows: int, layers: int, dtype: str) -> int:
    """The same of a model of so many layers (on each side, where there are two), measured."""
    encoders = layers if config.model.n_encoder_layers else 0
    shape = dataclasses.replace(
        config.model, n_layers=layers, n_encoder_layers=encoders, vocab_size=_FEW, source_vocab_size=None, labels=()
    )
    model, saved = build_model(shape), dict[int, int]()
    recompute(model, if_training=config.training.checkpoint_activations)

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids = torch.zeros(rows, shape.context_length, dtype=torch.long)
    inputs = (ids, ids) if shape.is_encoder_decoder else (ids,)
    hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
    with hooks, Hardware("cpu", dtype, threads=1).autocast():
        states = final_states(model)(*inputs)
    assert states.requires_grad  # what it keeps is still there, each at a place of its own
    for weight in model.parameters():
        saved.pop(weight.untyped_storage().data_ptr(), None)
    return sum(saved.values())


def _size(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())

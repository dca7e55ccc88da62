"""What training makes smaller: the loss of a model on a batch, by the cross-entropy of `lm.model.loss`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm.config.data import IGNORE_INDEX
from lm.config.training import TrainingConfig
from lm.data.batch import Batch
from lm.distributed.placement import Loss
from lm.hardware import Hardware
from lm.model.layers import linear
from lm.model.loss import OutputLayer, chunked_loss, cross_entropy, linear_cross_entropy
from lm.model.transformer import EncoderDecoder, Model, soft_cap
from lm.model.variants.experts import capture_routing, load_balancing_loss

States = Callable[..., Tensor]
"""Token ids -> final states, as `hidden` of a model and `EncoderDecoder.encode_decode` give them."""


_GUESSES_AT_ONCE = 1024
"""Positions whose logits are held at a time to see which is the largest."""


def final_states(model: Model) -> States:
    """The function that gives what a model makes of its inputs before the output layer."""
    return model.encode_decode if isinstance(model, EncoderDecoder) else model.hidden


class Objective(Loss):
    """What training makes smaller, as a run's settings say; the weights are all of its model."""

    model: Model

    def __init__(self, model: Model, hardware: Hardware, config: TrainingConfig, *, states: States) -> None:
        """The objective of a model.

        Args:
            model: what learns.
            hardware: where it is.
            config: label smoothing, R-Drop and the weights of further losses.
            states: `final_states(model)`, or that compiled.
        """
        super().__init__()
        self.model, self._hardware, self._config, self._states = model, hardware, config, states

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the summed loss of a batch, and what is reported of it.

        Returns:
            The loss, to be differentiated; and (2,) sums in nats without a gradient: of the loss less what balances
            experts, and of the surprisal of the targets alone, without label smoothing, R-Drop or a source.
        """
        config = self._config
        with capture_routing(self.model) as routes:
            nats, nll = summed_loss_and_nll(
                self.model,
                batch,
                self._hardware,
                states=self._states,
                label_smoothing=config.label_smoothing,
                r_drop=config.r_drop,
                source_loss=config.source_loss,
            )
        loss = nats
        if routes and config.expert_balance:  # a mean, so it weighs by the targets of its part of the batch
            weight = config.expert_balance * learned_tokens(batch, source_loss=config.source_loss)
            loss = nats + weight * sum(map(load_balancing_loss, routes))
        return loss, torch.stack((nats.detach(), nll))


def summed_loss(model: Model, batch: Batch, hardware: Hardware, *, source_loss: float = 0.0) -> Tensor:
    """Summed surprisal, in nats, of the targets of a batch; see `summed_loss_and_nll`."""
    return summed_loss_and_nll(model, batch, hardware, source_loss=source_loss)[0]


def summed_loss_and_nll(
    model: Model,
    batch: Batch,
    hardware: Hardware,
    *,
    states: States | None = None,
    label_smoothing: float = 0.0,
    r_drop: float = 0.0,
    source_loss: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Summed loss of the targets of a batch, and their surprisal, in nats; those that are IGNORED count nothing.

    Args:
        model: an `EncoderDecoder` for a batch with a source.
        batch: what to read and predict.
        hardware: where the model is.
        states: `final_states(model)`, or that compiled.
        label_smoothing: see `cross_entropy`.
        r_drop: weight of `disagreement` between two passes of the batch; the surprisal is then their mean.
        source_loss: weight of the surprisal of the `source_targets` of a batch, which is added.

    Returns:
        The loss, and the surprisal of the targets alone, which has no gradient.
    """
    states = states or final_states(model)
    learned = [batch.targets] if batch.source_targets is None else [batch.targets, batch.source_targets]
    counted = [_on_device(np.flatnonzero(ids != IGNORE_INDEX), hardware) for ids in learned]
    targets = [_on_device(np.concatenate((ids, ids)) if r_drop else ids, hardware) for ids in learned]
    if r_drop:
        batch = _twice(batch)
    with hardware.autocast():
        hidden = _states(model, states, batch, hardware)
        (total, nll), *of_source = (
            _surprisal(model, hidden, ids, places, label_smoothing=label_smoothing, r_drop=r_drop)
            for ids, places in zip(targets, counted, strict=True)
        )
        return total + source_loss * of_source[0][0] if of_source else total, nll


def learned_tokens(batch: Batch, *, source_loss: float) -> float:
    """How many tokens the `summed_loss` of a batch is divided by: its targets, those of the source by their weight."""
    if batch.source_targets is None:
        return batch.predicted
    return batch.predicted + source_loss * int((batch.source_targets != IGNORE_INDEX).sum())


def summed_loss_and_correct(model: Model, batch: Batch, hardware: Hardware) -> tuple[Tensor, Tensor]:
    """`summed_loss` of a batch, and how many of its targets the model takes for the likeliest."""
    places = _on_device(np.flatnonzero(batch.targets != IGNORE_INDEX), hardware)
    targets = _on_device(batch.targets, hardware)
    with hardware.autocast():
        hidden = _states(model, final_states(model), batch, hardware)
        nats, _ = _surprisal(model, hidden, targets, places)
        correct = torch.zeros_like(nats)
        for some in places.split(_GUESSES_AT_ONCE):
            guessed = model.logits(hidden.flatten(0, -2)[some]).argmax(-1)
            correct += (guessed == targets.flatten()[some]).sum()
    return nats, correct


def _surprisal(
    model: Model,
    hidden: Tensor,
    targets: Tensor,
    places: Tensor,
    *,
    label_smoothing: float = 0.0,
    r_drop: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The summed loss and surprisal of a batch's final states, with R-Drop of two passes; see `_of_two_passes`."""
    if r_drop:
        return _of_two_passes(model, hidden, targets, places, label_smoothing=label_smoothing, r_drop=r_drop)
    weight, bias = model.output_layer
    return linear_cross_entropy(
        hidden,
        weight,
        targets,
        bias=bias,
        target_positions=places,
        label_smoothing=label_smoothing,
        softcap=model.config.softcap,
    )


def _of_two_passes(
    model: Model,
    hidden: Tensor,
    targets: Tensor,
    places: Tensor,
    *,
    label_smoothing: float,
    r_drop: float,
) -> tuple[Tensor, Tensor]:
    """The mean loss of two passes of a batch, with what they disagree by, weighted by `r_drop`; and their surprisal.

    Args:
        model: what made the states.
        hidden: (2 · rows, length, d_model), the states of the second pass below those of the first.
        targets: (2 · rows, length), twice the same.
        places: of the targets of one pass that count, in its flattened (rows · length).
        label_smoothing: see `cross_entropy`.
        r_drop: see `summed_loss`.
    """

    def loss(hidden: Tensor, output: OutputLayer, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = soft_cap(linear(hidden, *output), model.config.softcap)
        smoothed = surprisal = cross_entropy(logits, targets.expand(2, -1), label_smoothing=label_smoothing) / 2
        if label_smoothing:
            surprisal = cross_entropy(logits.detach(), targets.expand(2, -1)) / 2
        return smoothed + r_drop / 4 * disagreement(*logits), surprisal

    once = targets[: len(targets) // 2].flatten()
    return chunked_loss(
        loss, hidden.unflatten(0, (2, -1)).flatten(1, 2), model.output_layer, once, target_positions=places
    )


def disagreement(first: Tensor, second: Tensor) -> Tensor:
    """Kullback-Leibler divergences between two predictions, one way and the other, summed over the positions.

    Args:
        first: (positions, vocabulary) logits.
        second: like `first`.

    Source: Liang et al. 2021 (R-Drop), equation 2; their loss is twice ours.
    """
    one, other = (logits.float().log_softmax(-1) for logits in (first, second))
    return ((one.exp() - other.exp()) * (one - other)).sum()


def _states(model: Model, states: States, batch: Batch, hardware: Hardware) -> Tensor:
    """The final states of a batch. Which inputs are real is said to models that look ahead, and to experts."""
    inputs = _on_device(batch.inputs, hardware)
    target_lengths = batch.lengths if model.config.experts or model.config.is_masked else None
    real = {} if target_lengths is None else {"target_lengths": _on_device(target_lengths, hardware)}
    if batch.source is None or batch.source_lengths is None:
        return states(inputs, **real)
    source, lengths = _on_device(batch.source, hardware), _on_device(batch.source_lengths, hardware)
    return states(source, inputs, lengths=lengths, **real)


def _on_device(ids: NDArray[np.int64], hardware: Hardware) -> Tensor:
    return torch.from_numpy(ids).to(hardware.torch_device, non_blocking=True)


def _twice(batch: Batch) -> Batch:
    return batch.each(lambda ids: np.concatenate((ids, ids)))

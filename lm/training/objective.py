"""The training objective: cross-entropy, with label smoothing, R-Drop, source loss and expert load balancing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lm.config.data import IGNORE_INDEX
from lm.config.training import TrainingConfig
from lm.data.batch import Batch
from lm.hardware import Hardware
from lm.model.layers import linear
from lm.model.loss import OutputLayer, chunked_loss, cross_entropy, linear_cross_entropy
from lm.model.transformer import EncoderDecoder, Model, soft_cap
from lm.model.variants.experts import capture_routing, load_balancing_loss

HiddenStatesFn = Callable[..., Tensor]
"""Maps token IDs to final hidden states, like `hidden` of a model and `EncoderDecoder.encode_decode`."""


_ARGMAX_CHUNK = 1024
"""Positions per chunk of argmax predictions."""


def hidden_states_fn(model: Model) -> HiddenStatesFn:
    """Return the function that computes a model's hidden states before the output layer."""
    return model.encode_decode if isinstance(model, EncoderDecoder) else model.hidden


class Objective(nn.Module):
    """A model with its training loss, as configured."""

    model: Model

    def __init__(self, model: Model, hardware: Hardware, config: TrainingConfig, *, states: HiddenStatesFn) -> None:
        """Create the objective of a model.

        Args:
            config: label smoothing, R-Drop and weights of auxiliary losses.
            states: `hidden_states_fn(model)`, or that compiled.
        """
        super().__init__()
        self.model, self._hardware, self._config, self._states = model, hardware, config, states

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the summed loss of a batch, and the sums to report.

        Returns:
            The loss with a gradient; and (2,) sums in nats without: the loss without expert load balancing, and the
                surprisal of the targets without label smoothing, R-Drop or source loss.
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
        if routes and config.expert_balance:  # a mean, so it is weighted by the number of targets
            weight = config.expert_balance * count_learned_tokens(batch, source_loss=config.source_loss)
            loss = nats + weight * sum(map(load_balancing_loss, routes))
        return loss, torch.stack((nats.detach(), nll))


def summed_loss(model: Model, batch: Batch, hardware: Hardware, *, source_loss: float = 0.0) -> Tensor:
    """Return the summed surprisal of the targets of a batch, in nats; see `summed_loss_and_nll`."""
    return summed_loss_and_nll(model, batch, hardware, source_loss=source_loss)[0]


def summed_loss_and_nll(
    model: Model,
    batch: Batch,
    hardware: Hardware,
    *,
    states: HiddenStatesFn | None = None,
    label_smoothing: float = 0.0,
    r_drop: float = 0.0,
    source_loss: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return the summed loss of the targets of a batch and their surprisal, in nats; IGNORE_INDEX targets don't count.

    Args:
        model: an `EncoderDecoder` for a batch with a source.
        states: `hidden_states_fn(model)`, or that compiled.
        r_drop: weight of the divergence of two passes of the batch; the surprisal is then their mean.
        source_loss: weight of the surprisal of `source_targets`.

    Returns:
        The loss, and the surprisal of the targets without a gradient.
    """
    states = states or hidden_states_fn(model)
    learned = [batch.targets] if batch.source_targets is None else [batch.targets, batch.source_targets]
    target_positions = [_target_positions(ids, hardware) for ids in learned]
    targets = [_to_device(np.concatenate((ids, ids)) if r_drop else ids, hardware) for ids in learned]
    if r_drop:
        batch = batch.map_arrays(lambda ids: np.concatenate((ids, ids)))
    with hardware.autocast():
        hidden = _hidden_states(model, states, batch, hardware)
        (total, nll), *source_sums = (
            _loss_and_surprisal(model, hidden, ids, positions, label_smoothing=label_smoothing, r_drop=r_drop)
            for ids, positions in zip(targets, target_positions, strict=True)
        )
        return total + source_loss * source_sums[0][0] if source_sums else total, nll


def count_learned_tokens(batch: Batch, *, source_loss: float) -> float:
    """Return the denominator of the mean loss: number of targets, and of source targets by their weight."""
    if batch.source_targets is None:
        return batch.n_targets
    return batch.n_targets + source_loss * int((batch.source_targets != IGNORE_INDEX).sum())


def summed_loss_and_correct(model: Model, batch: Batch, hardware: Hardware) -> tuple[Tensor, Tensor]:
    """Return `summed_loss` of a batch, and the number of targets that are the most probable tokens."""
    positions, targets = _target_positions(batch.targets, hardware), _to_device(batch.targets, hardware)
    with hardware.autocast():
        hidden = _hidden_states(model, hidden_states_fn(model), batch, hardware)
        nats, _ = _loss_and_surprisal(model, hidden, targets, positions)
        correct = torch.zeros_like(nats)
        states, learned = hidden.flatten(0, -2)[positions], targets.flatten()[positions]
        for some, their_targets in zip(states.split(_ARGMAX_CHUNK), learned.split(_ARGMAX_CHUNK), strict=True):
            correct += (model.logits(some).argmax(-1) == their_targets).sum()
    return nats, correct


def _loss_and_surprisal(
    model: Model,
    hidden: Tensor,
    targets: Tensor,
    positions: Tensor | slice,
    *,
    label_smoothing: float = 0.0,
    r_drop: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return the summed loss and surprisal of final hidden states; with R-Drop, of two passes."""
    if r_drop:
        return _r_drop_loss(model, hidden, targets, positions, label_smoothing=label_smoothing, r_drop=r_drop)
    weight, bias = model.output_layer
    return linear_cross_entropy(
        hidden,
        weight,
        targets,
        bias=bias,
        target_positions=positions,
        label_smoothing=label_smoothing,
        softcap=model.config.softcap,
    )


def _r_drop_loss(
    model: Model,
    hidden: Tensor,
    targets: Tensor,
    positions: Tensor | slice,
    *,
    label_smoothing: float,
    r_drop: float,
) -> tuple[Tensor, Tensor]:
    """Return the mean loss of two passes plus `r_drop` times their divergence, and the mean surprisal.

    Args:
        hidden: (2 · rows, length, d_model), the second pass after the first.
        targets: (2 · rows, length), the same twice.
        positions: indices of the targets of one pass that count, in (rows · length).
    """

    def loss(hidden: Tensor, output: OutputLayer, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = soft_cap(linear(hidden, *output), model.config.softcap)
        smoothed = surprisal = cross_entropy(logits, targets.expand(2, -1), label_smoothing=label_smoothing) / 2
        if label_smoothing:
            surprisal = cross_entropy(logits.detach(), targets.expand(2, -1)) / 2
        return smoothed + r_drop / 4 * symmetric_kl(*logits), surprisal

    once = targets[: len(targets) // 2].flatten()
    return chunked_loss(
        loss, hidden.unflatten(0, (2, -1)).flatten(1, 2), model.output_layer, once, target_positions=positions
    )


def symmetric_kl(first: Tensor, second: Tensor) -> Tensor:
    """Return the symmetric Kullback-Leibler divergence of two predictions, summed over positions.

    Args:
        first: (positions, vocabulary) logits.
        second: like `first`.

    Source: Liang et al. 2021 (R-Drop), equation 2; their loss is twice ours.
    """
    first_logprobs, second_logprobs = (logits.float().log_softmax(-1) for logits in (first, second))
    return ((first_logprobs.exp() - second_logprobs.exp()) * (first_logprobs - second_logprobs)).sum()


def _hidden_states(model: Model, states: HiddenStatesFn, batch: Batch, hardware: Hardware) -> Tensor:
    """Compute the hidden states of a batch. Bidirectional models and experts are given the real lengths."""
    inputs = _to_device(batch.inputs, hardware)
    target_lengths = batch.lengths if model.config.experts or model.config.is_masked else None
    real = {} if target_lengths is None else {"target_lengths": _to_device(target_lengths, hardware)}
    if batch.source is None or batch.source_lengths is None:
        return states(inputs, **real)
    source, lengths = _to_device(batch.source, hardware), _to_device(batch.source_lengths, hardware)
    return states(source, inputs, lengths=lengths, **real)


def _target_positions(ids: NDArray[np.int64], hardware: Hardware) -> Tensor | slice:
    """Return the flat indices of the IDs that are targets, or a slice of all, which a GPU need not be sent."""
    counted = np.flatnonzero(ids != IGNORE_INDEX)
    return slice(None) if len(counted) == ids.size else _to_device(counted, hardware)


def _to_device(ids: NDArray[np.int64], hardware: Hardware) -> Tensor:
    return torch.from_numpy(ids).to(hardware.torch_device, non_blocking=True)

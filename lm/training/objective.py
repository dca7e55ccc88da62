"""The training objective: cross-entropy, with label smoothing, R-Drop, distillation and load balancing; its hardware.

Dtypes and thread count are selected by timing; a GPU that supports bfloat16 trains in it without timing: a short probe
would measure kernel launches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lm.config.run_config import IGNORE_INDEX, RunConfig, TrainingConfig
from lm.data import Batch
from lm.evaluation.scoring import average_surprisals, compute_surprisals
from lm.hardware import (
    MAX_THREADS,
    Hardware,
    native_dtypes,
    select_hardware,
    single_threaded,
    time_interleaved,
    time_work,
)
from lm.model import EncoderDecoder, Model, average_predictions, build_model, init_empty_weights, soft_cap
from lm.model.cost import training_flops
from lm.model.experts import capture_routing, load_balancing_loss
from lm.model.layers import linear
from lm.model.lora import build_model_with_lora
from lm.model.loss import OutputLayer, chunked_loss, cross_entropy, linear_cross_entropy
from lm.training.optimizers import hidden_matrices

HiddenStatesFn = Callable[..., Tensor]
"""Maps token IDs to final hidden states, like `hidden` of a model and `EncoderDecoder.encode_decode`."""


def hidden_states_fn(model: Model) -> HiddenStatesFn:
    """Return the function that computes a model's hidden states before the output layer."""
    return model.encode_decode if isinstance(model, EncoderDecoder) else model.hidden


class Objective(nn.Module):
    """A model with its training loss, as configured."""

    model: Model

    def __init__(
        self,
        model: Model,
        hardware: Hardware,
        config: TrainingConfig,
        *,
        states: Sequence[HiddenStatesFn],
        teachers: Sequence[Model] = (),
    ) -> None:
        """Create the objective of a model.

        Args:
            config: label smoothing, R-Drop, distillation and weights of auxiliary losses.
            states: of each member `hidden_states_fn(member)`, or that compiled.
            teachers: of distillation, in eval mode, with the vocabulary of the model.
        """
        super().__init__()
        self.model, self._hardware, self._config, self._states = model, hardware, config, states
        self._teachers = tuple(teachers)  # no submodules: they are not trained

    def forward(self, batch: Batch, member: int = 0) -> tuple[Tensor, Tensor]:
        """Return the summed loss of a batch for one member of an ensemble, and the sums to report.

        Returns:
            The loss with a gradient; and (2,) sums in nats without: the loss without expert load balancing, and the
                surprisal of the targets without label smoothing, R-Drop or distillation.
        """
        model, hardware, config = self.model.members[member], self._hardware, self._config
        targets, positions = _targets(batch, hardware)
        passes = batch.map_arrays(lambda ids: np.concatenate((ids, ids))) if config.r_drop else batch
        with capture_routing(model) as routes, hardware.autocast():
            hidden = _hidden_states(model, passes, hardware, states=self._states[member])
            if config.r_drop or self._teachers:
                hidden = hidden.unflatten(0, (config.forward_passes, -1)).flatten(1, 2)  # (passes, positions, d_model)
                with torch.no_grad():
                    taught = [_hidden_states(teacher, batch, hardware).flatten(0, -2) for teacher in self._teachers]
                where = torch.arange(targets.numel(), device=targets.device)[positions]
                loss_of_chunk = partial(self._chunk_loss, targets=targets.flatten(), taught=taught)
                nats, nll = chunked_loss(loss_of_chunk, hidden, model.output_layer, where)
            else:
                nats, nll = _cross_entropy(model, hidden, targets, positions, label_smoothing=config.label_smoothing)
        loss = nats
        if routes and config.expert_balance:  # a mean, so it is weighted by the number of targets
            loss = nats + config.expert_balance * batch.n_targets * sum(map(load_balancing_loss, routes))
        return loss, torch.stack((nats.detach(), nll))

    def _chunk_loss(
        self, hidden: Tensor, output: OutputLayer, where: Tensor, *, targets: Tensor, taught: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the summed loss at some positions, and the surprisal; of two passes the means.

        Args:
            hidden: (passes, n, d_model).
            output: weights and bias of the output layer.
            where: (n,) positions.
            targets: (positions,) of all.
            taught: (positions, width) final hidden states of each teacher.
        """
        config = self._config
        logits = soft_cap(linear(hidden, *output), self.model.config.softcap)
        passes, expected = len(logits), targets[where].expand(len(logits), -1)
        loss = surprisal = cross_entropy(logits, expected, label_smoothing=config.label_smoothing) / passes
        if config.label_smoothing:
            surprisal = cross_entropy(logits.detach(), expected) / passes
        if taught:
            with torch.no_grad():
                predicted = [
                    teacher.logits(states[where]) for teacher, states in zip(self._teachers, taught, strict=True)
                ]
            distilled = distillation_loss(logits, predicted, temperature=config.distillation_temperature) / passes
            loss = torch.lerp(loss, distilled, config.distillation_weight)
        if config.r_drop:
            loss = loss + config.r_drop / 4 * symmetric_kl(*logits)
        return loss, surprisal


def summed_loss(model: Model, batch: Batch, hardware: Hardware) -> Tensor:
    """Return the summed surprisal of the targets of a batch, in nats; IGNORE_INDEX targets don't count."""
    targets, positions = _targets(batch, hardware)
    with hardware.autocast():
        if len(model.members) == 1:
            return _cross_entropy(model, _hidden_states(model, batch, hardware), targets, positions)[0]
        expected = targets.flatten()[positions]
        states = (_hidden_states(member, batch, hardware).flatten(0, -2)[positions] for member in model.members)
        nats = [compute_surprisals(*pair, expected) for pair in zip(model.members, states, strict=True)]
        return torch.tensor(average_surprisals(nats).sum())


def summed_loss_and_correct(model: Model, batch: Batch, hardware: Hardware) -> tuple[Tensor, Tensor]:
    """Return `summed_loss` of a batch, and the number of targets that are the most probable tokens."""
    targets, positions = _targets(batch, hardware)
    expected = targets.flatten()[positions]
    with hardware.autocast():
        states = (_hidden_states(member, batch, hardware).flatten(0, -2)[positions] for member in model.members)
        logits = average_predictions(
            [member.logits(hidden) for member, hidden in zip(model.members, states, strict=True)]
        )
    return cross_entropy(logits, expected), (logits.argmax(-1) == expected).sum()


def _cross_entropy(
    model: Model, hidden: Tensor, targets: Tensor, positions: Tensor | slice, *, label_smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return the summed loss and surprisal of final hidden states."""
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


def distillation_loss(logits: Tensor, teachers: Sequence[Tensor], *, temperature: float = 1.0) -> Tensor:
    """Return the cross-entropy with the mean of the teachers' distributions, summed over passes and positions.

    It is multiplied by the square of the temperature, so that its gradient keeps its size.

    Args:
        logits: (passes, positions, vocabulary).
        teachers: (positions, vocabulary) logits of each.

    Source: Hinton et al. 2015, section 2.
    """
    size = min(each.shape[-1] for each in (logits, *teachers))  # some vocabularies are padded
    mean = torch.stack([(each[..., :size].float() / temperature).softmax(-1) for each in teachers]).mean(0)
    logits = logits[..., :size]
    return -(temperature**2) * (mean * (logits.float() / temperature).log_softmax(-1)).sum()


def symmetric_kl(first: Tensor, second: Tensor) -> Tensor:
    """Return the symmetric Kullback-Leibler divergence of two predictions, summed over positions.

    Args:
        first: (positions, vocabulary) logits.
        second: like `first`.

    Source: Liang et al. 2021 (R-Drop), equation 2; their loss is twice ours.
    """
    first_logprobs, second_logprobs = (logits.float().log_softmax(-1) for logits in (first, second))
    return ((first_logprobs.exp() - second_logprobs.exp()) * (first_logprobs - second_logprobs)).sum()


def _hidden_states(model: Model, batch: Batch, hardware: Hardware, *, states: HiddenStatesFn | None = None) -> Tensor:
    """Compute the final hidden states of a batch. Bidirectional models and experts are given the real lengths."""
    states, inputs = states or hidden_states_fn(model), _to_device(batch.inputs, hardware)
    target_lengths = batch.lengths if model.config.experts or model.config.is_masked else None
    real = {} if target_lengths is None else {"target_lengths": _to_device(target_lengths, hardware)}
    if batch.source is None or batch.source_lengths is None:
        return states(inputs, **real)
    source, lengths = _to_device(batch.source, hardware), _to_device(batch.source_lengths, hardware)
    return states(source, inputs, lengths=lengths, **real)


def _targets(batch: Batch, hardware: Hardware) -> tuple[Tensor, Tensor | slice]:
    """Return the targets of a batch, and the flat indices of those that count.

    The indices are a slice if all count: then a GPU need not be sent any.
    """
    counted = np.flatnonzero(batch.targets != IGNORE_INDEX)
    positions = slice(None) if len(counted) == batch.targets.size else _to_device(counted, hardware)
    return _to_device(batch.targets, hardware), positions


def _to_device(ids: NDArray[np.int64], hardware: Hardware) -> Tensor:
    # MPS may read a copy of strided rows after it is freed
    return torch.from_numpy(ids).to(hardware.torch_device, non_blocking=hardware.device == "cuda")


Choice = TypeVar("Choice")

_SECONDS, _PASS_SECONDS = 0.2, 0.02  # for each choice, and for a pass
_MIN_GAIN = 0.9  # of the time of the first choice, so that nearly equal choices don't change from run to run
_FIRST_FLOPS, _MIN_TOKENS = 3e9, 64  # of the first size; with less, call overhead would decide
_MAX_VOCAB_SIZE = 4096


def select_training_hardware(config: RunConfig, batch: Batch) -> Hardware:
    """Select device, dtype and number of threads of a run, and set the number of threads.

    A dtype in the config is used for all matmuls, including Muon's. Otherwise a GPU uses bfloat16 if it supports it;
    elsewhere forward and backward passes of a one-layer model are timed in each native dtype. If the config gives no
    number of threads, they are timed with all threads, a half, a quarter …

    Args:
        batch: a micro-batch; as much of it is timed as time allows.
    """
    hardware = select_hardware(config.hardware)
    dtypes: Sequence[str] = [hardware.dtype]
    if config.hardware.dtype == "auto":
        native = native_dtypes(hardware.device)
        dtypes = native[-1:] if hardware.device == "cuda" else native
    choices = [dataclasses.replace(hardware, dtype=dtype) for dtype in dtypes]
    if hardware.device == "cuda":
        return choices[0]
    model = dataclasses.replace(
        config.model, n_layers=1, n_encoder_layers=min(1, config.model.n_encoder_layers), source_vocab_size=None,
        vocab_size=min(config.model.vocab_size, _MAX_VOCAB_SIZE), expert_every=1, members=1,
    )  # fmt: skip
    built, batch = build_model(model).to(hardware.torch_device), batch.with_vocab_size(model.vocab_size)
    tokens = int(_FIRST_FLOPS / training_flops(model, rows=1, length=1, source_length=1))

    def time_pass(choice: Hardware) -> float:
        torch.set_num_threads(choice.threads)
        length = min(tokens, batch.inputs.shape[1])
        part = batch.truncate(rows=max(1, tokens // length), length=length)
        return time_work(lambda: summed_loss(built, part, choice).backward(), choice)

    threads = [hardware.threads]
    if config.hardware.threads is None and hardware.device == "cpu":
        threads = [MAX_THREADS >> power for power in range(MAX_THREADS.bit_length())]
    tokens = min(max(_MIN_TOKENS, tokens), batch.inputs.size)
    if len(dtypes) * len(threads) > 1:  # some is timed, of a size that takes a few hundredths of a second
        time_pass(hardware)
        tokens = min(max(1, int(_PASS_SECONDS / time_pass(hardware))) * tokens, batch.inputs.size)
    with single_threaded():
        chosen = select_fastest([dataclasses.replace(choice, threads=1) for choice in choices], time_pass)
    hardware = select_fastest([dataclasses.replace(chosen, threads=number) for number in threads], time_pass)
    torch.set_num_threads(hardware.threads)
    return hardware


def select_fastest(choices: Sequence[Choice], measure: Callable[[Choice], float]) -> Choice:
    """Return the first choice, unless another one is clearly faster; a single one is not measured."""
    if len(choices) == 1:
        return choices[0]
    times = time_interleaved([partial(measure, choice) for choice in choices], seconds=_SECONDS)
    ratios = np.median(times / times[:, :1], axis=0)  # per round, because other load slows a whole round
    best = int(ratios.argmin())
    return choices[best] if ratios[best] < _MIN_GAIN else choices[0]


def training_state_bytes(config: RunConfig) -> int:
    """Return the bytes of float32 weights, gradients, moving average and optimizer state; without activations.

    Weights frozen by adapters have only the first. AdamW keeps two moments, Muon one.
    """
    with init_empty_weights():
        model = build_model_with_lora(config.model, config.lora)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    matrices = hidden_matrices(model) if config.training.optimizer == "muon" else {}
    n_weights, n_trained, n_matrices = (
        sum(map(Tensor.numel, some)) for some in (model.parameters(), trained, matrices)
    )
    return 4 * (n_weights + (3 + bool(config.training.ema)) * n_trained - n_matrices)

"""Selection of dtypes and thread count for training, by timing them on this machine; memory of weights and optimizer.

A GPU that supports bfloat16 trains in it without timing: a short probe would measure kernel launches.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from lm.config.run_config import RunConfig
from lm.data.batch import Batch
from lm.hardware import MAX_THREADS, Hardware, native_dtypes, select_inference_hardware, single_threaded, time_work
from lm.model.cost import training_flops
from lm.model.lora import build_model_with_lora
from lm.model.transformer import build_model, init_empty_weights
from lm.optim.optimizers import hidden_matrices
from lm.training.objective import summed_loss

Choice = TypeVar("Choice")

_SECONDS, _MAX_SECONDS, _PASS_SECONDS = 0.3, 0.6, 0.02  # for each of the two choices, and for a pass
_MIN_ROUNDS = 3
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
    hardware = select_inference_hardware(config.hardware)
    dtypes: Sequence[str] = [hardware.dtype]
    if config.hardware.dtype == "auto":
        native = native_dtypes(hardware.device)
        dtypes = native[-1:] if hardware.device == "cuda" else native
    choices = [dataclasses.replace(hardware, dtype=dtype) for dtype in dtypes]
    if hardware.device == "cuda":
        return choices[0]
    model = dataclasses.replace(
        config.model, n_layers=1, n_encoder_layers=min(1, config.model.n_encoder_layers), source_vocab_size=None,
        vocab_size=min(config.model.vocab_size, _MAX_VOCAB_SIZE), expert_every=1,
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
    for choice in choices:
        measure(choice)  # warm-up
    start, rounds = time.perf_counter(), list[list[float]]()
    while time.perf_counter() - start < (_SECONDS if len(rounds) >= _MIN_ROUNDS else _MAX_SECONDS):
        rounds.append([measure(choice) for choice in choices])
    # ratios per round, because other load slows a whole round
    ratios = [statistics.median(taken[index] / taken[0] for taken in rounds) for index in range(len(choices))]
    best = ratios.index(min(ratios))
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

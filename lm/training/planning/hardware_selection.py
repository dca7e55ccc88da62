"""Selection of dtypes and thread count for training, by timing them on this machine.

A GPU that supports bfloat16 trains in it without timing: a short probe would measure kernel launches.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.data.batch import Batch
from lm.hardware import MAX_THREADS, Hardware, native_dtypes, select_inference_hardware, single_threaded, time_work
from lm.model.cost import training_flops
from lm.model.transformer import build_model
from lm.training.objective import summed_loss

Choice = TypeVar("Choice")

_SECONDS, _MAX_SECONDS = 0.3, 0.6  # for each of the three choices; all take about a second
_MIN_ROUNDS, _MAX_ROUNDS = 3, 15
_MIN_GAIN = 0.9  # of the time of the first choice, so that nearly equal choices don't change from run to run
_FIRST_FLOPS, _MIN_TOKENS = 3e9, 64  # of the first size; with less, call overhead would decide
_MAX_MATRICES = 16
_MAX_VOCAB_SIZE = 4096


def select_training_hardware(config: RunConfig, batch: Batch) -> Hardware:
    """Select device, dtypes and number of threads of a run, and set the number of threads.

    A dtype in the config is used for all matmuls, including Muon's. Otherwise a GPU uses bfloat16 if it supports it;
    elsewhere forward and backward passes of a one-layer model are timed in each native dtype, then matmuls of the shape
    that Muon uses most. If the config gives no number of threads, the passes are timed with 1, 2, 4 … threads.

    Args:
        batch: a micro-batch; as much of it is timed as time allows.
    """
    hardware = select_inference_hardware(config.hardware)
    probe = _Probe(config.model, batch, hardware) if hardware.device != "cuda" else None
    if config.hardware.dtype != "auto" or probe is None:
        dtype = hardware.dtype if config.hardware.dtype != "auto" else native_dtypes(hardware.device)[-1]
        muon_dtype = dtype if config.training.optimizer == "muon" else "float32"
        hardware = dataclasses.replace(hardware, dtype=dtype, optimizer_dtype=muon_dtype)
    else:
        hardware = _select_dtypes(config, hardware, probe)
    if config.hardware.threads is None and probe is not None and hardware.device == "cpu":
        choices = [dataclasses.replace(hardware, threads=number) for number in _thread_counts()]
        hardware = select_fastest(choices, probe.seconds_with_threads, probe.sizes)
    torch.set_num_threads(hardware.threads)
    return hardware


def _select_dtypes(config: RunConfig, hardware: Hardware, probe: _Probe) -> Hardware:
    """Time the model, then Muon's matmuls, in each native dtype."""
    types, hardware = native_dtypes(hardware.device), dataclasses.replace(hardware, optimizer_dtype="float32")
    with single_threaded():
        hardware = select_fastest(
            [dataclasses.replace(hardware, dtype=dtype) for dtype in types], probe.seconds, probe.sizes
        )
        if config.training.optimizer == "muon":
            choices = [dataclasses.replace(hardware, optimizer_dtype=dtype) for dtype in types]
            hardware = select_fastest(choices, _matmul_timer(config.model.d_model), _powers_of_two(1, _MAX_MATRICES))
    return hardware


def select_fastest(choices: Sequence[Choice], measure: Callable[[Choice, int], float], sizes: Sequence[int]) -> Choice:
    """Return the first choice, unless another one is clearly faster on the largest work there is time for.

    Args:
        choices: at least one; a single one is not measured.
        measure: times a choice on work of a size.
        sizes: of the work, each about twice the previous.
    """
    if len(choices) == 1:
        return choices[0]
    start = time.perf_counter()
    for choice in choices:
        measure(choice, sizes[0])  # warm-up
    for size in sizes:
        rounds = [[measure(choice, size) for choice in choices]]
        if _SECONDS - (time.perf_counter() - start) < _MIN_ROUNDS * 2 * sum(rounds[0]):
            break
    while (taken := time.perf_counter() - start) < _SECONDS or (len(rounds) < _MIN_ROUNDS and taken < _MAX_SECONDS):
        if len(rounds) == _MAX_ROUNDS:
            break
        rounds.append([measure(choice, size) for choice in choices])
    # ratios per round, because other load slows a whole round
    ratios = [statistics.median(taken[index] / taken[0] for taken in rounds) for index in range(len(choices))]
    best = ratios.index(min(ratios))
    return choices[best] if ratios[best] < _MIN_GAIN else choices[0]


class _Probe:
    """A one-layer model, and a batch of which parts are timed."""

    def __init__(self, config: ModelConfig, batch: Batch, hardware: Hardware) -> None:
        one_layer = dataclasses.replace(
            config,
            n_layers=1,
            n_encoder_layers=min(1, config.n_encoder_layers),
            vocab_size=min(config.vocab_size, _MAX_VOCAB_SIZE),
            source_vocab_size=None,
            expert_every=1,
        )
        self._model = build_model(one_layer).to(hardware.torch_device)
        self._batch = batch.with_vocab_size(one_layer.vocab_size)
        tokens = batch.inputs.size
        first = int(_FIRST_FLOPS / training_flops(one_layer, rows=1, length=1, source_length=1))
        self.sizes = _powers_of_two(min(max(_MIN_TOKENS, first), tokens), tokens)

    def seconds(self, hardware: Hardware, tokens: int) -> float:
        """Time a forward and backward pass of `tokens` tokens of the batch."""
        length = min(tokens, self._batch.inputs.shape[1])
        part = self._batch.truncate(rows=max(1, tokens // length), length=length)
        return time_work(lambda: summed_loss(self._model, part, hardware).backward(), hardware)

    def seconds_with_threads(self, hardware: Hardware, tokens: int) -> float:
        """The same, with `hardware.threads` threads."""
        torch.set_num_threads(hardware.threads)
        return self.seconds(hardware, tokens)


def _matmul_timer(n: int) -> Callable[[Hardware, int], float]:
    """Return a function that times batched matmuls of (n, n) matrices in the optimizer's dtype."""

    def seconds(hardware: Hardware, matrices: int) -> float:
        dtype = getattr(torch, hardware.optimizer_dtype)
        stack = torch.ones(matrices, n, n, dtype=dtype, device=hardware.torch_device)
        return time_work(lambda: stack @ stack, hardware)

    return seconds


def _thread_counts() -> list[int]:
    """Return all threads, and the powers of two below."""
    return [MAX_THREADS, *(number for number in reversed(_powers_of_two(1, MAX_THREADS)) if number < MAX_THREADS)]


def _powers_of_two(first: int, last: int) -> list[int]:
    """Return `first`, 2 `first`, 4 `first` … up to `last`."""
    return [first << power for power in range((last // first).bit_length())]

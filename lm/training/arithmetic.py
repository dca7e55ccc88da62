"""The arithmetic that a run trains in: the dtypes of its matmuls and the number of threads that are fastest here.

On a CPU whatever there is to choose from is timed. A GPU that has bfloat16 trains in it: there a short probe would time
kernel launches, not arithmetic.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from lm.config.model import ModelConfig
from lm.config.run import RunConfig
from lm.data.batch import Batch
from lm.hardware import MOST_THREADS, Hardware, inference_hardware, one_thread, quick_types, timed
from lm.model.cost import training_flops
from lm.model.transformer import build_model
from lm.training.objective import summed_loss

Choice = TypeVar("Choice")

_SECONDS, _AT_MOST = 0.3, 0.6  # for each of the three choices: all of them take about a second of a run
_FEWEST_TRIES, _TRIES = 3, 15
_WORTH_IT = 0.9  # of the time that the first choice takes: what is nearly equal should not change from run to run
_FIRST_OPERATIONS, _FEWEST_TOKENS = 3e9, 64  # of a first try: with less, what comes with each call would decide
_MOST_MATRICES = 16
_LARGEST_VOCABULARY = 4096


def training_hardware(config: RunConfig, batch: Batch) -> Hardware:
    """Choose the device, the dtypes and the number of threads that a run trains with. Sets the number of threads.

    A dtype that the config names is that of all matmuls, Muon's among them. Otherwise a GPU takes bfloat16 if it has
    it, and elsewhere the fastest is measured: a model of one layer goes forward and back in each dtype that the device
    multiplies natively, then matrices of the shape that Muon has most of are multiplied in each. Without a number of
    threads in the config, the model goes forward and back with one, two, four … of them.

    Args:
        config: of the run.
        batch: what goes through the model at once; as much of it is timed as there is time for.
    """
    hardware = inference_hardware(config.hardware)
    probe = _Probe(config.model, batch, hardware) if hardware.device != "cuda" else None
    if config.hardware.dtype != "auto" or probe is None:
        dtype = hardware.dtype if config.hardware.dtype != "auto" else quick_types(hardware.device)[-1]
        of_muon = dtype if config.training.optimizer == "muon" else "float32"
        hardware = dataclasses.replace(hardware, dtype=dtype, optimizer_dtype=of_muon)
    else:
        hardware = _fastest_dtypes(config, hardware, probe)
    if config.hardware.threads is None and probe is not None and hardware.device == "cpu":
        choices = [dataclasses.replace(hardware, threads=number) for number in _numbers_of_threads()]
        hardware = fastest(choices, probe.seconds_with_threads, probe.sizes)
    torch.set_num_threads(hardware.threads)
    return hardware


def _fastest_dtypes(config: RunConfig, hardware: Hardware, probe: _Probe) -> Hardware:
    """Time the model, and then Muon's matmuls, in each dtype that the device multiplies natively."""
    types, hardware = quick_types(hardware.device), dataclasses.replace(hardware, optimizer_dtype="float32")
    with one_thread():
        hardware = fastest([dataclasses.replace(hardware, dtype=dtype) for dtype in types], probe.seconds, probe.sizes)
        if config.training.optimizer == "muon":
            choices = [dataclasses.replace(hardware, optimizer_dtype=dtype) for dtype in types]
            hardware = fastest(choices, _square_products(config.model.d_model), _doubled(1, _MOST_MATRICES))
    return hardware


def fastest(choices: Sequence[Choice], seconds: Callable[[Choice, int], float], sizes: Sequence[int]) -> Choice:
    """The first choice, unless another one takes clearly less time for as much work as there is time to try.

    Args:
        choices: at least one; one alone is not measured.
        seconds: times a choice at work of some size.
        sizes: of the work, each about twice the one before; the largest that a fraction of a second allows decides.
    """
    if len(choices) == 1:
        return choices[0]
    began = time.perf_counter()
    for choice in choices:
        seconds(choice, sizes[0])  # the first time doesn't count
    for size in sizes:
        rounds = [[seconds(choice, size) for choice in choices]]
        if _SECONDS - (time.perf_counter() - began) < _FEWEST_TRIES * 2 * sum(rounds[0]):
            break
    while (taken := time.perf_counter() - began) < _SECONDS or (len(rounds) < _FEWEST_TRIES and taken < _AT_MOST):
        if len(rounds) == _TRIES:
            break
        rounds.append([seconds(choice, size) for choice in choices])
    # each round apart: whatever else the machine did slowed all of it
    shares = [statistics.median(taken[place] / taken[0] for taken in rounds) for place in range(len(choices))]
    best = shares.index(min(shares))
    return choices[best] if shares[best] < _WORTH_IT else choices[0]


class _Probe:
    """One layer of a model, and a batch of which parts go through it to be timed."""

    def __init__(self, config: ModelConfig, batch: Batch, hardware: Hardware) -> None:
        one_layer = dataclasses.replace(
            config,
            n_layers=1,
            n_encoder_layers=min(1, config.n_encoder_layers),
            vocab_size=min(config.vocab_size, _LARGEST_VOCABULARY),
            source_vocab_size=None,
            expert_every=1,
        )
        self._model = build_model(one_layer).to(hardware.torch_device)
        self._batch = batch.within(one_layer.vocab_size)
        tokens = batch.inputs.size
        first = int(_FIRST_OPERATIONS / training_flops(one_layer, rows=1, length=1, source_length=1))
        self.sizes = _doubled(min(max(_FEWEST_TOKENS, first), tokens), tokens)

    def seconds(self, hardware: Hardware, tokens: int) -> float:
        """Seconds to go forward and back with so many tokens of the batch."""
        length = min(tokens, self._batch.inputs.shape[1])
        part = self._batch.part(rows=max(1, tokens // length), length=length)
        return timed(lambda: summed_loss(self._model, part, hardware).backward(), hardware)

    def seconds_with_threads(self, hardware: Hardware, tokens: int) -> float:
        """Seconds for the same, with as many threads as the hardware says."""
        torch.set_num_threads(hardware.threads)
        return self.seconds(hardware, tokens)


def _square_products(n: int) -> Callable[[Hardware, int], float]:
    """Seconds to multiply so many pairs of matrices of n rows and columns, in the type of the optimizer."""

    def seconds(hardware: Hardware, matrices: int) -> float:
        dtype = getattr(torch, hardware.optimizer_dtype)
        stack = torch.ones(matrices, n, n, dtype=dtype, device=hardware.torch_device)
        return timed(lambda: stack @ stack, hardware)

    return seconds


def _numbers_of_threads() -> list[int]:
    """As many as there are, and the powers of two below."""
    return [MOST_THREADS, *(number for number in reversed(_doubled(1, MOST_THREADS)) if number < MOST_THREADS)]


def _doubled(first: int, last: int) -> list[int]:
    """From the first number to the last, each twice the one before."""
    return [first << power for power in range((last // first).bit_length())]

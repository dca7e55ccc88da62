"""Compiles the decode step and saves it, once per machine."""

from __future__ import annotations

import statistics
import time

import torch

from lm.config.model import ModelConfig
from lm.engine.engine import LAST_LOGITS, NO_OUTPUT
from lm.engine.pytorch import TorchEngine
from lm.errors import InputError
from lm.hardware import cpu_seconds, single_threaded
from lm.kernels import code_cache
from lm.kernels.code_cache import MachineSpeed
from lm.kernels.torch_ops import top_k
from lm.model.layers import quantise
from lm.model.transformer import DecoderOnly

_TIMED, _STEPS = ModelConfig(vocab_size=8, context_length=64, d_model=64, n_layers=8, n_heads=2), 8
"""A model whose decode steps take PyTorch as long as its calls, and the number of steps between two readings."""
_TIMED_MATRIX, _TRIALS = 4096, 5
_SMALL = ModelConfig(vocab_size=8, context_length=4, d_model=4, n_layers=1, n_heads=1)
"""The compiled code doesn't depend on the model's shape."""


def compile_decode_step(*, waits: bool = True) -> float:
    """Compile the decode step for all weight dtypes, or load it; return the seconds that took.

    Args:
        waits: wait for another process that compiles.

    Raises:
        BlockingIOError: another process compiles, unless `waits`.
        InputError: numba is missing or disabled, or the cache is not writable.
    """
    if code_cache.is_disabled():
        raise InputError("NUMBA_DISABLE_JIT keeps numba from compiling: unset it")
    if not code_cache.is_installed():
        raise InputError("compiling needs numba, which is not installed: pip install numba")
    start = time.perf_counter()
    with code_cache.compile_lock(waits=waits):
        _compile_all()
    return time.perf_counter() - start


def load_decode_step(*, quantised: bool = False) -> DecoderOnly:
    """Compile or load the decode step for a dtype; return a model that it was called for."""
    code_cache.initialise()
    from lm.engine.compiled.engine import CompiledEngine

    model = DecoderOnly(_SMALL).eval().requires_grad_(False)
    if quantised:
        quantise(model)
    engine, token = TorchEngine(model), torch.zeros(1, 1, dtype=torch.long)
    with torch.inference_mode():
        cache = engine.new_cache("sequence")
        cache.add(1)
        engine.forward(token, [0], [0], cache, NO_OUTPUT)
        CompiledEngine(model).forward(token, [0], [1], cache, LAST_LOGITS)
    return model


def measure_machine_speed() -> MachineSpeed:
    """Measure the speed of this machine, in CPU time with one thread, as other processes may be running."""
    with single_threaded(), torch.inference_mode():
        model, token = DecoderOnly(_TIMED).eval(), torch.zeros(1, 1, dtype=torch.long)
        engine = TorchEngine(model)
        cache = engine.new_cache("sequence")
        cache.add(1)
        engine.forward(token, [0], [0], cache, NO_OUTPUT)

        def step() -> None:
            for _ in range(_STEPS):
                engine.forward(token, [0], [cache.lengths[0]], cache, LAST_LOGITS)

        matrix, vector = torch.ones(_TIMED_MATRIX, _TIMED_MATRIX), torch.ones(_TIMED_MATRIX)
        layer = statistics.median(cpu_seconds(step) for _ in range(_TRIALS)) / _STEPS / _TIMED.n_layers
        reading = statistics.median(cpu_seconds(lambda: matrix @ vector) for _ in range(_TRIALS))
    return MachineSpeed(layer, matrix.nbytes / reading)


def _compile_all() -> None:
    for dtype in code_cache.DTYPES:
        model, token = load_decode_step(quantised=dtype == "int8"), torch.zeros(1, 1, dtype=torch.long)
        with torch.inference_mode():
            logits = model.logits(model.hidden(token))[0]  # with int8, its matmuls alone
            top_k(logits, logits, 1)
        if dtype == "float32" and code_cache.is_saving():  # what most models need can be used
            code_cache.write_speed(measure_machine_speed())
            code_cache.write_file_list(("float32",))

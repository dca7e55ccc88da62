"""Compiles the decode step and saves it, once per machine and version."""

from __future__ import annotations

import fcntl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import torch

from lm import files
from lm.config.model import ModelConfig
from lm.engine.engine import LAST_LOGITS, NO_OUTPUT, TorchEngine
from lm.engine.kv_cache import KVCache
from lm.errors import InputError
from lm.kernels import code_cache
from lm.kernels.torch_ops import TopK, initialise_numba
from lm.model.layers import quantise
from lm.model.transformer import DecoderOnly
from lm.processes import python_command
from lm.signals import default_signal_handling

_SMALL = ModelConfig(vocab_size=8, context_length=4, d_model=4, n_layers=1, n_heads=1)
"""The compiled code doesn't depend on the model's shape."""
_CHILD = """
import os
from lm.engine.compiled.build import compile_decode_step
from lm.processes import end_after
end_after(lambda: os.read(0, 1))  # its standard input closes when the parent ends
os.nice(10)  # a tenth of a core that training keeps busy
compile_decode_step()
"""


def compile_decode_step() -> None:
    """Compile everything, or wait for another process that does; signals end this process meanwhile.

    Raises:
        InputError: numba is missing or disabled, or the cache is not writable.
    """
    if code_cache.is_complete():
        return
    if not code_cache.is_installed():
        raise InputError("compiling needs numba: pip install numba, and unset NUMBA_DISABLE_JIT")
    folder = code_cache.code_folder()
    # Python's signal handlers would not run in LLVM
    with files.with_path_in_errors(folder), default_signal_handling():
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            code_cache.is_complete.cache_clear()
            if not code_cache.is_complete():
                _call_everything()
                (folder / "complete").touch()
    code_cache.is_complete.cache_clear()


def _call_everything() -> None:
    """Call each compiled function with all types of arguments that it is called with."""
    initialise_numba()
    from lm.engine.compiled.engine import CompiledEngine
    from lm.kernels import matmul, reductions

    token, one = torch.zeros(1, 1, dtype=torch.long), np.ones((1, 1), np.float32)
    reductions.top_k(one, one, *(tensor.numpy() for tensor in TopK.empty(1, 1)))
    matmul.matmul(one.astype(np.int8), one[0], one[0], one, one.copy(), False, 1)
    for is_quantised in (False, True):
        model = DecoderOnly(_SMALL).eval().requires_grad_(False)
        if is_quantised:
            quantise(model)
        with torch.inference_mode():
            cache = KVCache(model)
            cache.add(1)
            TorchEngine(model).forward(token, [0], (), cache, NO_OUTPUT, lengths=[1])
            CompiledEngine(model).forward(token, [0], [1], cache, LAST_LOGITS)


@contextmanager
def compiling_in_child() -> Iterator[subprocess.Popen[bytes]]:
    """Compile in a child process of low priority, which ends with the context or this process.

    What it has compiled until then is saved.
    """
    no_output = subprocess.DEVNULL
    with subprocess.Popen(python_command(_CHILD), stdin=subprocess.PIPE, stdout=no_output, stderr=no_output) as child:
        try:
            yield child
        finally:
            child.kill()
            code_cache.is_complete.cache_clear()

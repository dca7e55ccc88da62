"""Engines compute logits for given tokens, rows, positions and KV cache, and hold no session state.

Here are the PyTorch engine, which runs every model and every forward pass, and the selection of engines; `compiled` is
faster for some models. The dtype in which a run generates or translates is float32, or the one recorded in the
checkpoint after a measurement: the same on every machine, with every engine. Nothing here imports decoding.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from lm import files
from lm.checkpoint import LoadedModel, load_model
from lm.config.model import ModelConfig
from lm.config.run_config import HardwareConfig
from lm.engine.kv_cache import DecoderModel, KVCache, ModelCache
from lm.errors import InputError
from lm.hardware import select_device, select_hardware
from lm.kernels import code_cache
from lm.kernels.torch_ops import TopK, initialise_numba
from lm.model import DecoderOnly, count_parameters
from lm.model.layers import quantise
from lm.processes import default_signal_handling
from lm.run_folder import find_first, weights_key

if TYPE_CHECKING:
    from lm.engine.compiled import CompiledEngine


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """The requested outputs of a forward pass.

    Attributes:
        logits_to_keep: logits after this many last tokens of each row.
        top_k: if the engine supports it, this many best next tokens of each row, instead of logits.
    """

    logits_to_keep: int = 1
    top_k: int = 0


NO_OUTPUT, LAST_LOGITS = OutputSpec(logits_to_keep=0), OutputSpec()


@dataclass(frozen=True, slots=True)
class Output:
    """The outputs of a forward pass.

    Attributes:
        logits: (rows, logits_to_keep, vocabulary) float32, of an ensemble log-probabilities; None if not requested, or
            if the top k were.
        top_k: the best next tokens of each row, if requested and supported.
    """

    logits: Tensor | None = None
    top_k: TopK | None = None

    @property
    def last_logits(self) -> Tensor:
        """(rows, vocabulary) logits after the last token of each row."""
        assert self.logits is not None, "no logits were requested"
        return self.logits[:, -1]


class TorchEngine:
    """Runs a model in PyTorch."""

    def __init__(self, model: DecoderModel) -> None:
        self.model = model

    def forward(
        self,
        tokens: Tensor,
        rows: Sequence[int],
        positions: Sequence[int],
        cache: KVCache,
        output_spec: OutputSpec,
        *,
        lengths: Sequence[int] | None = None,
        past: ModelCache | None = None,
    ) -> Output:
        """Compute a decode step, or, given `lengths`, a prefill, and write keys and values into the cache.

        Args:
            tokens: (rows, n) IDs.
            rows: of the cache; those of a step are not empty, those of a prefill are.
            positions: of the first token of each row; of a step.
            lengths: real tokens of each row, where padding follows them.
            past: keys and values of a prefix that the rows start with.
        """
        hidden = cache.step(tokens, rows, positions) if lengths is None else cache.prefill(tokens, rows, lengths, past)
        n, kept = tokens.shape[1], output_spec.logits_to_keep
        if not kept:
            return Output()
        if lengths is None or min(lengths) == n:
            hidden = hidden[:, -kept:]
        else:
            last = torch.tensor(lengths, device=hidden.device)[:, None] + torch.arange(-kept, 0, device=hidden.device)
            hidden = hidden[torch.arange(len(hidden), device=hidden.device)[:, None], last]
        return Output(self.model.logits(hidden).float())


_COMPILED_ANY = frozenset({
    "vocab_size", "source_vocab_size", "context_length", "d_model", "n_layers", "n_encoder_layers", "n_heads",
    "n_kv_heads", "d_ff", "attention_window", "attention_block", "global_blocks", "random_blocks", "attention_rank",
    "attention_stride", "max_distance", "max_tree_distance", "syntax", "rope_base", "d_head",
    "rotary_fraction", "rope_factor", "rope_context", "rope_slow", "rope_fast", "rope_temperature",
    "parallel_residual", "norm_eps", "qk_norm", "bias", "dropout", "attention_dropout", "tie_embeddings",
    "scale_embeddings", "init_std", "zero_init", "softcap", "value_residual", "key_offset", "output_bias",
    "members", "rope_scaling", "attention_bias", "norm", "norm_position", "activation",
})  # fmt: skip
"""Fields of which compiled code supports all values; `syntax` only affects the encoder, which PyTorch runs."""
_COMPILED_SOME: dict[str, tuple[object, ...]] = {
    "architecture": ("transformer",),
    "attention": ("full", "window"),
    "objective": ("causal",),
    "experts_per_token": (1,),
    "expert_every": (1,),
    "positions": ("learned", "sinusoidal", "sinusoidal-half", "rotary", "alibi", "t5", "none"),
}
"""Fields of which it supports some; every other field must have its default, and that be off."""
_OFF = (False, None, "none", ())
_MAX_TOKENS = 64
"""The most tokens per step for which compiled code is faster; in an encoder-decoder any number."""
_LAYER_SECONDS, _BYTES_PER_SECOND, _LOADING_SECONDS = 2e-4, 1e10, 0.4
"""On a Zen 3: of a layer's calls in a step of PyTorch, of reading weights, and of loading compiled code."""

_compiled: WeakKeyDictionary[DecoderModel, CompiledEngine] = WeakKeyDictionary()


def compiled_engine_supports(config: ModelConfig) -> bool:
    """Whether compiled code knows every setting of a model."""
    return all(
        field.name in _COMPILED_ANY
        or getattr(config, field.name)
        in _COMPILED_SOME.get(field.name, (field.default,) if field.default in _OFF else ())
        for field in fields(config)
    )


@dataclass(frozen=True)
class EnginePlan:
    """The engines of one model.

    Attributes:
        pytorch: runs what the other doesn't.
        compiled: computes steps of few tokens, if it supports the model here.
        use_cache: whether keys and values are cached; else everything is recomputed each time.
        is_compiled: whether compiled code is loaded, which finds the top k of any logits on a CPU.
        ensemble: the plans of the other models of an ensemble.
    """

    model: DecoderModel
    pytorch: TorchEngine
    compiled: CompiledEngine | None
    use_cache: bool
    is_compiled: bool
    ensemble: tuple[EnginePlan, ...] = ()

    def step_engine(self, tokens: int) -> TorchEngine | CompiledEngine:
        """Return the engine for a decode step with a number of tokens, of all rows together."""
        is_fast = self.model.config.is_encoder_decoder or tokens <= _MAX_TOKENS
        return self.compiled if self.compiled is not None and is_fast else self.pytorch

    @property
    def dtype(self) -> str:
        """The dtype of the model's matrices, as a value of the setting `dtype`."""
        weights, _ = self.model.output_layer
        return str(weights.dtype).removeprefix("torch.")

    def __str__(self) -> str:
        return f"{self.dtype}, {'PyTorch' if self.compiled is None else 'compiled engine'}"


def plan_engines(model: DecoderModel, *, tokens: int | None = None, use_cache: bool = True) -> EnginePlan:
    """Choose the engines of a session, for each model of an ensemble.

    Args:
        model: in eval mode; its weights must not move, so the compiled engine runs none that are being trained.
        tokens: tokens to generate per row; None if unknown. Compiled code is only loaded for work that takes PyTorch
            longer than loading it.
        use_cache: else everything is recomputed each time, which is the reference.
    """
    config, (weights, _), first = model.config, model.output_layer, next(model.parameters())
    use_cache = use_cache and config.attention != "compressed"
    is_loaded = first.device.type == "cpu" and code_cache.is_complete()
    if is_loaded and tokens is not None and "numba" not in sys.modules and weights.dtype is not torch.int8:
        # int8 always uses compiled matmuls
        read = torch.float32.itemsize * count_parameters(model) / _BYTES_PER_SECOND
        is_loaded = tokens * (config.n_layers * _LAYER_SECONDS + read) > _LOADING_SECONDS
    runs_compiled = (
        use_cache and is_loaded and compiled_engine_supports(config)
        and weights.dtype in {torch.float32, torch.int8} and first.dtype is torch.float32
        and not any(parameter.requires_grad for parameter in model.parameters())
    )  # fmt: skip
    return EnginePlan(
        model, TorchEngine(model), get_compiled_engine(model) if runs_compiled else None, use_cache, is_loaded,
        tuple(plan_engines(member, tokens=tokens, use_cache=use_cache) for member in model.members[1:]),
    )  # fmt: skip


def needs_compiling(config: ModelConfig, device: str) -> bool:
    """Whether `lm compile` would make a model faster."""
    can_compile = code_cache.is_installed() and not code_cache.is_complete()
    return can_compile and device == "cpu" and compiled_engine_supports(config)


def get_compiled_engine(model: DecoderModel) -> CompiledEngine:
    """Return the engine of a model, whose code is loaded the first time."""
    address = next(model.parameters()).data_ptr()  # moving or converting a model moves its weights
    engine = _compiled.get(model)
    if engine is None or engine.address != address:
        initialise_numba()
        from lm.engine.compiled import CompiledEngine

        engine = _compiled[model] = CompiledEngine(model, address)
    return engine


_FILE = "decoding.json"


def load_for_decoding(path: Path, config: HardwareConfig) -> LoadedModel:
    """Load the model of a run or checkpoint to generate or translate; errors as of `load_model`."""
    hardware = select_hardware(config, auto=decoding_dtype(path, config))
    return load_model(path, hardware)


def decoding_dtype(path: Path, config: HardwareConfig) -> str:
    """Return the dtype in which a run or checkpoint decodes: the configured one, else the recorded one, or float32."""
    if config.dtype != "auto":
        return config.dtype
    return read_recorded_dtypes(find_first(path)).get(select_device(config), "float32")


def read_recorded_dtypes(checkpoint: Path) -> dict[str, str]:
    """Return the recorded dtypes of a checkpoint by device type; empty if none is, or they are of other weights."""
    try:
        recorded = files.read_json(checkpoint / _FILE)
        return dict(recorded["dtypes"]) if recorded["weights"] == weights_key(checkpoint) else {}
    except (InputError, OSError, ValueError, TypeError, KeyError):  # missing or damaged
        return {}


def save_fastest_dtype(checkpoint: Path, device: str, dtype: str) -> None:
    """Record the fastest dtype in a checkpoint; InputError if it is read-only."""
    dtypes = {**read_recorded_dtypes(checkpoint), device: dtype}
    with files.with_path_in_errors(checkpoint):
        files.write_json(checkpoint / _FILE, {"weights": weights_key(checkpoint), "dtypes": dtypes})


_SMALL = ModelConfig(vocab_size=8, context_length=4, d_model=4, n_layers=1, n_heads=1)
"""The compiled code doesn't depend on the model's shape."""
_CHILD = """
import os
from lm.engine import compile_decode_step
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
    from lm.engine.compiled import CompiledEngine
    from lm.kernels import matmul, vector_ops

    token, one = torch.zeros(1, 1, dtype=torch.long), np.ones((1, 1), np.float32)
    vector_ops.top_k(one, one, *(tensor.numpy() for tensor in TopK.empty(1, 1)))
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
    no_output, code = subprocess.DEVNULL, f"import sys; sys.path[:] = {sys.path}\n{_CHILD}"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=no_output, stderr=no_output
    ) as child:
        try:
            yield child
        finally:
            child.kill()
            code_cache.is_complete.cache_clear()

"""Whether a model's next positions are computed by the compiled step: where that is possible, ready and worth it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch

from lm import files
from lm.config.model import ModelConfig
from lm.model.block import count_parameters
from lm.model.transformer import DecoderOnly

if TYPE_CHECKING:
    from lm.native.decoder import NativeDecoder

_LOADING = 0.4
"""Seconds that numba takes to be loaded: that is done when torch has spent as many on the steps of a model."""
_OVERHEAD, _READ = 1.5e-3, 1e10
"""About what torch takes for a step, so that texts don't depend on a clock: seconds, and bytes of weights a second."""
_MOST_TOKENS = 64
"""Tokens at a time up to which the compiled step was faster than torch's products."""
_TYPES = (torch.float32, torch.int8)

_steps_left: WeakKeyDictionary[DecoderOnly, int] = WeakKeyDictionary()
_decoders: WeakKeyDictionary[DecoderOnly, NativeDecoder] = WeakKeyDictionary()


def can_step(config: ModelConfig) -> bool:
    """Whether the compiled step knows all that a model has."""
    return (
        not (config.n_encoder_layers or config.is_masked or config.is_recurrent or config.experts)
        and config.attention in {"full", "window"}
        and config.positions != "relative"
        and not config.output_transform
        and not config.embedding_norm
    )


def native_decoder(model: DecoderOnly, *, tokens: int) -> NativeDecoder | None:
    """The compiled step of a model that was loaded to be used; None where torch is to read the next tokens."""
    if tokens > _MOST_TOKENS:
        return None
    found = _decoders.get(model)
    if found is not None and found.has_weights_of(model):
        return found
    if not _is_possible(model):
        return None
    if model not in _steps_left:
        _steps_left[model] = _plain_steps(model)
    _steps_left[model] -= 1
    is_early = _steps_left[model] >= 0 and "numba" not in sys.modules
    if is_early or not is_compiled() or not _is_of_this_processor():
        return None
    _decoders[model] = load(model)
    return _decoders[model]


def load(model: DecoderOnly) -> NativeDecoder:
    """The compiled step of a model, which is compiled now unless it is in the cache."""
    import numba

    numba.config.CACHE_DIR = str(_folder())
    from lm.native.decoder import NativeDecoder, begin_threads

    begin_threads()
    return NativeDecoder(model)


def is_installed() -> bool:
    """Whether there is a compiler: the package numba, which is an extra."""
    return _version() is not None


@cache
def is_compiled() -> bool:
    """Whether the step was compiled by this numba, from these files."""
    return is_installed() and _mark().is_file()


def note_compiled() -> None:
    """Remember that it was, and for which processor."""
    _mark().parent.mkdir(parents=True, exist_ok=True)
    _mark().write_text(_processor(), encoding="utf-8")
    is_compiled.cache_clear()
    _is_of_this_processor.cache_clear()


def _plain_steps(model: DecoderOnly) -> int:
    """The steps that torch takes before the compiled step is loaded."""
    return int(_LOADING / (_OVERHEAD + torch.float32.itemsize * count_parameters(model) / _READ))


def _is_possible(model: DecoderOnly) -> bool:
    """Whether the weights are on the CPU, of a type that is known, and not being trained, which could move them."""
    weights, _ = model.output_layer
    first = next(model.parameters())
    return (
        weights.dtype in _TYPES
        and first.device.type == "cpu"
        and first.dtype is torch.float32
        and not first.requires_grad
        and can_step(model.config)
    )


@cache
def _folder() -> Path:
    """Where machine code is kept that this numba makes of these files.

    numba's cache goes by the time of the file that a function stands in, not of those whose functions it calls.
    """
    sources = sorted(Path(__file__).parent.glob("*.py"))
    stamps = [(str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in sources]
    described = repr((_version(), stamps))
    return files.cache_root() / "native" / hashlib.sha256(described.encode()).hexdigest()[:16]


def _mark() -> Path:
    """The file that says that it is whole, and for which processor it was made."""
    return _folder() / "processor"


@cache
def _is_of_this_processor() -> bool:
    """Whether the step was compiled for the processor of this machine; the folder may have come from another."""
    return _mark().read_text(encoding="utf-8") == _processor()


def _processor() -> str:
    """Its name and what it can do, as the compiler sees them."""
    from lm.native.tiles import processor

    return processor()


def _version() -> str | None:
    try:
        return importlib.metadata.version("numba")
    except importlib.metadata.PackageNotFoundError:
        return None

"""The dtype in which a run generates or translates by default: the fastest one measured.

The result of `lm compile RUN` is kept in the user's cache, by the run's weights and the processor: another machine or
checkpoint has none until it is measured.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from lm import files
from lm.checkpoint import LoadedModel, load_model
from lm.config.hardware import HardwareConfig
from lm.errors import InputError
from lm.hardware import describe_processor, inference_dtypes, select_device, select_inference_hardware
from lm.kernels import code_cache
from lm.run_folder import find_checkpoint, weights_key

_DEFAULT_DTYPE = "float32"


def load_for_decoding(path: Path, config: HardwareConfig) -> LoadedModel:
    """Load the model of a run or checkpoint to generate or translate; errors as of `load_model`."""
    return load_with_dtype(find_checkpoint(path), config, decoding_dtype(path, config))


def decoding_dtype(path: Path, config: HardwareConfig) -> str:
    """Return the dtype in which a run or checkpoint decodes: the configured one, else the fastest measured."""
    if config.dtype != "auto":
        return config.dtype
    return read_fastest_dtype(find_checkpoint(path), select_device(config))


def load_with_dtype(checkpoint: Path, config: HardwareConfig, dtype: str) -> LoadedModel:
    """Load the model of a checkpoint in a given dtype."""
    return load_model(checkpoint, select_inference_hardware(config, auto=dtype))


def read_fastest_dtype(checkpoint: Path, device: str) -> str:
    """Return the fastest measured dtype; float32 if none was, or if it needs a compiled step that is missing."""
    try:
        dtype = _cache_file(checkpoint, device).read_text(encoding="utf-8").strip()
    except (InputError, OSError, ValueError):  # missing or damaged
        return _DEFAULT_DTYPE
    is_usable = dtype in inference_dtypes(device) and (dtype != "int8" or code_cache.is_ready("int8"))
    return dtype if is_usable else _DEFAULT_DTYPE


def save_fastest_dtype(checkpoint: Path, device: str, dtype: str) -> None:
    """Save the fastest dtype."""
    path = _cache_file(checkpoint, device)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace_text(path, dtype + "\n")


def _cache_file(checkpoint: Path, device: str) -> Path:
    key = f"{weights_key(checkpoint)} {describe_processor(device)}"
    return files.cache_root() / "types" / hashlib.sha256(key.encode()).hexdigest()[:32]

"""The dtype in which a run generates or translates by default: float32, or the one recorded after a measurement.

It is recorded in the checkpoint, for its weights: the same dtype is used on every machine, with every engine.
"""

from __future__ import annotations

from pathlib import Path

from lm import files
from lm.checkpoint import LoadedModel, load_model
from lm.config.run_config import HardwareConfig
from lm.errors import InputError
from lm.hardware import select_device, select_inference_hardware
from lm.run_folder import find_checkpoint, weights_key

_FILE = "decoding.json"


def load_for_decoding(path: Path, config: HardwareConfig) -> LoadedModel:
    """Load the model of a run or checkpoint to generate or translate; errors as of `load_model`."""
    hardware = select_inference_hardware(config, auto=decoding_dtype(path, config))
    return load_model(find_checkpoint(path), hardware)


def decoding_dtype(path: Path, config: HardwareConfig) -> str:
    """Return the dtype in which a run or checkpoint decodes: the configured one, else the recorded one, or float32."""
    if config.dtype != "auto":
        return config.dtype
    return read_recorded_dtypes(find_checkpoint(path)).get(select_device(config), "float32")


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

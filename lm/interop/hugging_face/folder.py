"""The folder of a model as transformers lays it out.

config.json                      the model
model.safetensors                its weights, or model.safetensors.index.json, which says in which of several files
                                 each tensor is
tokenizer.json                   the tokenizer, with tokenizer_config.json
generation_config.json           sampling settings
README.md                        the model card
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lm import files
from lm.errors import InputError
from lm.safetensors_header import TensorEntry, read_tensor_header
from lm.safetensors_io import FLOAT_DTYPES
from lm.tokenizer.tokenizer import FILE_NAME

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
GENERATION, TOKENIZER_CONFIG = "generation_config.json", "tokenizer_config.json"
INDEX = "model.safetensors.index.json"

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_MAX_JSON_BYTES = 100_000_000
"""Bytes; the largest published tokenizers have 35 million."""


def read_config(folder: Path) -> Any:
    """Return the parsed config.json of a folder; InputError without it."""
    if folder.is_file():
        what = "a file, and no model is imported from one, such as GGUF"
        raise InputError(f"{folder}: {what}; name the folder of a model, with {CONFIG} in it")
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; name the folder of a model, with {CONFIG} in it")
    if not (folder / CONFIG).is_file():
        raise InputError(f"{folder}: has no {CONFIG}; name the folder of a model in transformers' layout")
    return read_json(folder / CONFIG)


def find_tokenizer_file(folder: Path) -> Path:
    """Return the tokenizer file of a folder; InputError without one."""
    if not (folder / FILE_NAME).is_file():
        raise InputError(
            f"{folder}: has no {FILE_NAME}; make one: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    return _check_size(folder / FILE_NAME)


def find_weights(folder: Path) -> dict[str, TensorEntry]:
    """Return the tensors of a folder by name, in one file or several with an index; none is read.

    Raises:
        InputError: there are none, they are pickles, or the index is invalid.
    """
    if (folder / WEIGHTS).is_file():
        return read_tensor_header(folder / WEIGHTS)
    if (folder / INDEX).is_file():
        return _read_index(folder)
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLES)
    if pickles:
        raise InputError(
            f"{folder / pickles[0]}: weights in a pickle, which could run any code, are not read; use {WEIGHTS}"
        )
    raise InputError(f"{folder}: has neither {WEIGHTS} nor {INDEX}")


def read_tensor(entry: TensorEntry) -> Tensor:
    """Read a tensor; InputError if it is quantized or the file too short."""
    if entry.dtype not in FLOAT_DTYPES:
        raise InputError(
            f"{entry.path}: has tensors of the dtype {entry.dtype}; only {', '.join(FLOAT_DTYPES)} can be read"
        )
    numbers = torch.empty(entry.shape, dtype=FLOAT_DTYPES[entry.dtype])
    with entry.path.open("rb") as file:
        file.seek(entry.start)
        if file.readinto(numbers.flatten().view(torch.uint8).numpy()) != entry.size:  # type: ignore[arg-type]
            raise InputError(f"{entry.path}: is truncated; download it again")
    return numbers


def _read_index(folder: Path) -> dict[str, TensorEntry]:
    path = folder / INDEX
    index = read_json(path)
    weight_map = index.get("weight_map") if isinstance(index, Mapping) else None
    if not isinstance(weight_map, Mapping) or not all(isinstance(name, str) for name in weight_map.values()):
        raise InputError(f"{path}: does not say which tensors are in which file (weight_map)")
    headers = {}
    for name in sorted(set(weight_map.values())):
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise InputError(f"{path}: {name!r} is not a .safetensors file in this folder")
        if not (folder / name).is_file():
            raise InputError(f"{folder / name}: missing; download it again")
        headers[name] = read_tensor_header(folder / name)
    missing = next((tensor for tensor, name in weight_map.items() if tensor not in headers[name]), None)
    if missing is not None:
        raise InputError(f"{folder / weight_map[missing]}: has no tensor {missing!r}, which {INDEX} says it has")
    stored = {tensor: entry for header in headers.values() for tensor, entry in header.items()}
    return {**stored, **{tensor: headers[name][tensor] for tensor, name in weight_map.items()}}


def read_json(path: Path) -> Any:
    """Parse a JSON file; InputError if invalid or too large."""
    return files.read_json(_check_size(path))


def _check_size(path: Path) -> Path:
    if path.stat().st_size > _MAX_JSON_BYTES:
        raise InputError(f"{path}: has {path.stat().st_size:,} bytes, which no such file needs")
    return path

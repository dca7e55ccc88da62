"""The folder of a model as transformers lays it out.

config.json                      the model
model.safetensors                its weights, or model.safetensors.index.json, which names several files
tokenizer.json                   the tokenizer, with tokenizer_config.json
generation_config.json           sampling settings
README.md                        the model card
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from lm import files
from lm.errors import InputError
from lm.safetensors_io import load_tensors

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
GENERATION, TOKENIZER_CONFIG = "generation_config.json", "tokenizer_config.json"
INDEX = "model.safetensors.index.json"


def read_weights(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a folder, memory-mapped, from one file or those that an index names.

    Raises:
        InputError: there are none, or the index is invalid; pickles are not read.
    """
    names: set[Any] = {WEIGHTS}
    if not (folder / WEIGHTS).is_file() and (folder / INDEX).is_file():
        try:
            names = set(files.read_json(folder / INDEX)["weight_map"].values())
        except (TypeError, KeyError, AttributeError):
            raise InputError(f"{folder / INDEX}: does not say which tensors are in which file (weight_map)") from None
    for name in sorted(map(str, names)):
        if Path(name).name != name or not name.endswith(".safetensors") or not (folder / name).is_file():
            raise InputError(f"{folder}: has no {name}; weights are read from .safetensors files in the folder")
        yield from load_tensors(folder / name).items()

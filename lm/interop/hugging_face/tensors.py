"""Convert tensor names and layouts between our model and a family, without changing a value."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lm.config.model import ModelConfig
from lm.interop.hugging_face.configuration import parse_config, to_json
from lm.interop.hugging_face.families import Family
from lm.model.transformer import build_model, init_empty_weights

_BLOCK = re.compile(r"\.(\d+)\.")


@dataclass(frozen=True)
class Placement:
    """The tensors of a family that hold one of ours: their names, the number of our rows in each, and the layout."""

    names: list[str]
    sizes: list[int]
    layout: str


def locate_tensor(name: str, rows: int, config: ModelConfig, family: Family) -> Placement:
    """Return where a family stores one of our tensors.

    Args:
        name: of ours, such as "decoder.blocks.3.attention.input.weight".
        rows: its first dimension.
    """
    if family.takes_code:
        return Placement([name], [rows], "rows")
    pattern, number = _BLOCK.sub(".#.", name), _BLOCK.search(name)
    layer, _, kind = pattern.rpartition(".")
    if pattern in family.layers:
        names = [family.layers[pattern]]
    else:
        names = [f"{theirs}.{kind}" for theirs in family.layers[layer].split()]
    sizes = [rows // len(names)] * len(names)
    if layer.endswith("attention.input"):
        key_size = config.n_kv_heads * config.d_head
        sizes = {1: [rows], 2: [rows - 2 * key_size, 2 * key_size], 3: [rows - 2 * key_size, key_size, key_size]}[
            len(names)
        ]
    applies = {
        "transposed": number is not None and kind == "weight" and not layer.endswith("norm"),
        "by head": layer.endswith("attention.input"),
        "one row": name == "output_bias",
    }.get(family.layout, False)
    names = [theirs.replace("#", number[1] if number else "") for theirs in names]
    return Placement(names, sizes, family.layout if applies else "rows")


def to_family_tensors(ours: Mapping[str, Tensor], config: ModelConfig, family: Family) -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors of a model with the family's names and layouts; tensors that only the family has are zero."""
    whole = config if family.takes_code else parse_config(to_json(config, family), family, Path())
    dtype = next(iter(ours.values())).dtype
    for name, empty in {**empty_tensors(whole), **ours}.items():
        value = ours[name] if name in ours else torch.zeros_like(empty, dtype=dtype, device="cpu")
        yield from split_tensor(value, locate_tensor(name, len(value), config, family), config)


def empty_tensors(config: ModelConfig) -> dict[str, Tensor]:
    """Return the tensors of a model by name, without values."""
    with init_empty_weights():
        return dict(build_model(config).state_dict())


def split_tensor(value: Tensor, placement: Placement, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a family that hold one of ours."""
    if placement.layout == "by head":
        value = swap_groups(value, 3, config.n_heads)
    for name, part in zip(placement.names, value.split(placement.sizes), strict=True):
        laid_out = part.T if placement.layout == "transposed" else part[None] if placement.layout == "one row" else part
        yield name, laid_out.contiguous()


def from_family_tensors(
    name: str, rows: int, config: ModelConfig, family: Family, *, read: Callable[[str], Tensor]
) -> Tensor:
    """Return one of our tensors; `read` returns one of theirs by name."""
    placement = locate_tensor(name, rows, config, family)
    parts = [read(theirs) for theirs in placement.names]
    value = parts[0] if len(parts) == 1 else torch.cat(parts)
    if placement.layout == "by head":
        value = swap_groups(value, config.n_heads, 3)
    laid_out = value.T if placement.layout == "transposed" else value[0] if placement.layout == "one row" else value
    return laid_out.contiguous()


def swap_groups(value: Tensor, outer: int, inner: int) -> Tensor:
    """Regroup rows: (outer·inner·head, …) -> (inner·outer·head, …)."""
    return value.unflatten(0, (outer, inner, -1)).transpose(0, 1).flatten(0, 2)

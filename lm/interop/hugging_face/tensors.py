"""Convert tensor names and layouts between our model and a family, without changing a value."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lm.config.model import ModelConfig
from lm.interop.hugging_face.family_schema import Family, Layout, Part

_BLOCK_TENSOR = re.compile(r"(encoder|decoder)\.blocks\.(\d+)\.(.+)")
_HEAD, _TYPES, _BIAS = "head", "embedding.types", "output_bias"


@dataclass(frozen=True)
class TensorPlacement:
    """The tensors of a family that hold one of ours.

    Attributes:
        names: of their tensors.
        layout: how our rows are arranged in them.
        sizes: number of our rows in each.
    """

    names: tuple[str, ...]
    layout: Layout
    sizes: tuple[int, ...]


def locate_tensor(name: str, rows: int, config: ModelConfig, family: Family) -> TensorPlacement:
    """Return where a family stores one of our tensors.

    Args:
        name: of ours, such as "decoder.blocks.3.attention.input.weight".
        rows: its first dimension.
    """
    if family.keeps_names:
        return TensorPlacement((name,), "rows", (rows,))
    if name in family.tensors:
        layout: Layout = "one row" if name == _BIAS and config.is_encoder_decoder else "rows"
        return TensorPlacement((family.tensors[name],), layout, (rows,))
    layer, kind = name.rpartition(".")[::2]
    if layer == _HEAD:
        return TensorPlacement((f"{family.head[0]}.{kind}",), "rows", (rows,))
    begin, part = family.prefix, _find_part(layer, family)
    if match := _BLOCK_TENSOR.fullmatch(layer):
        block = family.encoder_block if match[1] == "encoder" else family.block
        begin += block.format(match[2])
    names = tuple(f"{begin}{theirs}.{kind}" for theirs in part.names)
    heads = [count * config.d_head for count in (config.n_heads, config.n_kv_heads, config.n_kv_heads)]
    sizes = {1: [rows], 2: [rows // 2] * 2, 3: heads}[len(names)]
    return TensorPlacement(names, part.layout, tuple(sizes))


def _find_part(layer: str, family: Family) -> Part:
    match = _BLOCK_TENSOR.fullmatch(layer)
    return family.inner[match[3]] if match else Part((family.outer[layer],))


def to_family_tensors(ours: Mapping[str, Tensor], config: ModelConfig, family: Family) -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors of a model with the family's names and layouts; tensors that only the family has are zero."""
    for name, value in [*ours.items(), *_zero_tensors(ours, config, family)]:
        placement = locate_tensor(name, len(value), config, family)
        rows = swap_groups(value, 3, config.n_heads) if placement.layout == "by head" else value
        parts = rows.split(placement.sizes)
        for their_name, part in zip(placement.names, parts, strict=True):
            yield their_name, _apply_layout(part, placement.layout)


def _apply_layout(part: Tensor, layout: Layout) -> Tensor:
    if layout == "one row":
        return part[None]
    return (part.T if layout == "transposed" and part.ndim == 2 else part).contiguous()


def from_family_tensors(
    name: str, shape: torch.Size, config: ModelConfig, family: Family, *, read: Callable[[str], Tensor]
) -> Tensor:
    """Return one of our tensors.

    Args:
        read: reads a tensor of the Hugging Face model by name.
    """
    placement = locate_tensor(name, shape[0], config, family)
    parts = [read(their_name) for their_name in placement.names]
    value = parts[0] if len(parts) == 1 else torch.cat(parts)
    if placement.layout == "transposed" and value.ndim == 2:
        value = value.T.contiguous()
    if placement.layout == "one row":
        value = value.flatten()
    return swap_groups(value, config.n_heads, 3).contiguous() if placement.layout == "by head" else value


def family_shape(shape: torch.Size, placement: TensorPlacement, number: int) -> tuple[int, ...]:
    ours = (placement.sizes[number], *shape[1:])
    if placement.layout == "one row":
        return (1, *ours)
    return ours[::-1] if placement.layout == "transposed" else ours


def swap_groups(value: Tensor, outer: int, inner: int) -> Tensor:
    """Regroup rows: (outer·inner·head, …) -> (inner·outer·head, …)."""
    return value.unflatten(0, (outer, inner, -1)).transpose(0, 1).flatten(0, 2)


def _zero_tensors(ours: Mapping[str, Tensor], config: ModelConfig, family: Family) -> Iterator[tuple[str, Tensor]]:
    """Yield the biases and token types that the family has beyond ours, as zeros."""
    if _BIAS in family.tensors and _BIAS not in ours:
        yield _BIAS, ours["embedding.tokens.weight"].new_zeros(config.vocab_size)
    if _TYPES in family.tensors and _TYPES not in ours:
        yield _TYPES, ours["embedding.tokens.weight"].new_zeros(1, config.d_model)
    for name, value in ours.items():
        layer = name.removesuffix(".weight")
        if layer != name and f"{layer}.bias" not in ours and _has_bias(layer, config, family):
            yield f"{layer}.bias", value.new_zeros(len(value))


def _has_bias(layer: str, config: ModelConfig, family: Family) -> bool:
    if family.keeps_names or layer in {_HEAD, "embedding.tokens", "embedding.positions"}:
        return False
    if layer.endswith(("attention.input", "attention.output")):
        setting = next((setting for setting in family.settings if setting.model_field == "attention_bias"), None)
        return family.has_biases if setting is None else setting.to_json_value(config.attention_bias)
    return family.has_biases

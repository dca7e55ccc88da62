"""Low-rank adapters in PEFT's format.

adapter_config.json              rank, scale, and which layers have adapters
adapter_model.safetensors        matrices A and B of each of these layers

If a family stores several of our projections in one layer, its adapter has their A matrices stacked, and zeros in B
where a projection does not use the A of another.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lm import checkpoint, files, run_folder
from lm.checkpoint import load_tensors, save_tensors
from lm.config.inference import ExportConfig
from lm.config.model import ModelConfig
from lm.config.run_config import LAYER_KINDS, DistributionConfig, LoraConfig
from lm.errors import InputError, UsageError
from lm.interop.conversion import Placement, check_neutral, locate_tensor, swap_groups
from lm.interop.families import Neutral, find_family
from lm.model import init_empty_weights
from lm.model.lora import LoraLinear, build_model_with_lora, lora_layers

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
Adapter = tuple[Tensor, Tensor]
"""A and B, a multiple of whose product B A is added to a weight."""

_NEUTRAL: Neutral = {
    "peft_type": ("LORA",), "bias": ("none",), "use_dora": (False,), "lora_bias": (False,), "use_qalora": (False,),
    "modules_to_save": (None, []), "layer_replication": (None,), "target_parameters": (None, []),
    "trainable_token_indices": (None,), "alora_invocation_tokens": (None,), "use_bdlora": (None,),
    "arrow_config": (None,), "kasa_config": (None,), "monteclora_config": (None,),
    "init_lora_weights": (True, False, None, "gaussian", "orthogonal", "eva"),
}  # fmt: skip
"""Keys of adapter_config.json with the only values that we support."""


def export_with_report(run: Path, out: Path, _config: ExportConfig) -> Mapping[str, str]:
    """Export the adapters of a run's best checkpoint, or of a checkpoint, for their exported base."""
    source = run_folder.find_checkpoint(run)
    run_folder.verify_checkpoint(source, to_train=False)
    config = run_folder.load_config(source)
    lora, model = config.lora, config.model
    if not lora or model.labels:
        raise UsageError(f"{run}: has no adapters, or a head beside them; export the whole model (--to huggingface)")
    family = find_family(model, checkpoint.load_tokenizers(source)[0])
    saved, theirs = load_tensors(source / run_folder.MODEL), dict[str, Adapter]()
    for name, layer in _layers(model, lora).items():
        placement = locate_tensor(f"{name}.weight", layer.out_features, model, family)
        parts = list(zip(*_split(saved[f"{name}.lora_a"], saved[f"{name}.lora_b"], layer), strict=True))
        if len(placement.names) < len(parts):
            stacked = torch.block_diag(*(b for _, b in parts))
            regrouped = swap_groups(stacked, 3, model.n_heads) if placement.layout == "by head" else stacked
            parts = [(saved[f"{name}.lora_a"], regrouped)]
        theirs |= dict(zip(placement.names, parts, strict=True))
    ranks = {re.sub(r"^.*?\.\d+\.|\.weight$", "", name): len(a) for name, (a, _) in theirs.items()}
    settings = {
        "peft_type": "LORA", "task_type": None if model.is_masked or model.translates else "CAUSAL_LM",
        "r": lora.rank, "lora_alpha": lora.scale * lora.rank,
        "lora_dropout": lora.dropout, "target_modules": sorted(ranks), "rank_pattern": ranks,
        "alpha_pattern": {name: lora.scale * rank for name, rank in ranks.items()},
        "fan_in_fan_out": family.layout == "transposed",
    }  # fmt: skip
    with files.atomic_new(out) as folder:
        folder.mkdir()
        files.write_json(folder / CONFIG, settings)
        named = {
            _tensor_name(name, kind): matrix.contiguous()
            for name, adapter in theirs.items()
            for kind, matrix in zip("AB", adapter, strict=True)
        }
        save_tensors(named, folder / WEIGHTS, metadata={"format": "pt"})
    return {"lora": f"for a {family.architecture}, as which its base is exported"}


def _layers(model: ModelConfig, lora: LoraConfig) -> dict[str, LoraLinear]:
    with init_empty_weights():
        return lora_layers(build_model_with_lora(model, lora))


def _split(a: Tensor, b: Tensor, layer: LoraLinear) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return A and B of each projection of a layer."""
    return a.chunk(len(layer.projected)), b.split(layer.projected)


def _tensor_name(name: str, kind: str) -> str:
    return f"base_model.model.{name.removesuffix('.weight')}.lora_{kind}.weight"


def is_peft_folder(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def import_adapters(folder: Path, base: Path, out: Path) -> Path:
    """Write a run with the adapters of a folder as its only checkpoint; it can be used, not resumed.

    Args:
        folder: as saved by PEFT, with .safetensors.
        base: the run of the base model, whose best checkpoint is used, or a checkpoint.
        out: the folder of the new run; InputError if it holds a run.

    Returns:
        The new checkpoint's folder.

    Raises:
        InputError: the folder is damaged, or its adapters don't fit this model or are not supported.
        UsageError: the base has adapters itself, or transformers has no such model.
    """
    run_folder.refuse_existing(out)
    source = run_folder.find_checkpoint(base)
    run_folder.verify_checkpoint(source, to_train=False)
    run_folder.refuse_adapters(source)
    config, (tokenizer, source_tokenizer) = run_folder.load_config(source), checkpoint.load_tokenizers(source)
    model, family = config.model, find_family(config.model, tokenizer)
    settings = files.read_json(folder / CONFIG)
    check_neutral(settings, _NEUTRAL, folder / CONFIG)
    weights, adapters = load_tensors(folder / WEIGHTS), dict[str, list[Adapter]]()
    try:
        dropout, common = float(settings.get("lora_dropout", 0.0)), _scale(settings, None, int(settings.get("r", 8)))
        for name, layer in _layers(model, LoraConfig(rank=1)).items():
            placement = locate_tensor(f"{name}.weight", layer.out_features, model, family)
            parts = _take_parts(weights, placement, layer, model, settings)
            adapters |= {name: parts} if any(len(a) for a, _ in parts) else {}
    except (TypeError, ValueError, AttributeError, ZeroDivisionError, RuntimeError, re.error) as error:
        raise InputError(f"{folder}: its adapters do not fit {CONFIG} or the model of {base} ({error})") from None
    if weights or not adapters:
        raise InputError(f"{folder / WEIGHTS}: fits no layers of the base: {min(weights, default='no adapters')}")
    rank = max(len(a) for parts in adapters.values() for a, _ in parts)
    kinds = [kind for kind in LAYER_KINDS if adapters.keys() & _layers(model, LoraConfig(rank=1, on=kind)).keys()]
    lora = LoraConfig(rank=rank, on=",".join(kinds), alpha=common * rank, dropout=dropout)
    tensors: dict[str, Tensor] = {}
    for name, layer in _layers(model, lora).items():  # adapters of lower rank and missing ones are padded with zeros
        lora_a, lora_b = torch.zeros(layer.lora_a.shape), torch.zeros(layer.lora_b.shape)
        for (a, b), rows, columns in zip(adapters.get(name, []), *_split(lora_a, lora_b, layer), strict=False):
            rows[: len(a)], columns[:, : len(a)] = a, b
        tensors |= {f"{name}.lora_a": lora_a, f"{name}.lora_b": lora_b}
    (out / run_folder.CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    files.link_or_copy(source / run_folder.MODEL, out / run_folder.BASE_WEIGHTS)
    return checkpoint.save_checkpoint(
        out,
        config=config.replace(
            origin=run_folder.describe_parent(source),
            plan=None,
            lora=lora,
            distribution=DistributionConfig(),
            base_sha256=files.sha256(source / run_folder.MODEL),
        ),
        tokenizer=tokenizer,
        source_tokenizer=source_tokenizer,
        model=tensors,
        state=run_folder.TrainingState(finished=True),
        is_best=True,
    )


def _take_parts(
    weights: dict[str, Tensor], placement: Placement, layer: LoraLinear, model: ModelConfig, settings: Mapping[str, Any]
) -> list[Adapter]:
    """Return an adapter per projection of our layer, scaled as by default, and remove theirs; of rank 0 if missing.

    Raises:
        RuntimeError: one has another shape.
    """
    parts = []
    for name, size in zip(placement.names, placement.sizes, strict=True):
        a = weights.pop(_tensor_name(name, "A"), torch.zeros(0, layer.in_features))
        b = weights.pop(_tensor_name(name, "B"), torch.zeros(size, 0))
        if a.shape != (len(a), layer.in_features) or b.shape != (size, len(a)):
            raise RuntimeError(f"{name}: A is {tuple(a.shape)} and B {tuple(b.shape)}")
        scale = _scale(settings, name.removesuffix(".weight"), len(a) or 1)
        rows = b.float() * (scale / _scale(settings, None, settings.get("r", 8)))
        rows = swap_groups(rows, model.n_heads, 3) if placement.layout == "by head" else rows
        for part in rows.split(layer.projected if len(placement.names) == 1 else (size,)):
            used = part.any(0)  # of a stack
            parts.append((a[used].float(), part[:, used]))
    return parts


def _scale(settings: Mapping[str, Any], name: str | None, rank: int) -> float:
    """Return the scale of a layer, whose alpha is that of the first pattern that matches its last parts."""
    patterns = settings.get("alpha_pattern") or {} if name else {}
    matching = (alpha for key, alpha in patterns.items() if re.match(rf"(.*\.)?({key})$", name or ""))
    alpha = float(next(matching, settings.get("lora_alpha", 8)))
    return alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)

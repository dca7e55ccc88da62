"""Low-rank adapters in PEFT's format.

adapter_config.json              rank, scale, and which layers have adapters
adapter_model.safetensors        matrices A and B of each of these layers
README.md                        how to load them

If a family stores several of our projections in one layer, its adapter has their A matrices stacked, and zeros in B
where a projection does not use the A of another.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor

from lm import checkpoint, files, run_folder
from lm.adapter_base import link_base, read_base_path, refuse_adapters, with_base_hash
from lm.config.export import ExportConfig
from lm.config.lora import LAYER_KINDS, LoraConfig
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.errors import InputError, UsageError
from lm.interop.hugging_face.configuration import find_family
from lm.interop.hugging_face.family_schema import Family
from lm.interop.hugging_face.folder import CARD, read_json, read_tensor
from lm.interop.hugging_face.tensors import locate_tensor, swap_groups
from lm.model.lora import LoraLinear, build_model_with_lora, lora_layers
from lm.model.transformer import init_empty_weights
from lm.safetensors_header import TensorEntry, read_tensor_header
from lm.safetensors_io import load_tensors, save_tensors

_PREFIX = "base_model.model."
_CARD = """\
---
library_name: peft
---

# Low-rank adapters trained with lm

Of rank {rank}, for a `{architecture}` of {layers} layers, {width} wide: the model that they were trained beside.

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM

model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("BASE"), ".")  # the folder of this card
```
"""


class LoraMatrices(NamedTuple):
    """The matrices of an adapter, which adds a multiple of `b @ a` to a weight."""

    a: Tensor
    b: Tensor


def export_with_report(run: Path, out: Path, _config: ExportConfig) -> Mapping[str, str]:
    """Export a run's adapters to a folder and return what to report; see `EXPORTERS`."""
    architecture, base = export_adapters(run, out).architecture, read_base_path(run_folder.find_checkpoint(run))
    return {"lora": f"for a {architecture}, as which {base} is exported"}


def export_adapters(run: Path, folder: Path) -> Family:
    """Export the adapters of a run's best checkpoint, or of a checkpoint, atomically.

    Returns:
        The family that their base model is exported as.

    Raises:
        InputError: the run is damaged, or the folder is not empty or cannot be created.
        UsageError: it has no adapters, or transformers has no such model.
    """
    source = run_folder.find_checkpoint(run)
    run_folder.verify_checkpoint(source, to_train=False)
    config = run_folder.load_config(source)
    if not config.lora:
        raise UsageError(f"{run}: has no adapters; export the whole model", settings=["to=huggingface"])
    if config.model.labels:
        raise UsageError(
            f"{run}: has a head for its labels beside its adapters; export both in one model",
            settings=["to=huggingface"],
        )
    family = find_family(config.model, checkpoint.load_tokenizers(source)[0])
    saved = load_tensors(source / run_folder.MODEL)
    theirs = dict(_to_peft_layers(saved, config, family))
    try:
        with files.atomic_new_folder(folder) as fresh:
            _write(fresh, theirs, config, family)
    except SafetensorError as error:
        raise InputError(f"{folder}: cannot be written ({error})") from None
    return family


def _write(folder: Path, theirs: Mapping[str, LoraMatrices], config: RunConfig, family: Family) -> None:
    files.write_json(folder / CONFIG, to_json({name: len(low.a) for name, low in theirs.items()}, config, family))
    named = {
        f"{_PREFIX}{name}.lora_{kind.upper()}.weight": value.contiguous()
        for name, low in theirs.items()
        for kind, value in low._asdict().items()
    }
    save_tensors(named, folder / WEIGHTS, metadata={"format": "pt"})
    files.replace_text(folder / CARD, _card(config, family))


def _to_peft_layers(
    saved: Mapping[str, Tensor], config: RunConfig, family: Family
) -> Iterator[tuple[str, LoraMatrices]]:
    """Yield the adapters of a checkpoint by the family's layer names."""
    for name, layer in _layers(config.model, config.lora).items():
        a, b = (saved[f"{name}.lora_{kind}"] for kind in "ab")
        parts = [
            LoraMatrices(*matrices) for matrices in zip(a.split(layer.rank), b.split(layer.projected), strict=True)
        ]
        placement = locate_tensor(f"{name}.weight", layer.out_features, config.model, family)
        names = [their_name.removesuffix(".weight") for their_name in placement.names]
        if len(names) == len(parts):
            yield from zip(names, parts, strict=True)
            continue
        together = torch.block_diag(*(part.b for part in parts))
        yield (
            names[0],
            LoraMatrices(
                a, swap_groups(together, 3, config.model.n_heads) if placement.layout == "by head" else together
            ),
        )


def _layers(model: ModelConfig, lora: LoraConfig) -> dict[str, LoraLinear]:
    with init_empty_weights():
        return lora_layers(build_model_with_lora(model, lora))


def _card(config: RunConfig, family: Family) -> str:
    model = config.model
    return _CARD.format(
        rank=config.lora.rank, architecture=family.architecture, layers=model.n_layers, width=model.d_model
    )


def is_peft_folder(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def import_adapters(folder: Path, base: Path, out: Path) -> Path:
    """Write a run with the adapters of a folder as its only checkpoint; it can be used, not resumed.

    Everything is checked against the file header before a tensor is read.

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
    settings = PeftConfig.read(folder)
    source = run_folder.find_checkpoint(base)
    run_folder.verify_checkpoint(source, to_train=False)
    refuse_adapters(source)
    config, (tokenizer, source_tokenizer) = run_folder.load_config(source), checkpoint.load_tokenizers(source)
    low = _from_peft_layers(folder, config.model, find_family(config.model, tokenizer), settings)
    rank = max(len(part.a) for parts in low.values() for part in parts)
    kinds = [kind for kind in LAYER_KINDS if low.keys() & _layers(config.model, LoraConfig(rank=1, on=kind)).keys()]
    lora = LoraConfig(rank=rank, on=",".join(kinds), alpha=settings.scale * rank, dropout=settings.dropout)
    (out / run_folder.CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    link_base(out, source)
    origin = run_folder.describe_parent(source)
    return checkpoint.save_checkpoint(
        out,
        config=with_base_hash(dataclasses.replace(config, origin=origin, plan=None, lora=lora), source),
        tokenizer=tokenizer,
        source_tokenizer=source_tokenizer,
        model=_pad_to_rank(low, config.model, lora),
        optimizer={},
        state=run_folder.TrainingState(finished=True),
        is_best=True,
    )


def _from_peft_layers(
    folder: Path, model: ModelConfig, family: Family, settings: PeftConfig
) -> dict[str, list[LoraMatrices]]:
    """Return the adapters by our layers, one per projection, with B rescaled for `settings.scale`.

    Raises:
        InputError: there are none for this model, or one has another shape or an unknown layer.
    """
    entries, adapters = read_tensor_header(folder / WEIGHTS), {}
    unused = set(entries)
    for name, layer in _layers(model, LoraConfig(rank=1)).items():
        placement = locate_tensor(f"{name}.weight", layer.out_features, model, family)
        lows = []
        for their_name, size in zip(placement.names, placement.sizes, strict=True):
            module = their_name.removesuffix(".weight")
            names = [f"{_PREFIX}{module}.lora_{kind}.weight" for kind in "AB"]
            low = None
            if set(names) <= entries.keys():
                unused -= set(names)
                rank, scale = settings.rank_and_scale(module)
                low = _read_matrices(
                    [entries[tensor_name] for tensor_name in names], names, (rank, layer.in_features, size)
                )
                low = low._replace(b=low.b * (scale / settings.scale if settings.scale else 1.0))
            lows.append(low)
        if any(lows):
            adapters[name] = _split_projections(
                lows, layer, by_head=model.n_heads if placement.layout == "by head" else 0
            )
    if unused or not adapters:
        problem = f"has {min(unused)}, for which the base has no layer" if unused else "has no adapters for the base"
        raise InputError(
            f"{folder / WEIGHTS}: {problem}; name the run of the model that they were made for", settings=["from"]
        )
    return adapters


def _read_matrices(entries: list[TensorEntry], names: list[str], sizes: tuple[int, int, int]) -> LoraMatrices:
    """Read A and B of a given rank, input and output size."""
    rank, inputs, outputs = sizes
    for entry, name, shape in zip(entries, names, ((rank, inputs), (outputs, rank)), strict=True):
        if entry.shape != shape:
            raise InputError(f"{entry.path}: {name} is {entry.shape}, but for this base and by {CONFIG} it is {shape}")
    return LoraMatrices(*(read_tensor(entry).float() for entry in entries))


def _split_projections(lows: list[LoraMatrices | None], layer: LoraLinear, *, by_head: int) -> list[LoraMatrices]:
    """Return an adapter per projection of our layer, from those of the family's layers."""
    if len(lows) == len(layer.projected):
        sizes = zip(lows, layer.projected, strict=True)
        return [low or LoraMatrices(torch.zeros(0, layer.in_features), torch.zeros(size, 0)) for low, size in sizes]
    (low,) = lows
    assert low is not None
    rows = swap_groups(low.b, by_head, 3) if by_head else low.b
    return [LoraMatrices(low.a[b.any(0)], b[:, b.any(0)]) for b in rows.split(layer.projected)]


def _pad_to_rank(low: Mapping[str, list[LoraMatrices]], model: ModelConfig, lora: LoraConfig) -> dict[str, Tensor]:
    """Return checkpoint tensors, padding adapters of lower rank and missing ones with zeros."""
    tensors: dict[str, Tensor] = {}
    for name, layer in _layers(model, lora).items():
        a = torch.zeros(len(layer.projected), lora.rank, layer.in_features)
        b = torch.zeros(layer.out_features, lora.rank)
        for number, (part, rows) in enumerate(zip(low.get(name, []), b.split(layer.projected), strict=False)):
            a[number, : len(part.a)], rows[:, : part.b.shape[1]] = part.a, part.b
        tensors |= {f"{name}.lora_a": a.flatten(0, 1), f"{name}.lora_b": b}
    return tensors


CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",), "bias": ("none",), "use_dora": (False,), "lora_bias": (False,), "use_qalora": (False,),
    "modules_to_save": (None, []), "layer_replication": (None,), "target_parameters": (None, []),
    "trainable_token_indices": (None,), "alora_invocation_tokens": (None,), "use_bdlora": (None,),
    "arrow_config": (None,), "kasa_config": (None,), "monteclora_config": (None,),
    "init_lora_weights": (True, False, None, "gaussian", "orthogonal", "eva"),
}  # fmt: skip
"""Keys with the only values that we support."""


@dataclass(frozen=True)
class PeftConfig:
    """The settings of `adapter_config.json`.

    Attributes:
        ranks: by regular expression of layer names; the default under "".
        alphas: likewise.
        dropout: of the adapters' inputs.
        by_root: whether alpha is divided by the square root of the rank (rsLoRA).
    """

    path: Path
    ranks: Mapping[str, float]
    alphas: Mapping[str, float]
    dropout: float
    by_root: bool

    @classmethod
    def read(cls, folder: Path) -> PeftConfig:
        """Read and validate the settings; InputError if not supported."""
        path = folder / CONFIG
        values = read_json(path)
        if not isinstance(values, Mapping):
            raise InputError(f"{path}: must be an object of keys and values; choose a folder of PEFT's")
        for name, allowed in _NEUTRAL.items():
            if values.get(name, allowed[0]) not in allowed:
                raise InputError(f"{path}: {name} {str(values[name])[:60]!r} is not supported by lm")
        if not (folder / WEIGHTS).is_file():
            raise InputError(f"{folder}: has no {WEIGHTS}; pickles are not read")
        dropout = _number(values.get("lora_dropout", 0.0), "lora_dropout", path, minimum=0)
        ranks, alphas = (
            {"": values.get(key, 8), **_pattern(values, pattern, path)}
            for key, pattern in (("r", "rank_pattern"), ("lora_alpha", "alpha_pattern"))
        )
        for rank in ranks.values():
            _number(rank, "r", path, minimum=1)
        for alpha in alphas.values():
            _number(alpha, "lora_alpha", path, minimum=0)
        return cls(path, ranks, alphas, dropout, by_root=values.get("use_rslora") is True)

    @property
    def scale(self) -> float:
        """Return the default scale of the adapters' output."""
        return self._scaled(self.ranks[""], self.alphas[""])

    def rank_and_scale(self, name: str) -> tuple[int, float]:
        rank, alpha = (_match_layer(values, name) for values in (self.ranks, self.alphas))
        return int(rank), self._scaled(rank, alpha)

    def _scaled(self, rank: float, alpha: float) -> float:
        return alpha / (math.sqrt(rank) if self.by_root else rank)


def _pattern(values: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
    pattern = values.get(name) or {}
    if not isinstance(pattern, Mapping):
        raise InputError(f"{path}: {name} must be an object of names and numbers")
    for key in pattern:
        try:
            re.compile(key)
        except re.error as error:
            raise InputError(f"{path}: {name} {key!r} is not a regular expression ({error})") from None
    return pattern


def _number(value: Any, name: str, path: Path, *, minimum: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value <= 1 << 31:
        raise InputError(f"{path}: {name} {str(value)[:60]!r} is not a valid value")
    return value


def _match_layer(values: Mapping[str, float], name: str) -> float:
    """Return the value of the first regular expression that matches a layer, or its last parts, as PEFT does."""
    return values[next((key for key in values if key and re.match(rf"(.*\.)?({key})$", name)), "")]


def to_json(ranks: Mapping[str, int], config: RunConfig, family: Family) -> dict[str, Any]:
    """Return adapter_config.json for adapters of these ranks, by the family's layer names."""
    lora, continues = config.lora, not (config.model.is_masked or config.model.translates)
    rank_by_kind = {re.sub(r"^.*?\.\d+\.", "", name): rank for name, rank in ranks.items()}
    others = {name: rank for name, rank in rank_by_kind.items() if rank != lora.rank}
    return {
        "peft_type": "LORA", "task_type": "CAUSAL_LM" if continues else None, "base_model_name_or_path": None,
        "inference_mode": True,
        "r": lora.rank, "lora_alpha": lora.scale * lora.rank, "lora_dropout": lora.dropout,
        "target_modules": sorted(rank_by_kind), "rank_pattern": others,
        "alpha_pattern": {name: lora.scale * rank for name, rank in others.items()},
        "fan_in_fan_out": any(part.layout == "transposed" for part in family.inner.values()), "bias": "none",
    }  # fmt: skip

"""What PEFT's adapter_config.json says of adapters: which layers have some, of what rank, and how they are scaled."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm.config.run import RunConfig
from lm.errors import InputError
from lm.interop.hugging_face.family import Family
from lm.interop.hugging_face.folder import read_json

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",), "bias": ("none",), "use_dora": (False,), "lora_bias": (False,), "use_qalora": (False,),
    "modules_to_save": (None, []), "layer_replication": (None,), "target_parameters": (None, []),
    "trainable_token_indices": (None,), "alora_invocation_tokens": (None,), "use_bdlora": (None,),
    "arrow_config": (None,), "kasa_config": (None,), "monteclora_config": (None,),
    "init_lora_weights": (True, False, None, "gaussian", "orthogonal", "eva"),
}  # fmt: skip
"""Keys of whose values only these say nothing that our adapters could not have; others may change the base too."""


@dataclass(frozen=True)
class Settings:
    """What `adapter_config.json` says of adapters.

    Attributes:
        path: of the file.
        ranks: by the ends of the names of layers; that of all others under "".
        alphas: the same.
        dropout: of what adapters read.
        by_root: whether alpha is divided by the root of the rank (rsLoRA), and not by the rank.
    """

    path: Path
    ranks: Mapping[str, float]
    alphas: Mapping[str, float]
    dropout: float
    by_root: bool

    @classmethod
    def read(cls, folder: Path) -> Settings:
        """The settings in a folder; InputError for those of adapters that ours cannot be."""
        path = folder / CONFIG
        values = read_json(path)
        if not isinstance(values, Mapping):
            raise InputError(f"{path}: must be names with values; choose a folder of PEFT's")
        for name, allowed in _NEUTRAL.items():
            if values.get(name, allowed[0]) not in allowed:
                raise InputError(f"{path}: {name} {str(values[name])[:60]!r} is of adapters that lm does not have")
        if not (folder / WEIGHTS).is_file():
            raise InputError(f"{folder}: has no {WEIGHTS}; pickles are not read")
        dropout = _number(values.get("lora_dropout", 0.0), "lora_dropout", path, least=0)
        ranks, alphas = (
            {"": values.get(one, 8), **_pattern(values, pattern, path)}
            for one, pattern in (("r", "rank_pattern"), ("lora_alpha", "alpha_pattern"))
        )
        for rank in ranks.values():
            _number(rank, "r", path, least=1)
        for alpha in alphas.values():
            _number(alpha, "lora_alpha", path, least=0)
        return cls(path, ranks, alphas, dropout, by_root=values.get("use_rslora") is True)

    @property
    def scale(self) -> float:
        """What is added is multiplied by this, unless a layer has a rank or an alpha of its own."""
        return self._scaled(self.ranks[""], self.alphas[""])

    def of(self, name: str) -> tuple[int, float]:
        """The rank and the scale of a layer of theirs."""
        rank, alpha = (_matching(values, name) for values in (self.ranks, self.alphas))
        return int(rank), self._scaled(rank, alpha)

    def _scaled(self, rank: float, alpha: float) -> float:
        return alpha / (math.sqrt(rank) if self.by_root else rank)


def _pattern(values: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
    found = values.get(name) or {}
    if not isinstance(found, Mapping):
        raise InputError(f"{path}: {name} must be names with numbers")
    return found


def _number(value: Any, name: str, path: Path, *, least: float) -> float:  # noqa: ANN401 (whatever the file holds)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= 1 << 31:
        raise InputError(f"{path}: {name} {str(value)[:60]!r} is no number that it can be")
    return value


def _matching(values: Mapping[str, float], name: str) -> float:
    """The value for a layer: that of the first end of a name, dots being as in PEFT any character, that is its own."""
    ends = (key for key in values if key and re.match(rf"(.*\.)?({re.escape(key)})$", name))
    return values[next(ends, "")]


def to_json(ranks: Mapping[str, int], config: RunConfig, family: Family) -> dict[str, Any]:
    """The settings of adapters of these ranks, by the names of the family's layers, as adapter_config.json has them."""
    lora, continues = config.lora, not (config.model.is_masked or config.model.translates)
    of_kind = {re.sub(r"^.*?\.\d+\.", "", name): rank for name, rank in ranks.items()}
    others = {name: rank for name, rank in of_kind.items() if rank != lora.rank}
    return {
        "peft_type": "LORA", "task_type": "CAUSAL_LM" if continues else None, "base_model_name_or_path": None,
        "inference_mode": True,
        "r": lora.rank, "lora_alpha": lora.scale * lora.width, "lora_dropout": lora.dropout,
        "target_modules": sorted(of_kind), "rank_pattern": others,
        "alpha_pattern": {name: lora.scale * rank for name, rank in others.items()},
        "fan_in_fan_out": any(part.layout == "transposed" for part in family.inner.values()), "bias": "none",
    }  # fmt: skip

"""Models without a transformers class: exported with custom code, our settings and tensor names."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lm.config.model import ModelConfig
from lm.config.portable_architectures import AllowedValues
from lm.config.settings import build_config
from lm.errors import InputError, UsageError
from lm.interop.hugging_face.family_schema import CAUSAL_LM, MASKED_LM, SEQUENCE_CLASSIFICATION, Family, FieldMapping

_CODE = Path(__file__).parent / "remote"
_MODULES = ("configuration_lm", "positions_lm", "modeling_lm")
_TRANSFORMERS_FIELDS = ("keys_to_ignore_at_inference", "attribute_map")
"""Annotations of `LMConfig` that are not settings."""
_RENAMED = {"rotary_scaling": "rope_scaling"}
"""Settings renamed because transformers uses the name for something else."""
_SUPPORTED: AllowedValues = {
    "architecture": ("transformer",), "n_encoder_layers": (0,), "decoder_only": (False,), "experts": (0,),
    "attention": ("full", "window"),
    "positions": ("learned", "sinusoidal", "sinusoidal-half", "rotary", "alibi", "relative", "t5", "none"),
    "rope_scaling": ("none", "linear", "llama3", "yarn"), "norm": ("layernorm", "rmsnorm"),
    "norm_position": ("pre", "post"), "attention_bias": (None, "none", "inputs", "all"),
    "activation": ("relu", "gelu", "gelu-tanh", "swiglu", "relu2", "silu"),
}  # fmt: skip
"""The field values that the code in `remote/` supports."""


def _config_settings() -> tuple[FieldMapping, ...]:
    """Return the settings that `LMConfig` declares, without importing transformers."""
    parsed = ast.parse((_CODE / f"{_MODULES[0]}.py").read_text())
    (declared,) = (node.body for node in parsed.body if isinstance(node, ast.ClassDef))
    names = [
        node.target.id for node in declared if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    return tuple(FieldMapping(name, _RENAMED.get(name, name)) for name in names if name not in _TRANSFORMERS_FIELDS)


def _custom_family(architecture: str, auto: str, requires: AllowedValues) -> Family:
    classes = {"AutoConfig": "configuration_lm.LMConfig", auto: f"modeling_lm.{architecture}"}
    return Family(
        model_type="lm",
        architecture=architecture,
        auto=auto,
        settings=_config_settings(),
        requires={**_SUPPORTED, **requires},
        neutral={"auto_map": (classes, None)},
        prefix="",
        outer={},
        inner={},
        block="decoder.blocks.{}.",
        head=("head",),
        keeps_names=True,
    )


CUSTOM_FAMILIES = (
    _custom_family("LMForCausalLM", CAUSAL_LM, {"objective": ("causal",)}),
    _custom_family("LMForMaskedLM", MASKED_LM, {"objective": ("masked",), "labels": ((),)}),
    _custom_family("LMForSequenceClassification", SEQUENCE_CLASSIFICATION, {"objective": ("masked",)}),
)
"""In order of preference."""


def from_json(values: Mapping[str, Any], family: Family, labels: tuple[Any, ...], path: Path) -> ModelConfig:
    """Parse the config.json of a model with custom code.

    Raises:
        InputError: it is invalid.
    """
    fields = {setting.model_field: values[key] for setting in family.settings if (key := setting.config_key) in values}
    try:
        return build_config(ModelConfig, {**fields, "labels": labels}, where=str(path))
    except UsageError as error:
        raise InputError(str(error)) from None


def copy_code(folder: Path) -> None:
    for module in _MODULES:
        shutil.copyfile(_CODE / f"{module}.py", folder / f"{module}.py")

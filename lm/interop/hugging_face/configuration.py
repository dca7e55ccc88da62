"""Convert between ModelConfig and a family's config.json; find the family of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lm.config.model import ModelConfig
from lm.config.portable_architectures import describe_fields, differing_fields
from lm.config.tokenizer import END_OF_TEXT
from lm.errors import InputError, UsageError
from lm.interop.hugging_face import custom_code
from lm.interop.hugging_face.attention_config import rotary_from_json, rotary_to_json, window_from_json, window_to_json
from lm.interop.hugging_face.families import FAMILIES, MARIAN
from lm.interop.hugging_face.family_schema import SEQUENCE_CLASSIFICATION, Family, FieldMapping
from lm.tokenizer.tokenizer import Tokenizer

_OPTIONAL_FIELDS = ("n_kv_heads", "d_ff", "d_head", "init_std", "attention_dropout", "attention_bias")
"""Fields that may be None."""
_UNSUPPORTED_KEYS = {"quantization_config": (None,), "auto_map": (None,), "is_encoder_decoder": (False,)}
"""Keys not supported in any family, with the neutral values that are accepted."""
_DISTINGUISHING_FIELDS = ("norm", "positions", "activation", "qk_norm", "attention_bias", "attention")
"""The fields that distinguish families."""
_SHARED_FIELDS = ("n_heads", "d_ff")
"""Fields with a key per stack, which must be equal."""
_LARGEST = 1 << 31


def find_family(config: ModelConfig, tokenizer: Tokenizer) -> Family:
    """Return the family of a model with its tokenizer: one of transformers, else one with custom code.

    Raises:
        UsageError: there is none; the message names the fields that decide.
    """
    for family in FAMILIES:
        if not differing_fields(config, family.requires) and _accepts_tokenizer(tokenizer, family):
            return family
    for family in custom_code.CUSTOM_FAMILIES:
        if not differing_fields(config, family.requires):
            return family
    widest = [MARIAN] if config.is_encoder_decoder else custom_code.CUSTOM_FAMILIES
    nearest = _nearest(config, widest)
    settings = [] if config.translates else ["portable"]
    if config.is_encoder_decoder:
        settings = [f"{name}={nearest.requires[name][0]}" for name in differing_fields(config, nearest.requires)]
    raise UsageError(
        f"transformers has no model with {_describe_differences(config, nearest)}: train one with blocks that it has",
        settings=settings,
    )


def nearest_family(config: ModelConfig, families: Sequence[Family]) -> tuple[Family, str]:
    """Return the family with fewest differing fields, and these with their values; empty if it fits."""
    family = _nearest(config, families)
    return family, _describe_differences(config, family)


def explain_family(config: ModelConfig, family: Family) -> str:
    """Describe what decided the family of a model."""
    if family.keeps_names:
        nearest = _nearest(config, [candidate for candidate in FAMILIES if candidate.auto == family.auto])
        return f"without {_describe_differences(config, nearest) or 'its tokenizer'} it would be {nearest.architecture}"
    return describe_fields(config, [name for name in _DISTINGUISHING_FIELDS if name in family.requires], joined_by=", ")


def _nearest(config: ModelConfig, families: Sequence[Family]) -> Family:
    return min(families, key=lambda family: len(differing_fields(config, family.requires)))


def _describe_differences(config: ModelConfig, family: Family) -> str:
    return describe_fields(config, differing_fields(config, family.requires))


def to_json(config: ModelConfig, family: Family) -> dict[str, Any]:
    """Return the settings of a model for config.json, without tokenizer settings."""
    values = {
        setting.config_key: setting.to_json_value(getattr(config, setting.model_field)) for setting in family.settings
    }
    rotation = rotary_to_json(config, family.rotary) if family.rotary else {}
    neutral = {name: allowed[0] for name, allowed in family.neutral.items() if allowed[0] is not None}
    labels = {str(number): label for number, label in enumerate(config.labels)}
    named = {"id2label": labels, "label2id": {label: int(number) for number, label in labels.items()}}
    return {
        "architectures": [family.architecture], "model_type": family.model_type, **values, **rotation,
        **window_to_json(config, family.windowed), **neutral, **(named if labels else {}),
    }  # fmt: skip


def from_json(values: Any, path: Path) -> tuple[Family, ModelConfig]:
    """Parse config.json: the family, and the model config.

    Raises:
        InputError: the model is not supported; the message names the key.
    """
    family = _named_family(values, path)
    for name, allowed in {**_UNSUPPORTED_KEYS, **family.neutral}.items():
        if not _is_neutral(values.get(name, allowed[0]), allowed):
            raise _unsupported_error(path, name, values[name])
    labels = _read_labels(values, path) if family.auto == SEQUENCE_CLASSIFICATION else ()
    if family.keeps_names:
        return family, custom_code.from_json(values, family, labels, path)
    fields = {**family.implies, "labels": labels}
    for setting in family.settings:
        value = _read_setting(setting, values, path)
        if setting.model_field in _SHARED_FIELDS and fields.get(setting.model_field, value) != value:
            raise _unsupported_error(path, setting.config_key, value)
        fields[setting.model_field] = value
    if family.rotary:
        fields |= rotary_from_json(values, family.rotary, context_length=fields["context_length"], path=path)
    fields |= window_from_json(values, family.windowed, n_layers=fields["n_layers"], path=path)
    try:
        return family, ModelConfig(**fields)
    except UsageError as error:
        raise InputError(f"{path}: {error}") from None


def _read_labels(values: Mapping[str, Any], path: Path) -> tuple[Any, ...]:
    named = values.get("id2label", {"0": "LABEL_0", "1": "LABEL_1"})  # as transformers leaves out what it calls so
    if not isinstance(named, Mapping) or set(named) != {str(number) for number in range(len(named))}:
        raise _unsupported_error(path, "id2label", named)
    return tuple(named[str(number)] for number in range(len(named)))


def _named_family(values: Any, path: Path) -> Family:
    if not isinstance(values, Mapping):
        raise InputError(f"{path}: must be an object of keys and values; choose the folder of a model")
    if "model_type" not in values:
        raise InputError(f"{path}: has no model_type; name the folder of a model in transformers' layout")
    families = [
        family for family in (*FAMILIES, *custom_code.CUSTOM_FAMILIES) if family.model_type == values.get("model_type")
    ]
    if not families:
        known = ", ".join(dict.fromkeys(family.model_type for family in FAMILIES))
        raise InputError(f"{path}: model_type {_shorten(values.get('model_type'))} is not one of {known}")
    architectures = values.get("architectures") or [families[0].architecture]
    named = next((family for family in families if architectures == [family.architecture]), None)
    if named is None:
        known = " or ".join(f"[{family.architecture!r}]" for family in families)
        raise InputError(f"{path}: architectures {_shorten(architectures)} is not {known}")
    return named


def _accepts_tokenizer(tokenizer: Tokenizer, family: Family) -> bool:
    """Return whether transformers keeps a tokenizer unchanged in this family."""
    if family.pre_tokenizer_pattern is None:
        return True
    normalizer, words = tokenizer.description["normalizer"], tokenizer.description["pre_tokenizer"] or {}
    first: Mapping[str, Any] = next(iter(words.get("pretokenizers", [])), {})
    is_alike = (normalizer or {}).get("type") == "NFC" and first.get("pattern") == {
        "Regex": family.pre_tokenizer_pattern
    }
    return is_alike and END_OF_TEXT in tokenizer.special_tokens  # which is added where it is missing


def _read_setting(setting: FieldMapping, values: Mapping[str, Any], path: Path) -> Any:
    value = values.get(setting.config_key, setting.default)
    if value is None and setting.model_field in _OPTIONAL_FIELDS:
        return None
    if setting.values is None:
        if not _has_type_of(value, 1 if setting.default is None else setting.default):
            raise _unsupported_error(path, setting.config_key, value)
        return value
    if not isinstance(value, str | bool) or value not in setting.values:
        raise _unsupported_error(path, setting.config_key, value)
    return setting.values[value]


def _has_type_of(value: Any, default: bool | int | float) -> bool:
    """Return whether a value has the type of a default, and a number is in range."""
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, int):
        return isinstance(value, int) and 0 < value <= _LARGEST
    return isinstance(value, int | float) and abs(value) <= _LARGEST  # as neither infinity nor NaN is


def _is_neutral(value: Any, allowed: tuple[Any, ...]) -> bool:
    """Return whether a value is allowed, or a list of allowed ones."""
    return all(item in allowed for item in value) if isinstance(value, list) else value in allowed


def _unsupported_error(path: Path, name: str, value: Any) -> InputError:
    return InputError(f"{path}: {name} {_shorten(value)} is not supported by lm")


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"

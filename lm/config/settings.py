"""Settings: fields of dataclasses, from which flags, TOML keys, variables and documentation are derived.

A setting is declared once: `name: type = default`, and a line of help in the docstring of its class, under `Settings:`.
msgspec converts and checks values. `Annotated[type, "lora.rank"]`, or `"training.schedule=wsd|cosine"`, names the
feature without which it has no effect. None as the default of a number: it follows from other settings.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from lm.errors import UsageError

C = TypeVar("C")
Values = dict[str, dict[str, Any]]
"""{section: {field: value}}."""

LARGEST = 2**31 - 1
"""The largest length or width: the product of two of them fits into 64 bits."""
DERIVED: Any = None
"""The default of a field that follows from others."""

Natural = Annotated[int, Meta(ge=0, le=LARGEST)]
Count = Annotated[int, Meta(ge=1, le=LARGEST)]
LargeCount = Annotated[int, Meta(ge=1, le=2**53)]
NonNegative = Annotated[float, Meta(ge=0, le=1e30)]
Positive = Annotated[float, Meta(gt=0, le=1e30)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Rate = Annotated[float, Meta(ge=0, le=0.99)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]


_HELP = re.compile(r"^ +(\w+)(?: \((.+)\))?: (.+)$", re.MULTILINE)
"""A setting, what stands for its value if the type does not say so, and its help."""
_METAVARS = {int: "N", float: "X", str: "TEXT", tuple: "TEXT", bool: "true|false"}


class Setting(NamedTuple):
    """A declared setting."""

    section: str
    name: str
    type: Any
    default: Any
    help: str
    requires: str | None
    metavar: str

    @property
    def key(self) -> str:
        """Return its name in TOML and for `--set`: "model.d_model"."""
        return f"{self.section}.{self.name}"

    @property
    def keyword(self) -> str:
        """Return its Python keyword, which is its flag with underscores."""
        return _KEYWORDS.get(self.key, self.name)

    @property
    def flag(self) -> str:
        return "--" + self.keyword.removesuffix("_run").replace("_", "-")

    @property
    def variable(self) -> str:
        """Return its environment variable."""
        return "LM_" + self.keyword.upper()

    @property
    def plain_type(self) -> Any:
        """Return bool, int, float, str, tuple or a Literal."""
        return _plain(self.type)

    @property
    def choices(self) -> tuple[str, ...]:
        return get_args(self.plain_type)

    def is_on(self, values: Mapping[str, Any]) -> bool:
        """Return whether the feature that it requires is on in the values by key, or not known."""
        feature, _, choices = (self.requires or "").partition("=")
        return feature not in values or (values[feature] in choices.split("|") if choices else bool(values[feature]))

    def describe(self) -> str:
        """Return one line: what it is, its choices and its default."""
        shown = "" if self.default in (None, (), False, "") else f"[default: {self.default}]"
        return " ".join(filter(None, (self.help, f"[{'|'.join(self.choices)}]" * bool(self.choices), shown)))

    def convert(self, value: Any, place: str) -> Any:
        """Return a valid value from one of its type, or from text; UsageError otherwise, with the place."""
        if self.plain_type is tuple and isinstance(value, str):
            value = (value,)
        elif self.plain_type is str and type(value) in (int, float):
            value = str(value)  # a fraction to hold out, the number of a column
        try:
            if self.plain_type is float and isinstance(value, str):
                with contextlib.suppress(ValueError):
                    value = float(value)  # also .5, which msgspec refuses
            return msgspec.convert(value, self.type, strict=False)
        except msgspec.ValidationError as error:
            expected = str(error).partition(", got")[0].removesuffix(" | null")
            problem = f"choose from {', '.join(self.choices)}" if self.choices else expected
            raise UsageError(f"{place}: {problem}, not {value!r}") from None


_KEYWORDS = {
    "model.context_length": "context", "lora.rank": "lora", "lora.on": "lora_on", "lora.alpha": "lora_alpha",
    "lora.dropout": "lora_dropout", "corpus.heads": "dependency_heads",
    "corpus.validation_heads": "validation_dependency_heads",
}  # fmt: skip
"""Keywords that are not the name of the field."""


def _plain(hint: Any) -> Any:
    """Return a type without annotations, None and parameters."""
    while get_origin(hint) is Annotated or type(None) in get_args(hint):
        hint = get_args(hint)[0]
    return hint if get_origin(hint) is Literal else get_origin(hint) or hint


@cache
def list_settings(section: str, config: type[Any]) -> tuple[Setting, ...]:
    """Return the settings of a dataclass: its fields that have a line of help."""
    fields, settings = {field.name: field for field in dataclasses.fields(config)}, []
    hints = get_type_hints(config, include_extras=True)
    docstrings = (vars(kind).get("__doc__") or "" for kind in reversed(config.__mro__))
    for name, shown, text in _HELP.findall("".join(text.partition("Settings:\n")[2] for text in docstrings)):
        requires = next((note for note in getattr(hints[name], "__metadata__", ()) if isinstance(note, str)), None)
        metavar = shown or _METAVARS.get(_plain(hints[name]), "NAME")
        settings.append(Setting(section, name, hints[name], fields[name].default, text, requires, metavar))
    return tuple(settings)


def list_all_settings(sections: Mapping[str, type]) -> list[Setting]:
    return [setting for section, config in sections.items() for setting in list_settings(section, config)]


class Config:
    """A frozen dataclass of settings."""

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]


def build_config(config: type[C], values: Any, *, where: str = "") -> C:
    """Build a dataclass from a mapping, in which None is the default; `where` names its source.

    Raises:
        UsageError: it is not a mapping, a field is unknown or missing, or a value is invalid.
    """
    prefix, known = f"{where}: " if where else "", config.__dataclass_fields__  # type: ignore[attr-defined]
    for name in values.keys() - known if isinstance(values, Mapping) else ():
        raise UsageError(f"{prefix}unknown setting {name!r}")
    try:
        return msgspec.convert(_without_none(values), config)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$.")
        raise UsageError(f"{prefix}{path.rstrip('`')}{': ' * bool(path)}{problem}") from None
    except (UsageError, UnicodeEncodeError) as error:
        raise UsageError(f"{prefix}{error}") from None


def _without_none(values: Any) -> Any:
    if not isinstance(values, Mapping):
        return values
    return {name: _without_none(value) for name, value in values.items() if value is not None}


class Layer(NamedTuple):
    """Values from one source (file, environment, flag or python), by keyword or key."""

    source: str
    values: Mapping[str, Any]
    place: Callable[[str], str] = str
    """Returns how the source writes a name, for messages."""


def from_environment(settings: Iterable[Setting], environment: Mapping[str, str]) -> Layer:
    """Return the settings in environment variables; empty ones are not set."""
    given = {
        setting.keyword: environment[setting.variable] for setting in settings if environment.get(setting.variable)
    }
    return Layer("environment", given, lambda name: f"LM_{name.upper()}")


def merge(sections: Mapping[str, type], layers: Sequence[Layer]) -> tuple[Values, dict[str, str]]:
    """Merge values, those of later layers replacing those of earlier ones; None means not given.

    Returns:
        The values by section, and the source of each by key, such as "training.steps".

    Raises:
        UsageError: a name is unknown or a value invalid.
    """
    known = {name: setting for setting in list_all_settings(sections) for name in (setting.keyword, setting.key)}
    values: Values = {section: {} for section in sections}
    sources: dict[str, str] = {}
    for layer in layers:
        given: Values = {section: {} for section in sections}
        for name, own in layer.values.items():
            if name not in known:
                raise UsageError(f"{layer.place(name)}: no such setting")
            value = msgspec.to_builtins(own, enc_hook=partial(_to_builtin, layer.place(name)))
            if value is not None and value != ():
                setting = known[name]
                if setting.name in given[setting.section]:
                    raise UsageError(f"{layer.place(name)}: is given twice")
                given[setting.section][setting.name] = setting.convert(value, layer.place(name))
                sources[setting.key] = layer.source
        values = {section: overlay(values[section], given[section]) for section in sections}
    kept = [f"{section}.{name}" for section, given in values.items() for name in given]
    return values, {key: sources[key] for key in kept}


def _to_builtin(place: str, value: Any) -> Any:
    """Convert a number of NumPy or a path; UsageError for other objects."""
    if getattr(value, "shape", None) == ():
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise UsageError(f"{place}: {value!r} is no value of a setting")


def build_from(config: type[C], options: Mapping[str, Any], *, environment: Mapping[str, str] | None = None) -> C:
    """Build one config from Python keywords, over environment variables if there are any."""
    sections: dict[str, type] = {"": config}
    layers = [from_environment(list_all_settings(sections), environment or {}), Layer("python", options)]
    return config(**merge(sections, layers)[0][""])


LENGTHS = ("steps", "epochs", "tokens", "budget")


def overlay(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Replace values by given ones.

    A given length (steps, epochs, tokens, budget) replaces any other kind of length, and a batch size likewise.
    """
    kept = dict(values)
    for rivals in (LENGTHS, ("batch_size", "batch_tokens")):
        if any(overrides.get(name) is not None for name in rivals):
            kept = {key: value for key, value in kept.items() if key not in rivals}
    return {**kept, **overrides}


def check_requirements(sections: Mapping[str, type], given: Mapping[str, Mapping[str, Any]], values: Any) -> None:
    """Raise UsageError for a given value, other than the default, whose feature is off.

    Args:
        sections: the configs of the given values.
        given: {section: {field: value}}.
        values: of all settings by key; those that are missing are on.
    """
    for setting in list_all_settings(sections):
        is_asked = given.get(setting.section, {}).get(setting.name, setting.default) != setting.default
        if is_asked and not setting.is_on(values):
            raise UsageError(f"{setting.key} has no effect without {setting.requires}")

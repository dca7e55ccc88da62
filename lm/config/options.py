"""One description per option: a dataclass field with type, default, help and limits.

Flags, validation messages, TOML keys and the documentation are derived from these fields.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from lm.errors import UsageError

C = TypeVar("C")


@dataclasses.dataclass(frozen=True)
class Option:
    """The description of one field of a config.

    Attributes:
        kind: the plain type: int, float, str, bool, or tuple for several strings.
        choices: the values allowed, if only some are.
        optional: whether None is allowed; of a field whose type says nothing of it, a config puts a value in its place.
        may_name_files: whether the value can be names of files, which need not be valid UTF-8 as text must.
        unit: the placeholder of the value in help, such as TOKENS.
        default_text: what None or zero means, for help.
        group: the group of help that it belongs to; None: that of its section.
        is_advanced: whether it is for specialists, and set by its key (`--set model.experts=8`); its flag is accepted,
            but not shown.
        requires: the setting of the feature that it belongs to (`lora.rank`, `training.schedule=wsd|cosine`, `… or …`),
            without which it has no effect.
    """

    name: str
    kind: type
    choices: tuple[str, ...]
    optional: bool
    default: Any
    help: str
    minimum: float | None
    maximum: float | None
    flag: str
    may_name_files: bool = False
    unit: str = ""
    default_text: str | None = None
    group: str | None = None
    is_advanced: bool = False
    requires: str = ""

    @property
    def setting(self) -> str:
        """Return its Python keyword: the flag without dashes, which is unique across sections."""
        return self.flag.removeprefix("--").replace("-", "_")

    def check(self, value: Any) -> None:  # noqa: ANN401 (it is the type that is checked)
        """Raise UsageError, naming the option, unless `value` is valid."""
        if value is None and self.optional:
            return
        for problem in self._problems(value):
            raise UsageError(f"{self.name} {problem}", settings=(self.setting,))
        if self.kind in (str, tuple) and not self.may_name_files:
            for text in (value,) if self.kind is str else value:
                check_text(text, name=self.name, settings=(self.setting,))

    def _problems(self, value: Any) -> Iterator[str]:  # noqa: ANN401
        """Yield what is wrong with a value; each check relies on the earlier ones."""
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        fits = is_number if self.kind is float else isinstance(value, self.kind)
        if self.kind is tuple:
            fits = isinstance(value, (list, tuple)) and all(isinstance(part, str) for part in value)
        if not fits or (self.kind is int and isinstance(value, bool)):
            yield f"must be {_NOUNS[self.kind]}, not {format_value(value)}"
        if self.choices and value not in self.choices:
            yield f"cannot be {value!r}{did_you_mean(str(value), self.choices)}; choose from {', '.join(self.choices)}"
        if self.kind is float and not _is_finite(value):
            yield f"must be a finite number, not {format_value(value)}"
        if self.minimum is not None and not value >= self.minimum:
            yield f"must be at least {self.minimum}, not {format_value(value)}"
        if self.maximum is not None and not value <= self.maximum:
            yield f"must be at most {self.maximum}, not {format_value(value)}"
        if self.maximum is None and self.kind in _LARGEST and abs(value) > _LARGEST[self.kind]:
            yield f"must be at most {_LARGEST[self.kind]}, not {format_value(value)}"


def format_value(value: Any) -> str:  # noqa: ANN401
    """Return a wrong value for messages, shortened if long."""
    try:
        text = repr(value)
    except ValueError:  # more digits than Python turns into text
        return "a number of thousands of digits"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]}… ({len(text):,} characters)"


def check_text(text: str, *, name: str, settings: Sequence[str] = ()) -> None:
    """Raise UsageError if a text is not valid UTF-8, as command-line bytes may be (lone surrogates)."""
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise UsageError(f"{name} is not valid UTF-8: {text!r}", settings=settings)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float is large enough for
        return False


_LARGEST: Mapping[type, float] = {int: 2**63 - 1, float: 1e30}
"""The largest value of an option without a maximum: a larger one would overflow int64 or float32."""
_SHOWN = 80
"""Characters of a wrong value that a message shows."""

_NOUNS = {int: "an integer", float: "a number", str: "a word", bool: "true or false", tuple: "a list of strings",
          types.NoneType: "nothing"}  # fmt: skip

_UNITS: Mapping[type, str] = {int: "N", float: "X", str: "TEXT", bool: "true|false", tuple: "TEXT"}


def option(
    default: Any,  # noqa: ANN401
    help: str,  # noqa: A002 (the field's name everywhere else)
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    flag: str | None = None,
    may_name_files: bool = False,
    unit: str | None = None,
    default_text: str | None = None,
    group: str | None = None,
    advanced: bool = False,
    requires: str = "",
) -> Any:  # noqa: ANN401 (dataclasses.field is typed so too)
    """Declare a dataclass field with its description (see `Option`); `flag` if it differs from the name."""
    known = {"help": help, "minimum": minimum, "maximum": maximum, "flag": flag,
             "may_name_files": may_name_files, "unit": unit, "default_text": default_text, "group": group,
             "is_advanced": advanced, "requires": requires}  # fmt: skip
    return dataclasses.field(default=default, metadata=known)


@cache
def list_options(config: type[Any]) -> tuple[Option, ...]:
    hints = get_type_hints(config)
    described = [field for field in dataclasses.fields(config) if "help" in field.metadata]
    return tuple(_describe(field, hints[field.name]) for field in described)


def _describe(field: dataclasses.Field[Any], hint: Any) -> Option:  # noqa: ANN401
    is_union = get_origin(hint) in (Union, types.UnionType)
    if is_union:
        hint = next(part for part in get_args(hint) if part is not type(None))
    choices = get_args(hint) if get_origin(hint) is Literal else ()
    kind: type = str if choices else get_origin(hint) or hint
    return Option(
        name=field.name,
        kind=kind,
        choices=choices,
        optional=is_union or field.default is None,
        default=field.default,
        help=field.metadata["help"],
        minimum=field.metadata["minimum"],
        maximum=field.metadata["maximum"],
        flag=field.metadata["flag"] or "--" + field.name.replace("_", "-"),
        may_name_files=field.metadata["may_name_files"],
        unit=field.metadata["unit"] or ("NAME" if choices else _UNITS[kind]),
        default_text=field.metadata["default_text"],
        group=field.metadata["group"],
        is_advanced=field.metadata["is_advanced"],
        requires=field.metadata["requires"],
    )


def check_requirements(
    sections: Mapping[str, type],
    given: Mapping[str, Mapping[str, Any]],
    values: Mapping[str, Any],
) -> None:
    """Raise UsageError for a given value, other than the default, whose feature is off.

    Args:
        sections: the configs of the given values.
        given: {section: {field: value}}.
        values: of all settings, by names such as "lora.rank"; those that are missing are on.
    """
    for section, config in sections.items():
        kind: Any = config
        for option in list_options(kind):
            is_asked = given.get(section, {}).get(option.name, option.default) != option.default
            if is_asked and not has_effect(option, values):
                features = (one.partition("=")[0].rpartition(".")[2] for one in option.requires.split(" or "))
                raise UsageError(
                    f"{section}.{option.name} has no effect without {option.requires}",
                    settings=(option.name, *features),
                )


def has_effect(option: Option, values: Mapping[str, Any]) -> bool:
    """Return whether the feature that an option requires is on, or its setting missing in `values`."""

    def is_on(feature: str) -> bool:
        name, _, choices = feature.partition("=")
        return name not in values or (values[name] in choices.split("|") if choices else bool(values[name]))

    return not option.requires or any(map(is_on, option.requires.split(" or ")))


class CheckedConfig:
    """A config that validates each described field on creation.

    Lists, as in files and flags, become tuples.
    """

    def replace(self, **changes: Any) -> Self:  # noqa: ANN401 (any field)
        changed: Self = dataclasses.replace(self, **changes)  # type: ignore[type-var]
        return changed

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for option in list_options(kind):
            value = getattr(self, option.name)
            option.check(value)
            if isinstance(value, list):
                object.__setattr__(self, option.name, tuple(value))


def build_config(config: type[C], values: Mapping[str, Any], *, where: str) -> C:
    """Build a config from a mapping.

    Args:
        values: by field name.
        where: the source of the mapping, for messages ("config.json", "[model] of my.toml").

    Raises:
        UsageError: it is not a mapping, a key is missing or unknown (with a suggestion), or a value is invalid.
    """
    if not isinstance(values, Mapping):
        raise UsageError(f"{where}: must be an object of keys and values, not {format_value(values)}")
    known = [field.name for field in dataclasses.fields(config)]  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            raise UsageError(f"{where}: unknown key {key!r}{did_you_mean(key, known)}")
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if field.name not in values and not has_default:
            raise UsageError(f"{where}: {field.name!r} is missing")
    kind: Any = config
    for name, kinds in _plain_fields(kind).items():
        if name in values and not _is_one_of(values[name], kinds):
            nouns = " or ".join(_NOUNS[accepted] for accepted in kinds)
            raise UsageError(f"{where}: {name} must be {nouns}, not {format_value(values[name])}")
        if name in values and not _is_in_range(values[name]):
            raise UsageError(f"{where}: {name} must fit into 64 bits, not {format_value(values[name])}")
    try:
        return config(**values)
    except UsageError as error:
        raise error.at(where) from None


@cache
def _plain_fields(config: type[Any]) -> dict[str, tuple[type, ...]]:
    """Return the accepted types of each field without a description that holds a plain value."""
    kinds_by_field = {}
    hints = get_type_hints(config)
    for field in dataclasses.fields(config):
        hint = hints[field.name]
        kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        if "help" not in field.metadata and set(kinds) <= {int, float, str, bool, types.NoneType}:
            kinds_by_field[field.name] = tuple(kinds)
    return kinds_by_field


def _is_one_of(value: Any, kinds: tuple[type, ...]) -> bool:  # noqa: ANN401
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, kinds) or (isinstance(value, int) and float in kinds)


def _is_in_range(value: Any) -> bool:  # noqa: ANN401
    """Return whether an integer fits into int64; True for other values."""
    if isinstance(value, int):
        return abs(value) <= _LARGEST[int]
    return True


def find_nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that another abbreviates or resembles most; None if none is close.

    --lr abbreviates --learning-rate by its initials, and --temp --temperature by a unique prefix.
    """
    known, letters = list(known), word.strip("-")
    abbreviated = [
        candidate for candidate in known if len(_initials(candidate)) > 1 and _initials(candidate) == letters
    ]
    prefixed = [candidate for candidate in known if len(letters) > 1 and candidate.startswith(word)]
    if abbreviated or len(set(prefixed)) == 1:
        return (abbreviated or prefixed)[0]
    return next(iter(difflib.get_close_matches(word, known, n=1)), None)


def _initials(word: str) -> str:
    return "".join(part[0] for part in word.split("-") if part)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean …?)`, or an empty string if no known word is close."""
    nearest = find_nearest(word, known)
    return f" (did you mean {nearest!r}?)" if nearest else ""

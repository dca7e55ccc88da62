"""The specification of a run: what the user asked for, with the source of each value; without torch."""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from lm.config.data import DataKind
from lm.config.presets import depth_preset_name, find_preset
from lm.config.run_config import CHANGEABLE_ON_RESUME, SECTIONS
from lm.config.settings import LENGTHS, Layer, Values, from_environment, list_all_settings, merge
from lm.config.tokenizer import TokenizerKind
from lm.errors import InputError, UsageError

PathLike = str | os.PathLike[str]
"""A file or folder."""
Settings = Values

_EXPLICIT = ("flag", "python")
"""What gives values for this run alone: conflicts with a run or corpus are errors, others are overridden."""


def is_user_given(source: str | None) -> bool:
    """Return whether a value was, or may have been, given by the user; see `RunSpec.set_by`."""
    return source in (*_EXPLICIT, "environment", "file", "given", None)


@dataclass(frozen=True)
class DataFiles:
    """The files that a run learns from, of text or examples, or of sentence pairs.

    Attributes:
        text: files, globs, folders, - for stdin, or a folder of prepared tokens.
        target: as many files of their translations, line by line.
        validation_source: sources to hold out, instead of a fraction of the pairs.
        validation_target: their translations.
        heads: dependency heads of the words of the sources, a file for each of `source`, and then of `pairs`.
        validation_heads: the same for the validation split.

    Raises:
        UsageError: the files do not go together.
    """

    text: tuple[str, ...] = ()
    source: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    validation_source: str | None = None
    validation_target: str | None = None
    heads: tuple[str, ...] = ()
    validation_heads: str | None = None

    def __post_init__(self) -> None:
        for name in ("text", "source", "target", "pairs", "heads"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if "" in self.names:
            raise UsageError("a file name is empty")
        if self.names.count("-") > 1:
            raise UsageError("stdin (-) stands for one file only: name the others")
        if bool(self.source) != bool(self.target):
            raise UsageError("source and target go together; pairs names files of both")
        if (self.validation_source is None) != (self.validation_target is None):
            raise UsageError("validation_source and validation_target go together")
        if (self.validation_source or self.heads) and not self.are_pairs:
            raise UsageError("validation_source and dependency_heads need source and target, or pairs")
        if bool(self.validation_heads) != bool(self.heads and self.validation_source):
            raise UsageError("validation_dependency_heads go with dependency_heads and validation_source")
        if self.text and self.are_pairs:
            raise UsageError("a run learns from a text or from pairs: give either a corpus, or source and target")

    def __bool__(self) -> bool:
        return bool(self.text or self.are_pairs)

    @property
    def are_pairs(self) -> bool:
        return bool(self.source or self.pairs)

    @property
    def names(self) -> list[str]:
        """Return all names, with text and sources first."""
        held_out = (self.validation_source, self.validation_target, self.validation_heads)
        named = (*self.text, *self.source, *self.pairs, *self.target, *self.heads, *held_out)
        return [name for name in named if name is not None]


@dataclass(frozen=True)
class RunSpec:
    """What a person asks of training: the data, the model, the budget and the start. `resolve` chooses the rest.

    A run starts with random weights, with those of another run (`from_run`; with the setting `lora.rank` these stay as
    they are beside trained adapters), or resumes where it stopped (`resume`).

    Attributes:
        data: files to learn from; a resumed run needs them only if its tokens are gone.
        out: folder of a new run; None for a new one under runs/.
        portable: whether the blocks are to be those that other tools run; not with `from_run`.
        resume: the run to resume, one of its checkpoints, or a folder of runs, for its newest unfinished one.
        tokenizer: a tokenizer.json, or a run, to take the tokenizer of.
        settings: the options that were given, by section.
        set_by: what gave each value: flag, environment, file or python; by name, as in "preset" or "training.steps".
        kind: what the corpus consists of; known once its files were opened.

    Raises:
        UsageError: there is nothing to learn from, or values contradict each other.
    """

    data: DataFiles = field(default_factory=DataFiles)
    out: str | None = None
    preset: str | None = None
    portable: bool = False
    from_run: str | None = None
    resume: str | None = None
    tokenizer: str | None = None
    processes: int = 1
    settings: Settings = field(default_factory=dict)
    set_by: dict[str, str] = field(default_factory=dict)
    kind: DataKind = "text"

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", {section: self.settings.get(section, {}) for section in SECTIONS})
        if self.resume is None and not self.data:
            raise UsageError("name a corpus: text files, folders, globs, or - for stdin; or source and target")
        if self.resume is None:
            self._check_contradictions()
        else:
            self._check_resumed()

    def typed(self, section: str) -> dict[str, Any]:
        """Return the values of a section given for this run alone, by flags or in Python."""
        return {
            name: value
            for name, value in self.settings[section].items()
            if self.set_by.get(f"{section}.{name}") in _EXPLICIT
        }

    def _check_resumed(self) -> None:
        """Raise UsageError if a value is given that a resumed run has fixed since its start."""
        fixed = [name for name in ("out", "preset", "portable", "from_run", "tokenizer") if getattr(self, name)]
        for section in SECTIONS:
            changeable = (*CHANGEABLE_ON_RESUME.get(section, ()), *(LENGTHS if section == "training" else ()))
            fixed += [f"{section}.{name}" for name in self.typed(section) if name not in changeable]
        if fixed:
            raise UsageError(f"a resumed run keeps its {', '.join(fixed)}: leave it out, or start a new run")

    def _check_contradictions(self) -> None:
        """Raise UsageError if values are given for this run that something else decides."""
        if self.portable and self.from_run is not None:
            raise UsageError("a run keeps its blocks: give one of portable and from_run")
        if {"batch_size", "batch_tokens"} <= self.typed("training").keys():
            raise UsageError("give one of batch_size and batch_tokens")
        data, tokenizer = self.data, self.tokenizer or self.from_run
        typed = {section: set(self.typed(section)) for section in SECTIONS}
        for beside, is_given, section, names in (
            ("a corpus of text", data.text, "parallel", typed["parallel"]),
            ("sentence pairs", data.are_pairs, "data", typed["data"] - {"validation"}),
            ("validation sources", data.validation_source, "data", typed["data"] & {"validation"}),
            ("an existing tokenizer", tokenizer, "tokenizer", typed["tokenizer"]),
            ("an existing tokenizer", tokenizer, "parallel", typed["parallel"] & {"separate_vocabularies"}),
        ):
            if is_given:
                refuse_settings(section, names, beside=beside)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunSpec:
        settings = {
            section: {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
            for section, given in values["settings"].items()
        }
        return cls(**{**values, "data": DataFiles(**values["data"]), "settings": settings})


def refuse_settings(section: str, names: Iterable[str], *, beside: str) -> None:
    """Raise UsageError if settings are given beside what decides them."""
    if given := sorted(names):
        keys = ", ".join(f"{section}.{name}" for name in given)
        raise UsageError(f"{keys} cannot be given beside {beside}")


_FILES = {"source": "source", "target": "target", "pairs": "pairs", "dependency_heads": "heads"}
_VALIDATION_FILES = {
    "validation_source": "validation_source", "validation_target": "validation_target",
    "validation_dependency_heads": "validation_heads",
}  # fmt: skip
"""Options of files, with the fields of `DataFiles`."""
_OF_RUNS = ("out", "preset", "from_run", "resume", "tokenizer")


def build_spec(
    corpus: Sequence[PathLike],
    options: Mapping[str, Any],
    *,
    source: Literal["flag", "python"] = "python",
    place: Any = str,
    environment: Mapping[str, str] = os.environ,
) -> RunSpec:
    """Build the specification of a run: a TOML file < environment < options.

    Args:
        corpus: text files, globs, folders, or a folder of prepared tokens.
        options: the options and settings of `lm train` by keyword or key; None means not given.

    Raises:
        UsageError: a name is unknown, a value is wrong, or values contradict each other.
    """
    values = {name: value for name, value in options.items() if value not in (None, (), [])}
    files: dict[str, Any] = {field: _as_names(values.pop(name)) for name, field in _FILES.items() if name in values}
    files |= {field: os.fspath(values.pop(name)) for name, field in _VALIDATION_FILES.items() if name in values}
    data = DataFiles(text=_as_names(corpus), **files)
    run = {name: os.fspath(values.pop(name)) for name in _OF_RUNS if name in values}
    depth, portable, config, processes = (
        values.pop(name, None) for name in ("depth", "portable", "config", "processes")
    )
    if depth is not None:
        named = depth_preset_name(depth, pairs=data.are_pairs)
        if beside := {"preset", "n_layers"} & {*run, *values}:
            raise UsageError(f"depth {depth} is the preset {named}: leave out {' and '.join(sorted(beside))}")
        run["preset"] = named
    if run.get("tokenizer") in get_args(TokenizerKind):
        values["tokenizer.kind"] = run.pop("tokenizer")
    set_by: dict[str, str] = dict.fromkeys(run, source)
    layers = [from_environment(list_all_settings(SECTIONS), environment), Layer(source, values, place)]
    if config is not None and "resume" in run:
        raise UsageError("a resumed run keeps its settings: leave out config, or start a new run")
    if config is not None:
        preset, in_file = read_toml(Path(config))
        layers.insert(0, in_file)
        if preset is not None and "preset" not in run:
            run["preset"], set_by["preset"] = preset, "file"
    settings, by_setting = merge(SECTIONS, layers)
    return RunSpec(
        data=data,
        portable=bool(portable),
        processes=processes or 1,
        settings=settings,
        set_by={**set_by, **by_setting},
        **run,
    )


def _as_names(value: PathLike | Sequence[PathLike]) -> tuple[str, ...]:
    named = [value] if isinstance(value, str | os.PathLike) else value
    return tuple(str(os.fspath(name)) for name in named)


def read_toml(path: Path) -> tuple[str | None, Layer]:
    """Read settings from TOML: the preset's name if given, and a table per section of RunConfig.

    Raises:
        InputError: the file is missing.
        UsageError: it is not TOML, or has no such preset.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not TOML: {error}") from None
    preset = values.pop("preset", None)
    if preset is not None:
        find_preset(str(preset))
    given: dict[str, Any] = {}
    for table, fields in values.items():
        if isinstance(fields, dict):
            given |= {f"{table}.{name}": value for name, value in fields.items()}
        else:
            given[table] = fields
    return preset, Layer("file", given, lambda name: f"{path}: {name}")


def run_spec(*corpus: PathLike, **options: Any) -> RunSpec:
    """Build the specification of a run from Python keywords; see `build_spec`."""
    return build_spec(corpus, options)

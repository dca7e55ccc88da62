"""Keyword arguments of the Python API: the flags of the commands, with underscores."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from lm.config.data import FilesConfig
from lm.config.hardware import read_threads_variable
from lm.config.options import did_you_mean, list_options
from lm.config.presets import depth_preset_name
from lm.config.run_config import SECTIONS
from lm.config.run_spec import DataFiles, RunSpec, Settings, merge_layers
from lm.config.toml import read_toml
from lm.errors import UsageError

C = TypeVar("C")
PathLike = str | os.PathLike[str]
"""A file or folder."""
Value = Any
"""The value of a setting, which its field checks."""


def build_decoding_config(config: type[C], options: Mapping[str, Any]) -> C:
    """Build the settings of `Model.generate` or `Model.translate`; one text may stand for a list of one.

    Raises:
        UsageError: a keyword is unknown, or a value is wrong.
    """
    kind: Any = config
    known = {option.name: option for option in list_options(kind)}
    for name in options:
        if name not in known:
            raise UsageError(f"no setting {name!r}{did_you_mean(name, known)}")
    return config(
        **{
            name: (value,) if known[name].kind is tuple and isinstance(value, str) else value
            for name, value in options.items()
        }
    )


_FILES = ("source", "target", "pairs", "heads")
_VALIDATION = ("validation_source", "validation_target", "validation_heads")
_OF_RUNS = ("out", "preset", "from_run", "tokenizer", "resume")
_OTHERS = ("depth", "portable", "config", "processes")


def build_files_config(options: Mapping[str, Any]) -> tuple[FilesConfig, dict[str, str]]:
    """Return file settings, and the named fields of rows, from keywords."""
    values = _group_by_section(options)
    return FilesConfig(**values["files"]), values["data"]


def run_spec(*corpus: PathLike, **options: Value) -> RunSpec:
    """Build the specification of a run from Python values.

    Args:
        corpus: text files, globs, folders, or a folder of prepared tokens.
        options: the flags and settings of `lm train`, with underscores; None means the default, which for threads is
            LM_THREADS, as for flags.

    Raises:
        UsageError: a keyword is unknown, a value is wrong, or values contradict each other.
    """
    values: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    files: dict[str, Any] = {name: _as_names(values.pop(name)) for name in _FILES if name in values}
    files |= {name: os.fspath(values.pop(name)) for name in _VALIDATION if name in values}
    data = DataFiles(text=_as_names(corpus), **files)
    run = {name: os.fspath(values.pop(name)) for name in _OF_RUNS if name in values}
    depth, portable, config, processes = (values.pop(name, None) for name in _OTHERS)
    if depth is not None:
        named = depth_preset_name(depth, pairs=data.are_pairs)
        if beside := {"preset", "n_layers"} & {*run, *values}:
            raise UsageError(f"depth {depth} is the preset {named}: leave out {' and '.join(sorted(beside))}")
        run["preset"] = named
    preset, in_file = (None, {}) if config is None else read_toml(Path(config))
    threads = read_threads_variable()
    ambient: Settings = {} if threads is None else {"hardware": {"threads": threads}}
    settings, by_setting = merge_layers(
        [("file", in_file), ("environment", ambient), ("python", _group_by_section(values))]
    )
    set_by = dict.fromkeys(run, "python")
    if preset is not None and "preset" not in run:
        run["preset"], set_by["preset"] = preset, "file"
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


def _group_by_section(values: Mapping[str, Any]) -> Settings:
    """Group option values by section and field; UsageError for unknown options or invalid values."""
    known = {option.setting: (section, option) for section, kind in SECTIONS.items() for option in list_options(kind)}
    settings: Settings = {section: {} for section in SECTIONS}
    for name, value in values.items():
        if name not in known:
            hint = did_you_mean(name, [*known, *_FILES, *_VALIDATION, *_OF_RUNS, *_OTHERS])
            raise UsageError(f"unknown keyword {name!r}{hint}")
        section, option = known[name]
        option.check(value)
        settings[section][option.name] = value
    return settings

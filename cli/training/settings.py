"""The settings of a new run, from the preset, the file, the environment, the flags and a budget."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.flags.options import Given
from lm.config.presets import configure, overlaid, portable
from lm.config.run import SECTIONS, RunConfig
from lm.config.toml import read_toml
from lm.run_folder import find_checkpoint, load_config


@dataclass(frozen=True)
class Settings:
    """The config of a new run as far as it is known before the text is tokenized.

    Attributes:
        config: of the run.
        fixed: the fields that the user, or the model to start from, has set, by section: nothing else changes them.
        is_sized: whether a budget chose the preset.
    """

    config: RunConfig
    fixed: dict[str, dict[str, Any]]
    is_sized: bool

    def where_open(self, config: RunConfig, chosen: Mapping[str, Mapping[str, Any]]) -> RunConfig:
        """A config with some fields changed, by section, except those that are fixed."""
        changed = {}
        for section, fields in chosen.items():
            left_open = {name: value for name, value in fields.items() if name not in self.fixed[section]}
            changed[section] = dataclasses.replace(getattr(config, section), **left_open)
        return dataclasses.replace(config, **changed)


def settle(
    preset: str | None,
    file: Path | None,
    weights: Path | None,
    given: Given,
    *,
    default: str,
    is_portable: bool,
    sized: Callable[[str, RunConfig], tuple[str, dict[str, dict[str, Any]]]],
) -> Settings:
    """The settings of a new run: those of the preset, the model to start from, the file, the environment, the flags.

    The last of these wins. If none of them says what to start from, a budget does.

    Args:
        preset: the name of a preset.
        file: a TOML file of settings.
        weights: a run, the shape of whose model is taken.
        given: environment and flags.
        default: the preset if nothing names one.
        is_portable: whether the portable form of the preset is asked for.
        sized: chooses a preset for a budget, and the settings that differ from it.
    """
    named, values = read_toml(file) if file else (None, {})
    ambient, typed = given.ambient, given.typed
    fixed = {name: overlaid(overlaid(values.get(name, {}), ambient[name]), typed[name]) for name in SECTIONS}
    if weights:
        base = vars(load_config(find_checkpoint(weights)).model)
        fixed["model"] = {**base, **fixed["model"]}
    budget = fixed["training"].get("budget")
    if budget is None or preset or named or weights:
        name = preset or named or default
        return Settings(configure(portable(name) if is_portable else name, fixed), fixed, is_sized=False)
    chosen_preset, chosen = sized(budget, configure(portable(default) if is_portable else default, fixed))
    everything = {name: overlaid(chosen.get(name, {}), fixed[name]) for name in SECTIONS}
    return Settings(configure(chosen_preset, everything), fixed, is_sized=True)

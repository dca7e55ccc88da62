"""What a new run is to be, as the preset, the file, the environment, the flags and a budget say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.options import Given
from cli.parallel_corpus import ParallelFiles
from lm.config import SECTIONS, RunConfig
from lm.presets import overlaid, read_toml, resolve


@dataclass(frozen=True)
class Settings:
    """The config of a new run as far as it is known before the text is tokenized.

    Attributes:
        config: of the run.
        said: what of it the user or the model to start from said, by section: whatever else chooses leaves that alone.
        is_sized: whether a budget chose the preset.
    """

    config: RunConfig
    said: dict[str, dict[str, Any]]
    is_sized: bool


def settle(
    preset: str | None,
    file: Path | None,
    weights: Path | None,
    given: Given,
    *,
    default: str,
    corpus: Sequence[str] | ParallelFiles,
) -> Settings:
    """What the preset, the model to start from, the file, the environment and the flags say, the last one winning.

    Where nothing says what to start from, a budget does, for the text or the pairs at hand.
    """
    named, values = read_toml(file) if file else (None, {})
    ambient, typed = given.ambient, given.typed
    said = {name: overlaid(overlaid(values.get(name, {}), ambient[name]), typed[name]) for name in SECTIONS}
    if weights:
        from lm.checkpoint import find_checkpoint, load_config

        base = vars(load_config(find_checkpoint(weights)).model)
        said["model"] = {**base, **said["model"]}
    budget = said["training"].get("budget")
    if budget is None or preset or named or weights:
        return Settings(resolve(preset or named or default, said), said, is_sized=False)
    from cli.training_budget import sized

    checked = resolve(default, said)
    chosen_preset, chosen = sized(corpus, budget, checked)
    everything = {name: overlaid(chosen.get(name, {}), said[name]) for name in SECTIONS}
    return Settings(resolve(chosen_preset, everything), said, is_sized=True)

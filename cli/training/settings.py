"""What a new run is to be, as the preset, the file, the environment, the flags and a budget say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.flags.options import Given
from lm.config.data import ParallelConfig
from lm.config.options import options
from lm.config.presets import overlaid, resolve
from lm.config.run import SECTIONS, RunConfig
from lm.config.toml import read_toml
from lm.config.training import TrainingConfig
from lm.errors import UsageError


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


_OF_TEXT = {"data": ("separator", "field", "supervised")}
_OF_PAIRS = {
    "parallel": tuple(described.name for described in options(ParallelConfig)),
    "training": ("best_by", "bleu_sentences"),
}


def refuse_other_kind(given: Given, *, pairs: bool) -> None:
    """UsageError for a flag of text where the corpus is of pairs, or of pairs where it is text.

    The environment and files of settings may speak of both kinds, and what is switched off is no contradiction.
    """
    for section, names in (_OF_TEXT if pairs else _OF_PAIRS).items():
        typed = given.typed[section]
        for described in options(SECTIONS[section]):
            if described.name in names and typed.get(described.name, False) not in (False, TrainingConfig.best_by):
                kinds = ("text", "pairs") if pairs else ("pairs (--source, --target)", "text")
                raise UsageError(f"{described.flag} is for {kinds[0]}, and the corpus is {kinds[1]}: leave it out")


def settle(
    preset: str | None,
    file: Path | None,
    weights: Path | None,
    given: Given,
    *,
    default: str,
    sized: Callable[[str, RunConfig], tuple[str, dict[str, dict[str, Any]]]],
) -> Settings:
    """What the preset, the model to start from, the file, the environment and the flags say, the last one winning.

    Where nothing says what to start from, a budget does: `sized` gives the preset that suits it, and what of that is
    different.
    """
    named, values = read_toml(file) if file else (None, {})
    ambient, typed = given.ambient, given.typed
    said = {name: overlaid(overlaid(values.get(name, {}), ambient[name]), typed[name]) for name in SECTIONS}
    if weights:
        from lm.run_folder import find_checkpoint, load_config

        base = vars(load_config(find_checkpoint(weights)).model)
        said["model"] = {**base, **said["model"]}
    budget = said["training"].get("budget")
    if budget is None or preset or named or weights:
        return Settings(resolve(preset or named or default, said), said, is_sized=False)
    checked = resolve(default, said)
    chosen_preset, chosen = sized(budget, checked)
    everything = {name: overlaid(chosen.get(name, {}), said[name]) for name in SECTIONS}
    return Settings(resolve(chosen_preset, everything), said, is_sized=True)

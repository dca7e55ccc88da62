"""The specification of a run: what the user asked for, with the source of each value; without torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lm.config.presets import overlay
from lm.config.run_config import CHANGEABLE_ON_RESUME, SECTIONS
from lm.config.training import LENGTHS
from lm.errors import UsageError

Settings = dict[str, dict[str, Any]]
"""{section: {field: value}}, the sections being those of a `RunConfig`."""

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
        validation = [name for name in (self.validation_source, self.validation_target, self.validation_heads) if name]
        if [*self.source, *self.target, *self.pairs, *self.heads, *validation].count("-") > 1:
            raise UsageError("stdin (-) stands for one file only: name the others")
        if bool(self.source) != bool(self.target):
            raise UsageError("source and target go together, or both in one file", settings=("pairs",))
        if (self.validation_source is None) != (self.validation_target is None):
            held_out = ("validation_source", "validation_target")
            raise UsageError("validation sources and targets go together", settings=held_out)
        if self.validation_source is not None and not self.are_pairs:
            raise UsageError("validation sources need sources: give these too", settings=("source", "pairs"))
        if self.heads and not self.are_pairs:
            raise UsageError("dependency heads need sources: give these too", settings=("source", "pairs"))
        if self.heads and self.validation_source and not self.validation_heads:
            raise UsageError("give dependency heads of the validation sources too", settings=("validation_heads",))
        if self.validation_heads and not (self.heads and self.validation_source):
            raise UsageError(
                "dependency heads of validation sources need these sources, and heads of the training sources",
                settings=("validation_source", "heads"),
            )
        if self.text and self.are_pairs:
            raise UsageError(
                "a run learns from a text or from pairs: give either a corpus, or source and target",
                settings=("source", "target"),
            )

    def __bool__(self) -> bool:
        return bool(self.text or self.are_pairs)

    @property
    def are_pairs(self) -> bool:
        return bool(self.source or self.pairs)

    @property
    def first(self) -> str:
        return [*self.text, *self.source, *self.pairs][0]


_CONVERSATIONS = "messages in the corpus"
"""The source of `data.supervised`, if it follows from the rows of the corpus."""


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

    def __post_init__(self) -> None:
        settings = {
            section: {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
            for section, values in self.settings.items()
        }
        object.__setattr__(self, "settings", {section: settings.get(section, {}) for section in SECTIONS})
        if self.resume is None and not self.data:
            raise UsageError(
                "name a corpus: text files, folders, globs, or - for stdin; or source and target",
                settings=("source", "target"),
            )
        if self.resume is not None:
            self._check_resumed()
        else:
            self._check_contradictions()

    def typed(self, section: str) -> dict[str, Any]:
        """Return the values of a section given for this run alone, by flags or in Python."""
        return {
            name: value
            for name, value in self.settings[section].items()
            if self.set_by.get(f"{section}.{name}") in _EXPLICIT
        }

    def with_conversations(self) -> RunSpec:
        """Return the specification for a corpus of conversations, of which the replies are learned."""
        settings = {**self.settings, "data": {**self.settings["data"], "supervised": True}}
        set_by = {**self.set_by, "data.supervised": _CONVERSATIONS}
        return dataclasses.replace(self, settings=settings, set_by=set_by)

    @property
    def has_conversations(self) -> bool:
        """Return whether the corpus is conversations, as found in its rows."""
        return self.set_by.get("data.supervised") == _CONVERSATIONS

    def _check_resumed(self) -> None:
        """Raise UsageError if a value is given that a resumed run has fixed since its start."""
        new = {name for name in ("out", "preset", "portable", "from_run", "tokenizer") if getattr(self, name)}
        changeable = {f"{section}.{name}" for section, names in CHANGEABLE_ON_RESUME.items() for name in names}
        changeable |= {f"training.{name}" for name in LENGTHS}
        kept = new | {name for name in self.set_by if "." in name and name not in changeable}
        if typed := sorted(name for name in kept if self.set_by.get(name) in _EXPLICIT):
            raise UsageError(f"a resumed run keeps its {', '.join(typed)}: leave it out, or start a new run")

    def _check_contradictions(self) -> None:
        """Raise UsageError if values are given for this run that something else decides."""
        if self.portable and self.from_run is not None and self.set_by.get("portable") in _EXPLICIT:
            raise UsageError("a run keeps its blocks: it is not made portable", settings=("portable", "from_run"))
        if {"batch_size", "batch_tokens"} <= self.typed("training").keys():
            raise UsageError("give one of batch_size and batch_tokens", settings=("batch_size", "batch_tokens"))
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
        return cls(**{**values, "data": DataFiles(**values["data"])})


def refuse_settings(section: str, names: Iterable[str], *, beside: str) -> None:
    """Raise UsageError if settings are given beside what decides them."""
    if given := sorted(names):
        keys = ", ".join(f"{section}.{name}" for name in given)
        raise UsageError(f"{keys} cannot be given beside {beside}", settings=given)


def merge_layers(layers: Sequence[tuple[str, Settings]]) -> tuple[Settings, dict[str, str]]:
    """Merge settings, later sources replacing earlier ones; also returns the source of each value.

    Args:
        layers: the name of a source, and its values by section.
    """
    settings: Settings = {name: {} for name in SECTIONS}
    set_by: dict[str, str] = {}
    for source, layer in layers:
        for section, values in layer.items():
            settings[section] = overlay(settings[section], values)
            set_by |= {f"{section}.{name}": source for name in values}
    kept = {f"{section}.{name}" for section, values in settings.items() for name in values}
    return settings, {name: source for name, source in set_by.items() if name in kept}

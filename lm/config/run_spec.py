"""The specification of a run: what the user asked for, with the source of each value; without torch."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_args

from msgspec import Meta

from lm.config.run_config import CHANGEABLE_ON_RESUME, SECTIONS, DataKind, TokenizerKind
from lm.config.settings import (
    LENGTHS,
    Config,
    Count,
    Layer,
    Values,
    from_environment,
    list_all_settings,
    merge,
)
from lm.errors import UsageError

PathLike = str | os.PathLike[str]
"""A file or folder."""
Settings = Values

_EXPLICIT = ("flag", "python")
"""What gives values for this run alone: conflicts with a run or corpus are errors, others are overridden."""


def is_user_given(source: str | None) -> bool:
    """Return whether a value was, or may have been, given by the user; see `RunSpec.set_by`."""
    return source in (*_EXPLICIT, "environment", "file", "given", None)


@dataclass(frozen=True)
class DataFiles(Config):
    """The files that a run learns from.

    Attributes:
        text: files of text, rows or pairs, globs, folders, - for stdin, or a folder of prepared tokens.

    Raises:
        UsageError: the files do not go together.

    Settings:
        source (FILE): Source sentences, one per line. Repeatable.
        target (FILE): Translations of --source, line by line. Repeatable.
        validation_source (FILE): Held-out source sentences, instead of a fraction.
        validation_target (FILE): Translations of --validation-source.
        heads (FILE): Dependency trees of --source: CoNLL heads, as 2 0 2. Repeatable.
        validation_heads (FILE): Dependency trees of --validation-source.
    """

    text: tuple[str, ...] = ()
    source: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    validation_source: str | None = None
    validation_target: str | None = None
    heads: tuple[str, ...] = ()
    validation_heads: str | None = None

    def __post_init__(self) -> None:
        for names in (("source", "target"), ("validation_source", "validation_target")):
            if len({bool(getattr(self, name)) for name in names}) > 1:
                raise UsageError(f"{' and '.join(names)} go together")

    def __bool__(self) -> bool:
        return bool(self.names)

    @property
    def names(self) -> list[str]:
        """Return all names, with text and sources first."""
        held_out = (self.validation_source, self.validation_target, self.validation_heads)
        return [*self.text, *self.source, *self.target, *self.heads, *filter(None, held_out)]


@dataclass(frozen=True)
class RunSpec(Config):
    """What a person asks of training: the data, the model, the budget and the start. `lm.training` chooses the rest.

    A run starts with random weights, with those of another run (`from_run`; with the setting `lora.rank` these stay as
    they are beside trained adapters), or resumes where it stopped (`resume`).

    Attributes:
        data: files to learn from; a resumed run needs them only if its tokens are gone.
        settings: the options that were given, by section.
        set_by: what gave each value: flag, environment, file or python; by name, as in "preset" or "training.steps".
        kind: what the corpus consists of; known once its files were opened.

    Raises:
        UsageError: there is nothing to learn from, or values contradict each other.

    Settings:
        out (FOLDER): Folder of the new run; default in runs/.
        preset (PRESET): Model and training recipe (lm info lists them); default tiny.
        depth (LAYERS): Number of layers; width follows (preset depth-N).
        portable: Of texts: Qwen3 blocks, for llama.cpp and CTranslate2.
        config (FILE): Settings from a TOML file: preset, [model], …
        from_run (RUN): Start from the weights and tokenizer of this run.
        tokenizer (bpe|char|byte|FILE): Kind of tokenizer to train, or a tokenizer.json or run to take it of.
        resume (RUN): Resume this run; with out, a checkpoint.
        processes: Data-parallel processes, one per GPU.
    """

    data: DataFiles = field(default_factory=DataFiles)
    out: str | None = None
    preset: str | None = None
    depth: Annotated[int, Meta(ge=1, le=99)] | None = None
    portable: bool = False
    config: str | None = None
    from_run: str | None = None
    tokenizer: str | None = None
    resume: str | None = None
    processes: Count = 1
    settings: Settings = field(default_factory=dict)
    set_by: dict[str, str] = field(default_factory=dict)
    kind: DataKind | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", {section: self.settings.get(section, {}) for section in SECTIONS})
        if self.resume is not None:
            self._check_resumed()
        elif not self.data:
            raise UsageError("name a corpus: text files, folders, globs, or - for stdin; or source and target")
        elif self.from_run is not None and (self.portable or self.depth is not None):
            raise UsageError("a run keeps its blocks and layers: leave out portable and depth")
        elif {"batch_size", "batch_tokens"} <= self.typed("training").keys():
            raise UsageError("give one of batch_size and batch_tokens")
        elif self.kind not in (None, "pairs"):
            refuse_settings("parallel", self.typed("parallel"), beside=f"a corpus of {self.kind}")
        elif self.depth is not None and (self.preset is not None or "n_layers" in self.settings["model"]):
            raise UsageError("depth is a preset and a number of layers: leave out preset and n_layers")
        if self.tokenizer or self.from_run or self.settings["training"].get("teacher"):
            refuse_settings("tokenizer", self.typed("tokenizer"), beside="an existing tokenizer")
            separate = self.typed("parallel").keys() & {"separate_vocabularies"}
            refuse_settings("parallel", separate, beside="an existing tokenizer")

    def typed(self, section: str) -> dict[str, Any]:
        """Return the values of a section given for this run alone, by flags or in Python."""
        given = self.settings[section].items()
        return {name: value for name, value in given if self.set_by.get(f"{section}.{name}") in _EXPLICIT}

    def _check_resumed(self) -> None:
        """Raise UsageError if a value is given that a resumed run has fixed since its start."""
        given = {name for name, source in self.set_by.items() if source in _EXPLICIT and not name.startswith("corpus.")}
        own = {"resume", "out", "processes", *(f"training.{name}" for name in LENGTHS)}
        if fixed := sorted(given - own - CHANGEABLE_ON_RESUME):
            raise UsageError(f"a resumed run keeps its {', '.join(fixed)}: leave it out, or start a new run")


SPEC_SECTIONS = {"run": RunSpec, "corpus": DataFiles, **SECTIONS}
"""What can be given for a run: its files and start, and the settings."""


def refuse_settings(section: str, names: Iterable[str], *, beside: str) -> None:
    """Raise UsageError if settings are given beside what decides them."""
    if given := sorted(names):
        keys = ", ".join(f"{section}.{name}" for name in given)
        raise UsageError(f"{keys} cannot be given beside {beside}")


def build_spec(corpus: Sequence[PathLike], options: Layer) -> RunSpec:
    """Build the specification of a run: a TOML file < environment < options.

    Args:
        corpus: text files, globs, folders, or a folder of prepared tokens.
        options: the options and settings of `lm train` by keyword or key; None means not given.

    Raises:
        UsageError: a name is unknown, a value is wrong, or values contradict each other.
    """
    layers = [from_environment(list_all_settings(SPEC_SECTIONS), os.environ), options]
    if path := options.values.get("config") or layers[0].values.get("config"):
        layers.insert(0, read_toml(Path(path)))
    settings, set_by = merge(SPEC_SECTIONS, layers)
    run, files = settings.pop("run"), settings.pop("corpus")
    if run.get("tokenizer") in get_args(TokenizerKind):
        settings["tokenizer"]["kind"], set_by["tokenizer.kind"] = run.pop("tokenizer"), set_by.pop("run.tokenizer")
    set_by = {key.removeprefix("run."): by for key, by in set_by.items()}
    names = tuple(os.fspath(name) for name in corpus)
    return RunSpec(DataFiles(names, **files), **run, settings=settings, set_by=set_by)


def read_toml(path: Path) -> Layer:
    """Read settings from TOML: a table per section, and those that have none, such as the preset.

    Raises:
        OSError: the file cannot be read.
        UsageError: it is not TOML.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise UsageError(f"{path}: not TOML: {error}") from None
    given: dict[str, Any] = {}
    for table, fields in values.items():
        prefix, named = (f"{table}.", fields) if isinstance(fields, dict) else ("", {table: fields})
        given |= {prefix + name: value for name, value in named.items()}
    return Layer("file", given, lambda name: f"{path}: {name}")


def run_spec(*corpus: PathLike, **options: Any) -> RunSpec:
    """Build the specification of a run from Python keywords; see `build_spec`."""
    return build_spec(corpus, Layer("python", options))

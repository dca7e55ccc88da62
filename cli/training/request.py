"""What a user asks of `lm train`: the files to learn from, and what a new run starts from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.flags.options import Given
from lm.config.presets import named_by_depth
from lm.errors import UsageError
from lm.text.files import refuse_stdin_twice

RUNS = Path("runs")
"""Where runs are that the user gives no folder."""


@dataclass(frozen=True)
class PairFiles:
    """Files of sentences and their translations.

    Attributes:
        source: files of sources.
        target: as many files of their translations, line by line.
        pairs: files that hold both sides.
        validation_source: sources to hold out, instead of a share of the pairs.
        validation_target: their translations.
        heads: files of the heads of the sources' words: of sources, and then of both sides.
        validation_heads: the same of the validation split.

    Raises:
        UsageError: files of one side lack those of the other, or heads the text that they belong to, or stdin stands
            for two files.
    """

    source: Sequence[str] = ()
    target: Sequence[str] = ()
    pairs: Sequence[str] = ()
    validation_source: str | None = None
    validation_target: str | None = None
    heads: Sequence[str] = ()
    validation_heads: str | None = None

    def __post_init__(self) -> None:
        validation = [name for name in (self.validation_source, self.validation_target, self.validation_heads) if name]
        refuse_stdin_twice([*self.source, *self.target, *self.pairs, *self.heads, *validation])
        if bool(self.source) != bool(self.target):
            raise UsageError("--source and --target go together (or both in one file: --pairs)")
        if (self.validation_source is None) != (self.validation_target is None):
            raise UsageError("--validation-source and --validation-target go together")
        if self.heads and not self:
            raise UsageError("--heads are of the words of sources: give these too (--source, or --pairs)")
        if self.heads and self.validation_source and not self.validation_heads:
            raise UsageError("give the heads of --validation-source too (--validation-heads)")
        if self.validation_heads and not (self.heads and self.validation_source):
            raise UsageError("--validation-heads goes with --heads and --validation-source")

    def __bool__(self) -> bool:
        return bool(self.source or self.pairs)


@dataclass(frozen=True)
class TrainingFiles:
    """The files that a run learns from: of text or examples, or of pairs.

    Attributes:
        text: files, globs, folders, - for stdin, or a folder of prepared tokens.
        pairs: files of sentences and their translations.

    Raises:
        UsageError: there are both.
    """

    text: Sequence[str]
    pairs: PairFiles

    def __post_init__(self) -> None:
        if self.text and self.pairs:
            raise UsageError("a run learns from a text or from pairs: give either a corpus, or --source and --target")

    def __bool__(self) -> bool:
        return bool(self.text or self.pairs)

    @property
    def first(self) -> str:
        """The name of the first file."""
        return [*self.text, *self.pairs.source, *self.pairs.pairs][0]


@dataclass(frozen=True)
class NewRun:
    """What the user gives for a new run besides its settings.

    Attributes:
        out: the folder to be made.
        preset: the name of the settings to start from.
        depth: the number of layers that names a preset.
        portable: whether the blocks are to be those that other systems run; not where another run brings its own.
        config: a TOML file of settings.
        weights: a run to start from the weights of.
        tokenizer: a tokenizer.json, or a run, to take the tokenizer of.
    """

    out: Path | None
    preset: str | None
    depth: int | None
    portable: bool
    config: Path | None
    weights: Path | None
    tokenizer: Path | None

    @property
    def is_portable(self) -> bool:
        """Whether new blocks are to be those that other systems run."""
        return self.portable and self.weights is None

    def named_preset(self, given: Given, *, pairs: bool) -> str | None:
        """The preset that `preset` or `depth` names, if one does; flags win over the environment.

        Raises:
            UsageError: both are given in the same way.
        """
        if self.depth is None:
            return self.preset
        named = named_by_depth(self.depth, pairs=pairs)
        if self.preset and not {"preset", "depth"} & given.environment.keys():
            raise UsageError(f"--depth {self.depth} is the preset {named}: leave out --preset")
        return self.preset if self.preset and "depth" in given.environment else named


@dataclass(frozen=True)
class Request:
    """What the user asks for: a new run, or one that goes on.

    Attributes:
        files: to learn from; a run that goes on needs them only if its tokens are gone.
        new: what is given for a new run.
        resume: the run to go on with, if it is none that is new.
    """

    files: TrainingFiles
    new: NewRun
    resume: Path | None

    def check(self) -> None:
        """Raise UsageError if there is nothing to learn from."""
        if not self.resume and not self.files:
            raise UsageError("name a corpus: text files, folders, globs, or - for stdin; or --source and --target")

"""The systems that `lm evaluate` scores: runs that translate now, and files of finished translations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

from cli.console.escapes import label
from cli.console.messages import note
from cli.console.progress import progress
from cli.flags.options import Given
from lm.config.decoding import TranslationConfig
from lm.config.evaluation import ScoringConfig
from lm.config.hardware import HardwareConfig
from lm.config.model import check_heads_given
from lm.decoding.translation import Translator
from lm.decoding.translation_input import TranslationModel
from lm.engine.dtype import load_to_decode
from lm.errors import UsageError
from lm.files import replaced
from lm.run_folder import find_checkpoint, load_config
from lm.text.files import text_files
from lm.text.parallel import ParallelText, language_of_file
from lm.text.streams import file_lines
from lm.text.trees import Heads, with_heads

_LOOKS_TOKENIZED = 0.5  # of the lines end in " ."


@dataclass(frozen=True)
class System:
    """The translations of one system.

    Attributes:
        name: the run, or the file of translations.
        lines: the translations, line by line.
    """

    name: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Translators:
    """Makes translations by runs.

    Attributes:
        given: the settings.
        language: to translate into, if the user asks for one.
        target: a file of references, whose name may tell the language otherwise.
        heads: of the words of the sources, for runs that read dependency trees.
    """

    given: Given
    language: str | None
    target: str
    heads: Sequence[Heads] | None = None

    def translate(self, run: Path, sources: Sequence[str] | None) -> list[str]:
        """Translate lines by a run, with a bar on stderr if that is a terminal.

        Raises:
            UsageError: there is nothing to translate, or the run does not translate into the language.
        """
        if sources is None:
            raise UsageError(f"{run}: a run needs something to translate: give --source")
        model = TranslationModel.of(load_to_decode(run, HardwareConfig(**self.given["hardware"])))
        translator = Translator([model], TranslationConfig(**self.given["translation"]), to=self._language(model))
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
        with progress(*columns, TimeRemainingColumn(elapsed_when_finished=True)) as bar:
            heads = None if model.model.config.syntax == "none" else self.heads
            results = translator.translate(sources, heads=heads)
            done = bar.track(results, total=len(sources), description=f"translating with {label(run)}")
            return [one.translations[0].text for one in done]

    def _language(self, model: TranslationModel) -> str | None:
        """The language, of a model with several directions: what the user asks for, or what the file's name tells."""
        tag = model.tag_to(self.language, told_by_file=language_of_file(self.target))
        return None if tag is None else tag.language


def read_lines(path: str, targets: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """The lines of a file, and those of each file of references.

    Raises:
        InputError: a file is missing or no text, or the files differ in their numbers of lines.
        UsageError: the path stands for several files.
    """
    files, references = text_files([path]), text_files(targets)
    if len(files) > 1:
        raise UsageError(f"{path}: stands for {len(files)} files; name one")
    read: list[str] = []
    columns = []
    for reference in references:
        pairs = list(ParallelText(files[0], reference, ("", "")).pairs())
        read = [pair.source for pair in pairs]
        columns.append([pair.target for pair in pairs])
    return read, columns


def read_heads(path: Path | None, sources: Sequence[str], *, source: str) -> list[Heads] | None:
    """The heads of sources' words, line by line of a file; InputError where they are no tree of their source."""
    if path is None:
        return None
    return [heads for _, heads in with_heads(sources, file_lines(path), sentence=str, names=(source, str(path)))]


def check_runs(runs: Sequence[Path], *, has_heads: bool) -> None:
    """Raise UsageError unless heads are given to runs of which one at least reads trees, and to no others."""
    configs = [load_config(find_checkpoint(run)).model for run in runs if run.is_dir()]
    check_heads_given(*configs, are_given=has_heads)


def write(path: Path, system: System) -> None:
    """Write translations to a file, line by line."""
    with replaced(path) as file:
        file.writelines(line + "\n" for line in system.lines)
    note(f"wrote {path}")


def warn_of_tokenized_text(system: System, config: ScoringConfig) -> None:
    """Note that translations look tokenized, where they are about to be tokenized again."""
    tokenized = sum(line.endswith(" .") for line in system.lines)
    if config.tokenize != "none" and tokenized > _LOOKS_TOKENIZED * len(system.lines):
        note("the translations look tokenized (they end in ' .'): scores of plain text compare, or use --tokenize none")

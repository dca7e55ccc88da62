"""`lm evaluate`: the systems that are scored (runs, or files of translations), and reports of their scores."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.console.escapes import format_json_line, format_label
from cli.console.messages import print_labelled, print_note, print_notes, print_paragraph, print_warnings
from cli.console.numbers import format_number_of
from cli.console.progress import show_counter
from cli.console.tables import print_table
from cli.options import Options
from lm.checkpoint import LoadedModel, load_model
from lm.config.data import FilesConfig, ParallelTextConfig
from lm.config.decoding import TranslationConfig
from lm.config.evaluation import ScoringConfig
from lm.config.hardware import HardwareConfig
from lm.config.model import check_heads_given
from lm.decoding.translation import Translator
from lm.decoding.translation_input import TranslationModel
from lm.engine.fastest_dtype import load_for_decoding
from lm.errors import InputError, UsageError
from lm.evaluation import translation_scores
from lm.evaluation.contamination import ContaminationCheck
from lm.evaluation.held_out import HELD_OUT_NAME, open_held_out_pairs
from lm.evaluation.translation_scores import SystemComparison, TranslationScore
from lm.files import atomic_write_text
from lm.hardware import select_inference_hardware
from lm.run_folder import find_checkpoint, load_config
from lm.text.decode import read_file_lines, split_lines
from lm.text.dependency_trees import DependencyHeads, attach_heads
from lm.text.find import find_text_files
from lm.text.parallel_text import ParallelText, find_parallel_texts, guess_language
from lm.text.records import Record
from lm.text.text_file import TextFile

_TOKENIZED_FRACTION = 0.5  # of lines that end in " ."


@dataclass(frozen=True)
class SystemOutput:
    """The translations of a run, or of a file, line by line."""

    name: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Texts:
    """What systems translate, and what their translations are compared with."""

    sources: Sequence[str] | None
    """Line by line; None where all translations are read from files."""
    references: Sequence[Sequence[str]]
    """One or several translations of all lines."""
    name: str
    """Of their files, for messages."""
    heads: Sequence[DependencyHeads] | None = None
    """Of the words of the sources, for runs that read dependency trees."""
    language: str | None = None
    """Of the references, where that is known."""


@dataclass(frozen=True)
class RunTranslator:
    """Translates texts with runs, into the language that the user asks for, or that of the references."""

    options: Options
    language: str | None
    texts: Texts

    def translate(self, run: Path) -> list[str]:
        """Translate all lines with a run."""
        sources = self.texts.sources
        if sources is None:
            raise UsageError(f"{run}: a run needs something to translate: give --source")
        loaded = load_for_decoding(run, self.options.build(HardwareConfig))
        self._warn_of_training_pairs(loaded, sources)
        model = TranslationModel.from_loaded(loaded)
        tag = model.tag_to(self.language, file_language=self.texts.language)
        language = None if tag is None else tag.language
        translator = Translator([model], self.options.build(TranslationConfig), to=language)
        heads = None if model.model.config.syntax == "none" else self.texts.heads
        translations: list[str] = []
        with show_counter(f"translating with {format_label(run)}", "lines", total=len(sources)) as count:
            for line in translator.translate(sources, dependency_heads=heads):
                translations.append(line.translations[0].text)
                count(len(translations))
        return translations

    def _warn_of_training_pairs(self, loaded: LoadedModel, sources: Sequence[str]) -> None:
        """Warn if the sources and their first references were training pairs of a run."""
        check = ContaminationCheck(loaded)
        pairs = zip(sources, self.texts.references[0], strict=True)
        check.add_pairs(itertools.starmap(Record.of_pair, pairs))
        print_warnings(check.warnings([self.texts.name]))


def read_lines(path: str, targets: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return the lines of a file, and those of each file of references; all must have as many."""
    file, references = _find_single_file(path), find_text_files(targets)
    read: list[str] = []
    columns = []
    for reference in references:
        pairs = list(ParallelText(file, reference).records())
        read = [pair.source or "" for pair in pairs]
        columns.append([pair.text for pair in pairs])
    return read, columns


def read_system(path: str, targets: Sequence[str], texts: Texts) -> list[str]:
    """Return the translations in a file, one for each reference in `targets`, or else in `texts`."""
    if targets:
        return read_lines(path, targets)[0]
    lines = [line.strip() for line in split_lines(_find_single_file(path).text())]
    if len(lines) != len(texts.references[0]):
        counts = format_number_of(len(lines), "line"), format_number_of(len(texts.references[0]), "pair")
        problem = f"{path}: has {counts[0]}, and there are {counts[1]}"
        raise InputError(f"{problem}: line n must be a translation of the source of pair n")
    return lines


def read_pairs(paths: Sequence[str], heads: Path | None, *, run: Path | None, options: Options) -> Texts:
    """Return the texts in files of pairs; columns that aren't given are those that the run was trained on."""
    trained = ParallelTextConfig() if run is None else load_config(find_checkpoint(run)).parallel
    columns, reading = trained.for_other_files(**options.values["parallel"]), options.build(FilesConfig)
    texts = find_parallel_texts(columns, reading, pairs=paths, heads=() if heads is None else [str(heads)])
    pairs = [pair for text in texts for pair in text.records()]
    print_notes(note for text in texts for note in text.notes)
    trees = None if heads is None else [pair.dependency_heads or () for pair in pairs]
    sources, targets = [pair.source or "" for pair in pairs], [pair.text for pair in pairs]
    return Texts(sources, [targets], ", ".join(text.name for text in texts), trees, texts[0].languages[1])


def _find_single_file(path: str) -> TextFile:
    files = find_text_files([path])
    if len(files) > 1:
        raise UsageError(f"{path}: matches {len(files)} files; name one")
    return files[0]


def read_texts(source: str | None, targets: Sequence[str], heads: Path | None) -> Texts:
    """Return the texts in files: of sources, of references, and of dependency trees."""
    lines, references = read_lines(source or targets[0], targets)
    trees = None
    if heads is not None:
        attached = attach_heads(lines, read_file_lines(heads), sentence=str, names=(str(source), str(heads)))
        trees = [tree for _, tree in attached]
    name = f"{source} and {targets[0]}"
    return Texts(None if source is None else lines, references, name, trees, guess_language(targets[0]))


def open_held_out_texts(run: Path) -> Texts:
    """Return the pairs that a run held out."""
    text, language = open_held_out_pairs(load_model(run, select_inference_hardware(HardwareConfig(device="cpu"))))
    pairs = list(text.records())
    heads = None if text.heads is None else [pair.dependency_heads or () for pair in pairs]
    print_labelled("note", f"scored on {format_number_of(len(pairs), 'pair')} that {run} held out")
    return Texts([pair.source or "" for pair in pairs], [[pair.text for pair in pairs]], HELD_OUT_NAME, heads, language)


def check_runs(runs: Sequence[Path], *, has_dependency_heads: bool) -> None:
    """Raise UsageError unless heads are given to runs of which one at least reads trees, and to no others."""
    configs = [load_config(find_checkpoint(run)).model for run in runs if run.is_dir()]
    check_heads_given(*configs, are_given=has_dependency_heads)


def write_system(path: Path, system: SystemOutput) -> None:
    """Write translations to a file, line by line."""
    with atomic_write_text(path) as file:
        file.writelines(line + "\n" for line in system.lines)
    print_note(f"wrote {path}")


def warn_of_tokenized_text(system: SystemOutput, config: ScoringConfig) -> None:
    """Warn if translations look tokenised and will be tokenised again."""
    tokenized = sum(line.endswith(" .") for line in system.lines)
    if config.tokenize != "none" and tokenized > _TOKENIZED_FRACTION * len(system.lines):
        print_note(
            "the translations look tokenized (they end in ' .'): scores of plain text compare, or use --tokenize none"
        )


_SIGNIFICANCE = 0.05


def report_scores(
    system: SystemOutput, references: Sequence[Sequence[str]], config: ScoringConfig, *, as_json: bool
) -> None:
    """Score translations against references, and print the scores."""
    scores = translation_scores.score_translations(system.lines, references, config)
    exact = translation_scores.count_exact_matches(system.lines, references)
    print_report = print_scores_json if as_json else print_scores
    print_report(scores, name=system.name, lines=len(system.lines), exact=exact)


def report_comparison(
    first: SystemOutput,
    second: SystemOutput,
    references: Sequence[Sequence[str]],
    config: ScoringConfig,
    *,
    as_json: bool,
) -> None:
    """Score two systems against references, and print their difference."""
    comparisons = translation_scores.compare_systems(first.lines, second.lines, references, config)
    print_report = print_comparisons_json if as_json else print_comparisons
    print_report(comparisons, (first.name, second.name), lines=len(first.lines))


def print_scores(scores: Sequence[TranslationScore], *, name: str, lines: int, exact: int) -> None:
    """Print a row per metric, and the metrics' signatures; `exact` lines equal a reference."""
    print_table(
        ("metric", "score", "95% interval"),
        [[score.metric, f"{score.value:.2f}", _interval(score)] for score in scores],
    )
    print_paragraph(f"{lines:,} lines of {name}, {exact:,} of them identical to a reference")
    _print_signatures(scores)


def print_comparisons(comparisons: Sequence[SystemComparison], names: tuple[str, str], *, lines: int) -> None:
    """Print a row per metric, the metrics' signatures, and the verdict."""
    rows = [
        [
            comparison.first.metric,
            f"{comparison.first.value:.2f}",
            _interval(comparison.first),
            f"{comparison.second.value:.2f}",
            _interval(comparison.second),
            f"{comparison.difference:+.2f}",
            "–" if comparison.p_value is None else f"{comparison.p_value:.3f}",
        ]
        for comparison in comparisons
    ]
    print_table(("metric", "first", "95% interval", "second", "95% interval", "difference", "p"), rows)
    tested = any(comparison.first.mean is not None for comparison in comparisons)
    method = "; p by paired bootstrap resampling" if tested else ""
    print_paragraph(f"{lines:,} lines; first: {names[0]}, second: {names[1]}{method}")
    _print_signatures([comparison.first for comparison in comparisons])
    print_paragraph(verdict(comparisons[0], names))


def _print_signatures(scores: Sequence[TranslationScore]) -> None:
    for score in scores:
        print(f"{score.metric}|{score.signature}")


def verdict(bleu: SystemComparison, names: tuple[str, str]) -> str:
    """Return the conclusion from a difference in BLEU, as a sentence."""
    if not bleu.difference:
        return "the two do not differ in BLEU"
    better, worse = names if bleu.difference > 0 else names[::-1]
    if bleu.p_value is None:
        return f"{better} is ahead of {worse} by {abs(bleu.difference):.2f} BLEU; whether by chance is not tested"
    margin = f"{abs(bleu.difference):.2f} BLEU (p = {bleu.p_value:.3f})"
    if bleu.p_value >= _SIGNIFICANCE:
        return f"no clear difference: {better} is ahead of {worse} by {margin}"
    return f"{better} is better than {worse} by {margin}"


def print_scores_json(scores: Sequence[TranslationScore], *, name: str, lines: int, exact: int) -> None:
    """Print one object: `scores` by metric, and what was scored."""
    print(format_json_line({"system": name, "lines": lines, "exact": exact, "scores": _by_metric(scores)}))


def print_comparisons_json(comparisons: Sequence[SystemComparison], names: tuple[str, str], *, lines: int) -> None:
    """Print one object: `first` and `second`, each with its scores, and `difference` and `p_value` by metric."""
    report = {
        "lines": lines,
        "first": {"system": names[0], "scores": _by_metric([comparison.first for comparison in comparisons])},
        "second": {"system": names[1], "scores": _by_metric([comparison.second for comparison in comparisons])},
        "difference": {comparison.first.metric: comparison.difference for comparison in comparisons},
        "p_value": {comparison.first.metric: comparison.p_value for comparison in comparisons},
    }
    print(format_json_line(report))


def _by_metric(scores: Sequence[TranslationScore]) -> dict[str, dict[str, Any]]:
    """Return the fields of each score, except the metric, by metric."""
    fields = [dataclasses.asdict(score) for score in scores]
    return {values.pop("metric"): values for values in fields}


def _interval(score: TranslationScore) -> str:
    if score.mean is None or score.half_width is None:
        return "–"
    return f"{score.mean:.2f} ± {score.half_width:.2f}"

"""Scores classifiers and translations for `lm evaluate`, and prints the reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cli.console.progress import show_counter
from cli.console.tables import print_table
from cli.console.text import (
    format_json_line,
    format_label,
    format_number_of,
    format_value,
    print_labelled,
    print_note,
    print_notes,
    print_paragraph,
    print_warnings,
)
from cli.loading import load_classifier
from cli.options import Options
from lm.config.data import FilesConfig, ParallelTextConfig
from lm.config.decoding import ClassificationConfig, TranslationConfig
from lm.config.evaluation import ScoringConfig
from lm.config.hardware import HardwareConfig
from lm.config.model import check_heads_given
from lm.decoding.translation import TranslationModel, Translator
from lm.engine.fastest_dtype import load_for_decoding
from lm.errors import UsageError, list_some
from lm.evaluation.classification import CONFIDENCE, ClassificationScores, evaluate_classifier
from lm.evaluation.contamination import ContaminationCheck
from lm.evaluation.held_out import open_held_out, open_texts
from lm.evaluation.translation_scores import TranslationScore, count_exact_matches, score_translations
from lm.files import atomic_write_text
from lm.run_folder import find_checkpoint, load_config
from lm.text.decode import read_file_lines
from lm.text.dependency_trees import DependencyHeads
from lm.text.parallel_text import ParallelText, find_parallel_texts
from lm.text.records import Record

_MAX_MATRIX_LABELS = 12
"""Labels of a confusion matrix that is printed whole."""
_SHOWN_CONFUSIONS, _SHOWN_UNKNOWN = 20, 5
_SIGNIFICANCE = 0.05


def evaluate_labels(run: Path, files: Sequence[str], labels: str | None, *, as_json: bool, options: Options) -> None:
    """Score a classifier on labelled examples; without files, on those that it held out."""
    batch_size = options.build(ClassificationConfig).batch_size
    classifier, loaded = load_classifier(run, options.build(HardwareConfig), labels=labels, batch_size=batch_size)
    check = ContaminationCheck(loaded)
    texts = open_texts(loaded, files, options.build(FilesConfig), options.values["data"], kind="examples")
    with show_counter("classifying", "examples") as count:
        scores = evaluate_classifier(classifier, check.watch_examples(texts.files), progress=count)
    print_notes(note for file in texts.files for note in file.notes)
    print_warnings(check.warnings(texts.names))
    if as_json:
        print(format_json_line(classification_to_dict(scores, run=str(run))))
    else:
        print_classification(scores, run=str(run), examples="examples" if files else "held-out examples")
    warn_of_unknown_labels(scores.unknown)


def print_classification(scores: ClassificationScores, *, run: str, examples: str) -> None:
    """Print accuracy, interval and baseline, then tables of labels and confusions."""
    low, high = scores.interval
    counted = f"{scores.correct:,} of {scores.examples:,} {examples} by {run}"
    print_paragraph(f"accuracy {scores.accuracy:.1%} ({CONFIDENCE:.0%} interval {low:.1%} to {high:.1%}): {counted}")
    print_paragraph(f"majority baseline {scores.majority_accuracy:.1%}: always {scores.majority.label!r}")
    print_paragraph(f"macro F1 {scores.macro_f1:.3f}\n")
    rows = [
        (one.label, *(format_value(value, 3) for value in (one.precision, one.recall, one.f1)), f"{one.support:,}")
        for one in scores.by_label
    ]
    print_table(("label", "precision", "recall", "F1", "support"), rows)
    matrix = scores.confusion.tolist()
    if len(scores.labels) <= _MAX_MATRIX_LABELS:
        print_paragraph("\nconfusion matrix: a row for each label, a column for each prediction")
        counts = [(label, *map(str, row)) for label, row in zip(scores.labels, matrix, strict=True)]
        print_table(("", *scores.labels), counts)
        return
    confused = sorted(
        (-count, label, predicted)
        for label, row in zip(scores.labels, matrix, strict=True)
        for predicted, count in zip(scores.labels, row, strict=True)
        if count and predicted != label
    )[:_SHOWN_CONFUSIONS]
    print_paragraph(f"\nmost frequent confusions, of {len(scores.labels)} labels (--json has the whole matrix)")
    print_table(("label", "predicted", "count"), [(label, predicted, f"{-n:,}") for n, label, predicted in confused])


def classification_to_dict(scores: ClassificationScores, *, run: str) -> dict[str, Any]:
    """Convert scores; the confusion matrix has a row for each label and a column for each prediction."""
    low, high = scores.interval
    return {
        "run": run,
        "examples": scores.examples,
        "correct": scores.correct,
        "accuracy": scores.accuracy,
        "interval": {"low": low, "high": high, "confidence": CONFIDENCE, "method": "wilson"},
        "majority": {"label": scores.majority.label, "accuracy": scores.majority_accuracy},
        "macro_f1": scores.macro_f1,
        "labels": [asdict(of_label) for of_label in scores.by_label],
        "confusion": {"labels": scores.labels, "matrix": scores.confusion.tolist()},
        "unknown": scores.unknown,
    }


def warn_of_unknown_labels(counts: Mapping[str, int]) -> None:
    """Warn on stderr of labels that the model cannot predict, with the number of texts of each."""
    if counts:
        some = list_some([*map(repr, counts)], limit=_SHOWN_UNKNOWN)
        texts = format_number_of(sum(counts.values()), "text")
        print_labelled("warning", f"unknown to this model: {some}; {texts} with these labels count as wrong")


@dataclass(frozen=True)
class Texts:
    """What systems translate, and what their translations are compared with.

    Attributes:
        name: of the files, for messages.
        sources: line by line; None where all translations are read from files.
        references: one or several translations of all lines.
        heads: dependency trees of the sources, for runs that read them.
        language: of the references, if known.
    """

    name: str
    sources: Sequence[str] | None
    references: Sequence[Sequence[str]]
    heads: Sequence[DependencyHeads] | None = None
    language: str | None = None

    @classmethod
    def of_pairs(cls, files: Sequence[ParallelText], language: str | None = None) -> Texts:
        pairs = [pair for file in files for pair in file.records()]
        heads = [pair.dependency_heads or () for pair in pairs] if files[0].heads else None
        print_notes(note for file in files for note in file.notes)
        return cls(
            ", ".join(file.name for file in files), [pair.source or "" for pair in pairs],
            [[pair.text for pair in pairs]], heads, language or files[0].languages[1],
        )  # fmt: skip


def find_texts(
    run: Path | None, *, source: str | None, targets: Sequence[str], pairs: Sequence[str], heads: str | None,
    options: Options,
) -> Texts:  # fmt: skip
    """Return the texts in files, or without any the pairs that the run held out."""
    trained = ParallelTextConfig() if run is None else load_config(find_checkpoint(run)).parallel
    columns, reading = trained.for_other_files(**options.values["parallel"]), options.build(FilesConfig)
    trees = () if heads is None else [heads]
    if pairs:
        return Texts.of_pairs(find_parallel_texts(columns, reading, pairs=pairs, heads=trees))
    if source is not None and targets:
        each = [
            Texts.of_pairs(find_parallel_texts(columns, reading, source=[source], target=[target], heads=trees))
            for target in targets
        ]
        return dataclasses.replace(each[0], references=[lines for one in each for lines in one.references])
    if targets:
        return Texts(targets[0], None, [_read_lines(target) for target in targets])
    if run is None:
        raise UsageError("translations need references: give --target, or --pairs")
    held_out = open_held_out(load_for_decoding(run, options.build(HardwareConfig)))
    return Texts.of_pairs(held_out.files, held_out.file_language)


def _read_lines(path: str) -> list[str]:
    return [line.strip() for line in read_file_lines(Path(path))]


def translate_texts(run: Path, texts: Texts, language: str | None, options: Options) -> list[str]:
    """Translate all lines with a run, into the requested language or that of the references."""
    if texts.sources is None:
        raise UsageError(f"{run}: a run needs something to translate: give --source, or --pairs")
    loaded = load_for_decoding(run, options.build(HardwareConfig))
    model = TranslationModel.from_loaded(loaded)
    heads = None if loaded.config.model.syntax == "none" else texts.heads
    check_heads_given(loaded.config.model, are_given=heads is not None)
    check = ContaminationCheck(loaded)
    for number, pair in enumerate(zip(texts.sources, texts.references[0], strict=True), 1):
        check.add_pair(0, Record.of_pair(*pair, line=number))
    print_warnings(check.warnings([texts.name]))
    tag = model.tag_to(language, file_language=texts.language)
    translator = Translator([model], options.build(TranslationConfig), to=None if tag is None else tag.language)
    translations: list[str] = []
    with show_counter(f"translating with {format_label(run)}", "lines", total=len(texts.sources)) as count:
        for line in translator.translate(texts.sources, dependency_heads=heads):
            translations.append(line.translations[0].text)
            count(len(translations))
    return translations


def evaluate_translations(
    systems: Sequence[Path], texts: Texts, language: str | None, *, out: Path | None, as_json: bool, options: Options
) -> None:
    """Score one system or two, each a run or a file of translations."""
    outputs = []
    for system in systems:
        lines = translate_texts(system, texts, language, options) if system.is_dir() else _read_lines(str(system))
        outputs.append(lines)
        if out is not None and len(outputs) == 1:
            with atomic_write_text(out) as file:
                file.writelines(line + "\n" for line in lines)
            print_note(f"wrote {out}")
    scores = score_translations(outputs, texts.references, options.build(ScoringConfig))
    exact = [count_exact_matches(lines, texts.references) for lines in outputs]
    names = [str(system) for system in systems]
    print_report = _print_translations_json if as_json else print_translations
    print_report(scores, names, lines=len(outputs[0]), exact=exact)


def print_translations(
    scores: Sequence[Sequence[TranslationScore]], names: Sequence[str], *, lines: int, exact: Sequence[int]
) -> None:
    """Print a row per metric and system, the metrics' signatures, and for two systems the verdict."""
    rows = []
    for of_metric in zip(*scores, strict=True):
        for name, score in zip(names, of_metric, strict=True):
            interval = "–" if score.mean is None else f"{score.mean:.2f} ± {score.half_width:.2f}"
            p_value = "–" if score.p_value is None else f"{score.p_value:.3f}"
            rows.append([score.metric, name, f"{score.value:.2f}", interval, p_value])
    has_p = len(names) > 1
    columns = ("metric", "system", "score, %", "95% interval", "p")
    print_table(columns[: 4 + has_p], [row[: 4 + has_p] for row in rows])
    equal = ", ".join(f"{count:,} of {name}" for name, count in zip(names, exact, strict=True))
    print_paragraph(f"{lines:,} lines; identical to a reference: {equal}")
    for score in scores[0]:
        print(f"{score.metric}|{score.signature}")
    if has_p:
        print_paragraph(verdict(scores[0][0], scores[1][0], names))


def verdict(first: TranslationScore, second: TranslationScore, names: Sequence[str]) -> str:
    """Return the conclusion from a difference in BLEU, as a sentence."""
    difference = first.value - second.value
    if not difference:
        return "the two do not differ in BLEU"
    better, worse = names if difference > 0 else names[::-1]
    if second.p_value is None:
        return f"{better} is ahead of {worse} by {abs(difference):.2f} BLEU; whether by chance is not tested"
    margin = f"{abs(difference):.2f} BLEU (p = {second.p_value:.3f})"
    if second.p_value >= _SIGNIFICANCE:
        return f"no clear difference: {better} is ahead of {worse} by {margin}"
    return f"{better} is better than {worse} by {margin}"


def _print_translations_json(
    scores: Sequence[Sequence[TranslationScore]], names: Sequence[str], *, lines: int, exact: Sequence[int]
) -> None:
    """Print one object: the scores of a system by metric, or of two and their differences."""
    systems = []
    for name, count, of_system in zip(names, exact, scores, strict=True):
        fields = ("value", "mean", "half_width", "signature")
        by_metric = {score.metric: {field: getattr(score, field) for field in fields} for score in of_system}
        systems.append({"system": name, "exact": count, "scores": by_metric})
    if len(systems) == 1:
        print(format_json_line({"lines": lines, **systems[0]}))
        return
    report: dict[str, Any] = {"lines": lines, "first": systems[0], "second": systems[1]}
    report["difference"] = {one.metric: one.value - two.value for one, two in zip(*scores, strict=True)}
    report["p_value"] = {score.metric: score.p_value for score in scores[1]}
    print(format_json_line(report))

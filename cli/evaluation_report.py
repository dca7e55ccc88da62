"""Scores classifiers and translations for `lm evaluate`, and prints the reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

from cli.console import format_json_line, print_notes, print_paragraph, print_warnings
from cli.console.figures import print_table, show_counter
from cli.loading import load_classifier
from cli.options import Options
from lm.config.inference import ClassificationConfig, ScoringConfig, TranslationConfig
from lm.config.run_config import DataConfig, FilesConfig, HardwareConfig
from lm.decoding.translation import TranslationModel, Translator
from lm.engine import load_for_decoding
from lm.errors import InputError, UsageError
from lm.evaluation.metrics import CONFIDENCE, ClassificationScores, evaluate_classifier, score_translations
from lm.evaluation.perplexity import ContaminationCheck, open_held_out, open_texts
from lm.run_folder import find_first, list_members, load_config
from lm.text import Record
from lm.text.find import read_lines
from lm.text.parallel_text import find_sources


def evaluate_labels(run: Path, files: Sequence[str], labels: str | None, *, as_json: bool, options: Options) -> None:
    """Score a classifier on labelled examples; without files, on those that it held out."""
    batch_size = options.build(ClassificationConfig).batch_size
    classifier, loaded = load_classifier(run, options.build(HardwareConfig), labels=labels, batch_size=batch_size)
    check = ContaminationCheck(loaded)
    texts = open_texts(loaded, files, options.build(FilesConfig), options.values["data"], kind="examples")
    with show_counter("classifying", "examples") as count:
        scores = evaluate_classifier(classifier, check.watch_records(texts.files), progress=count)
    print_notes(note for file in texts.files for note in file.notes)
    print_warnings(check.warnings(texts.names))
    if scores.unknown:
        some = shorten(", ".join(map(repr, scores.unknown)), 100, placeholder=" …")
        print_warnings([f"unknown to this model: {some}; {sum(scores.unknown.values()):,} labels count as wrong"])
    report = classification_to_dict(scores, run=str(run))
    if as_json:
        print(format_json_line(report))
    else:
        print_classification(report)


def classification_to_dict(scores: ClassificationScores, *, run: str) -> dict[str, Any]:
    """Convert scores; the confusion matrix has a row for each label and a column for each prediction."""
    plain = ("examples", "correct", "accuracy", "interval", "macro_f1", "unknown")
    return {
        "run": run,
        **{name: getattr(scores, name) for name in plain},
        "majority": {"label": scores.majority.label, "accuracy": scores.majority_accuracy},
        "labels": [asdict(of_label) for of_label in scores.by_label],
        "confusion": scores.confusion.tolist(),
    }


def print_classification(report: Mapping[str, Any]) -> None:
    """Print accuracy, interval and baseline, then a table of labels."""
    (low, high), majority = report["interval"], report["majority"]
    interval = f"{report['accuracy']:.1%} ({CONFIDENCE:.0%} interval {low:.1%} to {high:.1%})"
    print_paragraph(f"accuracy {interval}: {report['correct']:,} of {report['examples']:,} examples by {report['run']}")
    print_paragraph(f"majority baseline {majority['accuracy']:.1%}: always {majority['label']!r}")
    print_paragraph(f"macro F1 {report['macro_f1']:.3f}\n")
    columns = ("label", "precision", "recall", "f1", "support")
    print_table(columns, [[one[name] for name in columns] for one in report["labels"]])


@dataclass(frozen=True)
class Texts:
    """What systems translate, and what their translations are compared with.

    Attributes:
        name: of the files, for messages.
        pairs: sources with the first references; none where all translations are read from files.
        references: one or several translations of all lines.
        language: of the references, if known.
    """

    name: str
    pairs: Sequence[Record]
    references: Sequence[Sequence[str]]
    language: str | None = None


def find_texts(
    run: Path | None, names: Sequence[str], *, source: str | None, targets: Sequence[str], heads: str | None,
    options: Options,
) -> Texts:  # fmt: skip
    """Return the texts in files, or without any the pairs that the run held out."""
    if targets and source is None:
        if names:
            raise UsageError(f"--target is given instead of {names[0]}")
        return Texts(targets[0], (), [_read_lines(target, options) for target in targets])
    if names or source is not None:
        trained = DataConfig() if run is None else load_config(find_first(run)).data
        data, sides = trained.for_other_files(**options.values["data"]), {"source": source, "heads": heads}
        given = {side: [name] for side, name in sides.items() if name is not None}
        files: Sequence[Any] = find_sources(names, data, options.build(FilesConfig), target=targets[:1], **given)
    elif run is not None:
        files = open_held_out(load_for_decoding(run, options.build(HardwareConfig))).files
    else:
        raise UsageError("translations need references: give --target, or a file of pairs")
    if others := [file for file in files if file.kind != "pairs"]:
        raise InputError(f"{others[0].name}: holds {others[0].kind}, not pairs")
    records = [pair for file in files for pair in file.records()]
    print_notes(note for file in files for note in file.notes)
    references = [[pair.text for pair in records], *(_read_lines(target, options) for target in targets[1:])]
    return Texts(files[0].name, records, references, files[0].languages[1])


def _read_lines(path: str, options: Options) -> list[str]:
    return [line.strip() for line in read_lines(path, options.build(FilesConfig))]


def translate_texts(run: Path, texts: Texts, language: str | None, options: Options) -> list[str]:
    """Translate all lines with a run, into the requested language or that of the references."""
    if not texts.pairs:
        raise UsageError(f"{run}: needs --source to translate")
    loaded = load_for_decoding(run, options.build(HardwareConfig))
    model, check = TranslationModel.from_loaded(loaded), ContaminationCheck(loaded)
    has_trees = loaded.config.model.syntax != "none" and any(pair.dependency_heads for pair in texts.pairs)
    for pair in texts.pairs:
        check.add(0, pair)
    print_warnings(check.warnings([texts.name]))
    tag = model.tag_to(language, file_language=texts.language)
    translator = Translator(model, options.build(TranslationConfig), to=None if tag is None else tag.language)
    heads = (pair.dependency_heads or () for pair in texts.pairs) if has_trees else None
    translations = list[str]()
    with show_counter("translating", "lines", total=len(texts.pairs)) as count:
        for line in translator.translate((pair.source or "" for pair in texts.pairs), dependency_heads=heads):
            translations.append(line.translations[0].text)
            count(len(translations))
    return translations


def evaluate_translations(
    systems: Sequence[Path], texts: Texts, language: str | None, *, as_json: bool, options: Options
) -> None:
    """Score one system or two, each a run or a file of translations."""
    outputs = [
        translate_texts(system, texts, language, options)
        if list_members(system)[0].is_dir()
        else _read_lines(str(system), options)
        for system in systems
    ]
    scores = score_translations(outputs, texts.references, options.build(ScoringConfig))
    rows = [
        {"system": str(system), **asdict(score)}
        for of_metric in zip(*scores, strict=True)
        for system, score in zip(systems, of_metric, strict=True)
    ]
    if as_json:
        print(format_json_line({"lines": len(outputs[0]), "scores": rows}))
        return
    figures = ("metric", "system", "value", "mean", "half_width", "p_value")
    cells = [[row[name] for name in figures] for row in rows]
    print_table(("metric", "system", "score, %", "resampled", "±", "p"), cells)
    print_paragraph(f"{len(outputs[0]):,} lines; ±: half of the 95% interval of the resampled score")
    print("\n".join(f"{score.metric}|{score.signature}" for score in scores[0]))

"""`lm classify`: labels of texts with their probabilities."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from cli.console.text import print_labelled, print_notes, print_warnings, quote
from cli.loading import Labels, RunPath, load_classifier
from cli.options import Options, with_settings
from lm.config.data import DataConfig, FilesConfig
from lm.config.decoding import ClassificationConfig
from lm.config.hardware import HardwareConfig
from lm.errors import InputError, UsageError
from lm.text.decode import split_lines
from lm.text.find import STDIN, find_text_files, refuse_missing, refuse_stdin_twice

if TYPE_CHECKING:
    from lm.decoding.classifier import ClassifiedText

_Files = Annotated[
    list[str] | None,
    typer.Argument(metavar="FILE…", help="Texts, one per line, or JSON, CSV, TSV, Parquet; - or none: stdin."),
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON Lines: text, label, probabilities, expected.")]


@with_settings(
    {"classification": ClassificationConfig, "files": FilesConfig, "data": DataConfig, "hardware": HardwareConfig},
    "top_k batch_size text_column label_column header format include exclude encoding device dtype threads",
    common="--top-k --text-column --label-column --header --labels --batch-size --json",
)
def classify(
    run: RunPath, files: _Files = None, *, labels: Labels = None, as_json: _AsJson = False, options: Options
) -> None:
    """Classify texts.

    Each output line is a label, a tab and its probability, in input order. The run must be trained by lm train
    --label-column on labelled texts. A masked model has a classification head; a decoder ranks the labels, or few and
    short completions, by their probability after the text. If the files have labels, the accuracy is printed on stderr;
    lm evaluate reports more.

    Examples:
      lm classify runs/topics reviews.txt > labels.tsv
      lm classify runs/topics reviews.txt --top-k 3
      lm classify runs/topics held-out.jsonl --json | jq .probabilities
      lm classify runs/spam sms.tsv --no-header --text-column 2 --label-column 1
      echo "What a lovely day." | lm classify runs/topics | cut -f 1
    """
    config = options.build(ClassificationConfig)
    if not files and sys.stdin.isatty():
        raise UsageError("nothing to classify: name files of texts, or - to read them from stdin")
    names = files or [STDIN]
    try:
        refuse_missing(names)
    except InputError as error:
        raise InputError(f'{error}; to classify a text, pipe it: echo "…" | lm classify {quote(run)}') from None
    refuse_stdin_twice([*names, labels or ""])
    classifier, loaded = load_classifier(
        run, options.build(HardwareConfig), labels=labels, batch_size=config.batch_size
    )
    from cli.evaluation_report import warn_of_unknown_labels
    from lm.evaluation.contamination import ContaminationCheck

    data = loaded.config.data.for_other_files(**options.values["data"])
    corpus = find_text_files(names, data, options.build(FilesConfig))
    if "label_column" not in options.typed("data"):  # the files need not have the labels of the run
        corpus = [
            file if data.label_column in file.columns else dataclasses.replace(file, data=data.without_labels())
            for file in corpus
        ]
    texts, check = list[tuple[str, str | None]](), ContaminationCheck(loaded)
    for number, file in enumerate(corpus):
        if file.kind == "examples":
            for example in file.records():
                check.add(number, example)
                texts.append((example.parts[0].text, example.label))
        else:
            whole = (record.text for record in file.records()) if file.has_rows else split_lines(file.text())
            texts += [(text, None) for text in whole]
    print_notes(note for file in corpus for note in file.notes)
    correct = _print_labels(texts, classifier.classify(text for text, _ in texts), top_k=config.top_k, as_json=as_json)
    expected = Counter(label for _, label in texts if label is not None)
    if known := expected.total():
        print_labelled("accuracy", f"{correct / known:.1%}: {correct:,} of {known:,} labels")
    warn_of_unknown_labels({label: n for label, n in sorted(expected.items()) if label not in classifier.labels})
    print_warnings(check.warnings([file.name for file in corpus]))


def _print_labels(
    texts: Sequence[tuple[str, str | None]], predictions: Iterator[ClassifiedText], *, top_k: int | None, as_json: bool
) -> int:
    """Print the most probable labels of each text with probabilities; returns the number of correct ones."""
    from cli.console.text import escape_for_stream, format_json_line

    correct = 0
    for (text, expected), prediction in zip(texts, predictions, strict=True):
        correct += prediction.label == expected
        if as_json:
            probabilities = dict(islice(prediction.probabilities.items(), top_k))
            values = {"text": text, "label": prediction.label, "probabilities": probabilities}
            print(format_json_line(values if expected is None else {**values, "expected": expected}))
        else:
            ranked = islice(prediction.probabilities.items(), top_k or 1)
            print("\t".join(f"{escape_for_stream(label)}\t{probability:.4f}" for label, probability in ranked))
    return correct

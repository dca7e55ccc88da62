"""`lm classify`: labels of texts with their probabilities."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from cli.flags.loading import Labels, RunPath, load_classifier
from cli.flags.options import ParsedOptions, with_options
from lm.config.data import DataConfig, FilesConfig
from lm.config.decoding import ClassificationConfig
from lm.config.hardware import HardwareConfig
from lm.errors import InputError, UsageError, list_some
from lm.text.compression import decode_lines
from lm.text.files import STDIN, TextFile, find_text_files, refuse_missing, refuse_stdin_twice, select_readable

if TYPE_CHECKING:
    from lm.decoding.classifier import ClassifiedText

_Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE…",
        help="Texts, one per line, or JSON, CSV, TSV, Parquet; - or none: stdin.",
        show_default=False,
    ),
]
_AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print JSON Lines: text, label, probabilities, expected."),
]


class _LabelledText(NamedTuple):
    """A text, and its label if known."""

    text: str
    expected: str | None = None


@with_options(
    {"classification": ClassificationConfig, "files": FilesConfig, "data": DataConfig, "hardware": HardwareConfig},
    leave_out=("validation", "supervised", "separator", "keep_line_ends", "strip_gutenberg", "skip_malformed"),
    common=("--top-k", "--field", "--label-field", "--header", "--labels", "--batch-size", "--json"),
)
def classify(
    run: RunPath, files: _Files = None, *, labels: Labels = None, as_json: _AsJson = False, given: ParsedOptions
) -> None:
    """Classify texts.

    Line n of the output is the label of text n, a tab and its probability. The run was trained by lm train --supervised
    on texts with labels: from a masked model it is a classifier; a decoder ranks the labels, or few and short
    completions, by their probability after the text. Where the labels are in the files, the accuracy is said on stderr;
    lm evaluate tells more.

    Examples:
      lm classify runs/topics reviews.txt > labels.tsv
      lm classify runs/topics reviews.txt --top-k 3
      lm classify runs/topics held-out.jsonl --json | jq .probabilities
      lm classify runs/spam sms.tsv --no-header --text-column 2 --label-column 1
      echo "What a lovely day." | lm classify runs/topics | cut -f 1
    """
    from cli.console.messages import print_notes

    config = ClassificationConfig(**given["classification"])
    if not files and sys.stdin.isatty():
        raise UsageError("nothing to classify: name files of texts, or - to read them from stdin")
    names = files or [STDIN]
    try:
        refuse_missing(names)
    except InputError as error:
        raise InputError(f'{error}; a text itself is piped in: echo "…" | lm classify {run}') from None
    refuse_stdin_twice([*names, labels or ""])
    classifier, loaded = load_classifier(
        run, HardwareConfig(**given["hardware"]), labels=labels, batch_size=config.batch_size
    )
    from cli.classification_report import warn_of_training_examples

    data = loaded.config.data.for_other_files(**given["data"])
    found = find_text_files(names, data, FilesConfig(**given["files"]))
    if given.typed["data"] and not any(file.holds_rows for file in found):
        raise UsageError("plain text has no columns: no file is JSON, CSV, TSV or Parquet; leave them out (--format)")
    print_notes(found.notes)
    readable = select_readable(found)
    texts = [each for file in readable for each in _read_texts(file)]
    correct = _print_labels(
        texts, classifier.classify(each.text for each in texts), top_k=config.top_k, as_json=as_json
    )
    expected = [each.expected for each in texts if each.expected is not None]
    _print_accuracy(correct, len(expected))
    _print_unknown_labels(sorted({*expected} - {*classifier.labels}))
    warn_of_training_examples(loaded, [file for file in readable if file.holds_examples])


def _read_texts(file: TextFile) -> Iterator[_LabelledText]:
    """Yield the texts of a file: of labelled examples, rows, or lines."""
    if file.holds_examples:
        return (_LabelledText(each.prompt, each.label) for each in file.examples())
    if file.holds_rows:
        return map(_LabelledText, file.documents())
    return map(_LabelledText, decode_lines((part.encode() for part in file.text()), name=file.name))


def _print_labels(
    texts: Sequence[_LabelledText], found: Iterator[ClassifiedText], *, top_k: int | None, as_json: bool
) -> int:
    """Print the likeliest labels of each text with probabilities; returns the number of correct ones."""
    from cli.console.escapes import escape_for_stream, format_json_line

    correct = 0
    for each, classified in zip(texts, found, strict=True):
        correct += classified.label == each.expected
        if as_json:
            probabilities = dict(islice(classified.probabilities.items(), top_k))
            values = {"text": each.text, "label": classified.label, "probabilities": probabilities}
            print(format_json_line(values if each.expected is None else {**values, "expected": each.expected}))
        else:
            ranked = islice(classified.probabilities.items(), top_k or 1)
            print("\t".join(f"{escape_for_stream(label)}\t{probability:.4f}" for label, probability in ranked))
    return correct


def _print_accuracy(correct: int, known: int) -> None:
    from cli.console.messages import print_labelled

    if known:
        print_labelled("accuracy", f"{correct / known:.1%}: {correct:,} of {known:,} labels")


def _print_unknown_labels(labels: Sequence[str]) -> None:
    """Report labels of the texts that the run cannot predict."""
    from cli.console.messages import print_labelled

    if labels:
        some = list_some([*map(repr, labels)], limit=3)
        print_labelled("warning", f"the run has not learned {some}: texts with such labels count as wrong")

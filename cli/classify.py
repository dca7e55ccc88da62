"""`lm classify`: the labels of texts."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from cli.flags.loading import RunPath, load_masked
from cli.flags.options import Given, takes
from lm.config.decoding import ClassificationConfig
from lm.config.hardware import HardwareConfig
from lm.errors import UsageError

if TYPE_CHECKING:
    from lm.decoding.classifying import Classified
    from lm.text.files import TextFile

_Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE…",
        help="Texts, one a line, or JSON Lines with text, and label where it is known; - for stdin; without any, what "
        "is piped in is read.",
        show_default=False,
    ),
]
_AsJson = Annotated[
    bool,
    typer.Option(
        "--json", help="Print a line of JSON for each text: text, label, probabilities, and expected where known."
    ),
]


class _Text(NamedTuple):
    """A text, and its label where that is known."""

    text: str
    expected: str | None = None


@takes({"classification": ClassificationConfig, "hardware": HardwareConfig})
def classify(run: RunPath, files: _Files = None, *, as_json: _AsJson = False, given: Given) -> None:
    """Label texts: line n out is the label of text n.

    The run is one that was trained on texts with labels by lm train --supervised --from a masked model. Where the
    labels are in the files, how many were found is said on stderr.

    Examples:
      lm classify runs/topics reviews.txt > labels.txt
      lm classify runs/topics held-out.jsonl --json | jq .probabilities
      echo "What a lovely day." | lm classify runs/topics
    """
    config = ClassificationConfig(**given["classification"])
    if not files and sys.stdin.isatty():
        raise UsageError("nothing to classify: name files of texts, or - to read them from stdin")
    from lm.decoding.classifying import Classifier
    from lm.text.files import STDIN, text_files

    model, loaded = load_masked(run, HardwareConfig(**given["hardware"]), has_labels=True)
    texts = [each for file in text_files(files or [STDIN]) for each in _texts(file)]
    classifier = Classifier(model, loaded.tokenizer, config.batch_size)
    correct = _write(texts, classifier.classify(each.text for each in texts), as_json=as_json)
    expected = [each.expected for each in texts if each.expected is not None]
    _say_accuracy(correct, len(expected))
    _say_unknown(sorted({*expected} - {*model.config.labels}))


def _texts(file: TextFile) -> Iterator[_Text]:
    """The texts of a file: of examples with their labels, of rows, or of lines."""
    from lm.text.examples import DELIMITER
    from lm.text.files import lines

    if file.holds_examples:
        return (_Text(each.prompt, each.completion.removeprefix(DELIMITER)) for each in file.examples())
    if file.holds_rows:
        return map(_Text, file.documents())
    return map(_Text, lines((part.encode() for part in file.text()), name=file.name))


def _write(texts: Sequence[_Text], found: Iterator[Classified], *, as_json: bool) -> int:
    """Print the label of each text; returns how many are as expected."""
    from cli.console.escapes import for_stream, json_line

    correct = 0
    for each, classified in zip(texts, found, strict=True):
        correct += classified.label == each.expected
        if as_json:
            values = {"text": each.text, "label": classified.label, "probabilities": dict(classified.probabilities)}
            print(json_line(values if each.expected is None else {**values, "expected": each.expected}))
        else:
            print(for_stream(classified.label))
    return correct


def _say_accuracy(correct: int, known: int) -> None:
    from cli.console.messages import fact

    if known:
        fact("accuracy", f"{correct / known:.1%}: {correct:,} of {known:,} labels")


def _say_unknown(labels: Sequence[str]) -> None:
    """Say that some labels of the texts are none that the run can give."""
    from cli.console.messages import fact

    if labels:
        some = ", ".join(map(repr, labels[:3])) + (", …" if len(labels) > 3 else "")
        fact("warning", f"the run has not learned {some}: texts with such labels count as wrong")

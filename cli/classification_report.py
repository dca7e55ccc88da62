"""The report of `lm evaluate` on a classifier: accuracy, majority baseline, scores by label, confusions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from cli.console.escapes import format_json_line
from cli.console.messages import print_labelled, print_paragraph
from cli.console.numbers import format_number_of
from cli.console.tables import print_table
from lm.checkpoint import LoadedModel
from lm.errors import list_some
from lm.evaluation.classification import CONFIDENCE, ClassificationScores
from lm.evaluation.contamination import ContaminationCheck
from lm.text.files import TextFile

_WIDEST_MATRIX = 12
"""Labels of a confusion matrix that is printed whole."""
_SHOWN_CONFUSIONS, _SHOWN_UNKNOWN = 20, 5


def print_report(scores: ClassificationScores, *, run: str, is_held_out: bool = False) -> None:
    """Print accuracy, interval and baseline, then tables of labels and confusions."""
    low, high = scores.interval
    examples = "held-out examples" if is_held_out else "examples"
    counted = f"{scores.correct:,} of {scores.examples:,} {examples} by {run}"
    print_paragraph(f"accuracy {scores.accuracy:.1%} ({CONFIDENCE:.0%} interval {low:.1%} to {high:.1%}): {counted}")
    print_paragraph(f"majority baseline {scores.majority_accuracy:.1%}: always {scores.majority.label!r}")
    print_paragraph(f"macro F1 {scores.macro_f1:.3f}")
    print()
    print_table(
        ("label", "precision", "recall", "F1", "support"),
        [
            (each.label, _percent(each.precision), _percent(each.recall), _percent(each.f1), f"{each.support:,}")
            for each in scores.by_label
        ],
    )
    print()
    _print_confusions(scores)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _print_confusions(scores: ClassificationScores) -> None:
    """Print the confusion matrix or, with many labels, the most frequent confusions."""
    if len(scores.labels) <= _WIDEST_MATRIX:
        print_paragraph("confusion matrix: a row for each label, a column for each prediction")
        rows = zip(scores.labels, scores.confusion.tolist(), strict=True)
        print_table(("", *scores.labels), [(label, *(f"{count:,}" for count in counts)) for label, counts in rows])
        return
    confused = sorted(
        (-count, label, guess)
        for label, counts in zip(scores.labels, scores.confusion.tolist(), strict=True)
        for guess, count in zip(scores.labels, counts, strict=True)
        if count and guess != label
    )
    print_paragraph(f"what is confused most often, of {len(scores.labels)} labels (--json has the whole matrix)")
    print_table(
        ("label", "predicted", "texts"),
        [(label, guess, f"{-count:,}") for count, label, guess in confused[:_SHOWN_CONFUSIONS]],
    )


def warn(scores: ClassificationScores) -> None:
    """Warn on stderr of unknown labels, and of accuracy at or below the majority baseline."""
    if scores.unknown:
        some = list_some([*map(repr, scores.unknown)], limit=_SHOWN_UNKNOWN)
        texts = format_number_of(sum(scores.unknown.values()), "text")
        print_labelled("warning", f"the run has not learned {some}: {texts} with such labels count as wrong")
    unpredicted = [each.label for each in scores.by_label if not each.predicted and each.label not in scores.unknown]
    if unpredicted:
        some = list_some([*map(repr, unpredicted)], limit=_SHOWN_UNKNOWN)
        print_labelled("warning", f"the run predicts {some} for none of these texts")
    low, high = scores.interval
    if low <= scores.majority_accuracy <= high:
        print_labelled("note", "the accuracy does not differ clearly from the majority baseline")
    elif high < scores.majority_accuracy:
        print_labelled("warning", "the accuracy is below the majority baseline")


def print_json(scores: ClassificationScores, *, run: str) -> None:
    """Print one object; the confusion matrix has a row for each label and a column for each prediction."""
    low, high = scores.interval
    print(
        format_json_line({
            "run": run,
            "examples": scores.examples,
            "correct": scores.correct,
            "accuracy": scores.accuracy,
            "interval": {"low": low, "high": high, "confidence": CONFIDENCE, "method": "wilson"},
            "majority": {"label": scores.majority.label, "accuracy": scores.majority_accuracy},
            "macro_f1": scores.macro_f1,
            "labels": [asdict(each) for each in scores.by_label],
            "confusion": {"labels": scores.labels, "matrix": scores.confusion.tolist()},
            "unknown": scores.unknown,
        })
    )  # fmt: skip


def warn_of_training_examples(loaded: LoadedModel, files: Sequence[TextFile]) -> None:
    """Warn on stderr of files of examples that the run was trained on."""
    for warning in ContaminationCheck.of_examples(loaded, files):
        print_labelled("warning", warning)

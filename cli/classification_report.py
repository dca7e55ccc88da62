"""The report of `lm evaluate` on a classifier: accuracy, majority baseline, scores by label, confusions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from cli.console.escapes import format_json_line
from cli.console.messages import print_labelled, print_paragraph, print_warnings
from cli.console.numbers import format_number_of, format_value
from cli.console.tables import print_table
from lm.checkpoint import LoadedModel
from lm.errors import list_some
from lm.evaluation.classification import CONFIDENCE, ClassificationScores
from lm.evaluation.contamination import ContaminationCheck
from lm.text.text_file import TextFile

_MAX_MATRIX_LABELS = 12
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
            (
                label_scores.label,
                format_value(label_scores.precision, 3),
                format_value(label_scores.recall, 3),
                format_value(label_scores.f1, 3),
                f"{label_scores.support:,}",
            )
            for label_scores in scores.by_label
        ],
    )
    print()
    _print_confusions(scores)


def _print_confusions(scores: ClassificationScores) -> None:
    """Print the confusion matrix or, with many labels, the most frequent confusions."""
    if len(scores.labels) <= _MAX_MATRIX_LABELS:
        print_paragraph("confusion matrix: a row for each label, a column for each prediction")
        rows = zip(scores.labels, scores.confusion.tolist(), strict=True)
        print_table(("", *scores.labels), [(label, *(f"{count:,}" for count in counts)) for label, counts in rows])
        return
    confused = sorted(
        (-count, label, predicted)
        for label, counts in zip(scores.labels, scores.confusion.tolist(), strict=True)
        for predicted, count in zip(scores.labels, counts, strict=True)
        if count and predicted != label
    )
    print_paragraph(f"most frequent confusions, of {len(scores.labels)} labels (--json has the whole matrix)")
    print_table(
        ("label", "predicted", "count"),
        [(label, predicted, f"{-count:,}") for count, label, predicted in confused[:_SHOWN_CONFUSIONS]],
    )


def warn(scores: ClassificationScores) -> None:
    """Warn on stderr of labels that are unknown, or never predicted."""
    warn_of_unknown_labels(scores.unknown)
    unpredicted = [
        label_scores.label
        for label_scores in scores.by_label
        if not label_scores.predicted and label_scores.label not in scores.unknown
    ]
    if unpredicted:
        some = list_some([*map(repr, unpredicted)], limit=_SHOWN_UNKNOWN)
        print_labelled("warning", f"never predicted: {some}")


def warn_of_unknown_labels(counts: Mapping[str, int]) -> None:
    """Warn on stderr of labels that the model cannot predict, with the number of texts of each."""
    if counts:
        some = list_some([*map(repr, counts)], limit=_SHOWN_UNKNOWN)
        texts = format_number_of(sum(counts.values()), "text")
        print_labelled("warning", f"unknown to this model: {some}; {texts} with these labels count as wrong")


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
            "labels": [asdict(label_scores) for label_scores in scores.by_label],
            "confusion": {"labels": scores.labels, "matrix": scores.confusion.tolist()},
            "unknown": scores.unknown,
        })
    )  # fmt: skip


def warn_of_training_examples(loaded: LoadedModel, files: Sequence[TextFile]) -> None:
    """Warn on stderr of files of examples that the run was trained on."""
    print_warnings(ContaminationCheck.of_examples(loaded, files))

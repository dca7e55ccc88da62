"""`lm perplexity` of files: text by one model or by two, or the examples that a supervised run is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cli.flags.options import Given
from cli.perplexity import dtypes, examples, text
from cli.perplexity.request import Output
from cli.perplexity.scorer import LoadedScorer
from lm.errors import UsageError
from lm.text.files import STDIN, text_files


def measure_files(run: Path, files: Sequence[str], output: Output, given: Given) -> None:
    """Score files by a run, and print or write what was asked for.

    Args:
        run: a run with a decoder-only or a masked model, or one of its checkpoints.
        files: names, globs, folders; without any, stdin.
        output: the form of the report.
        given: the settings.
    """
    if output.compare_dtypes:
        given = dtypes.settings(given)
    scorer = LoadedScorer.load(run, given)
    texts = text_files(files or [STDIN], field=scorer.data.field)
    is_of_examples = examples.are_examples(scorer, texts)
    given.refuse_without_effect("files", files=lambda: texts, holds_examples=is_of_examples)
    if is_of_examples:
        with scorer.shared(of_examples=True) as shared:
            examples.measure(shared, texts, output)
    elif output.versus is not None:
        other = LoadedScorer.load(output.versus, given, data=scorer.data)
        _refuse_other_objective(scorer, other)
        with scorer.shared() as shared, other.shared() as second:
            text.compare(shared, second, texts, as_json=output.as_json)
    elif output.compare_dtypes:
        dtypes.measure(scorer, texts, as_json=output.as_json)
    else:
        with scorer.shared() as shared:
            text.measure(shared, texts, output)


def _refuse_other_objective(scorer: LoadedScorer, other: LoadedScorer) -> None:
    """Raise UsageError where one model sees both sides of a token and the other what comes before it."""
    if scorer.text.model.config.is_masked != other.text.model.config.is_masked:
        raise UsageError(
            f"{scorer.run} and {other.run}: one is a masked model, whose pseudo-perplexity compares with no other "
            "(--versus)"
        )

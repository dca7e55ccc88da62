"""`lm perplexity` of files: text by one model or by two, or the examples that a supervised run is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cli.flags.options import Given
from cli.perplexity import examples, text
from cli.perplexity.request import Output
from cli.perplexity.scorer import Scorer
from lm.text import documents


def measure_files(run: Path, files: Sequence[str], output: Output, given: Given) -> None:
    """Score files by a run, and print or write what was asked for.

    Args:
        run: a run with a decoder-only model, or one of its checkpoints.
        files: names, globs, folders; without any, stdin.
        output: the form of the report.
        given: the settings.
    """
    scorer = Scorer.load(run, given)
    sources = documents.resolve(files or [documents.STDIN], field=scorer.data.field)
    if examples.are_examples(scorer, sources):
        examples.measure(scorer, sources, output)
    elif output.versus is not None:
        other = Scorer.load(output.versus, given, data=scorer.data)
        text.compare(scorer, other, sources, as_json=output.as_json)
    else:
        text.measure(scorer, sources, output)

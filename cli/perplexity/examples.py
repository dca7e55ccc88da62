"""`lm perplexity` of a run that learned from examples: how well it predicts completions given their prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cli.console.progress import counter
from cli.perplexity import report
from cli.perplexity.request import Output
from cli.perplexity.scorer import LoadedScorer
from lm.errors import UsageError
from lm.evaluation.completions import CompletionsScored, measure_completions
from lm.evaluation.perplexity import FileScore
from lm.model.transformer import DecoderOnly
from lm.text.files import TextFile


def are_examples(scorer: LoadedScorer, files: Sequence[TextFile]) -> bool:
    """Whether completions are to be scored: the run is supervised, no field is named, and the files hold examples.

    Raises:
        UsageError: some of the files hold examples and others text.
    """
    if not scorer.loaded.config.data.supervised or "field" in scorer.given.typed["data"]:
        return False
    of_examples = [file for file in files if file.holds_examples]
    if of_examples and len(of_examples) < len(files):
        text = next(file for file in files if not file.holds_examples)
        raise UsageError(
            f"{of_examples[0].name} holds examples and {text.name} text; measure them separately, or name the text "
            "of all (--field)"
        )
    return bool(of_examples)


def measure(scorer: LoadedScorer, files: Sequence[TextFile], output: Output) -> None:
    """Score the completions of files of examples, and print the figures."""
    scores, shortened = [], 0
    with counter("scoring", "examples") as watch:
        for file in files:
            last = _score(scorer, file, watch)
            scores.append(FileScore(file.name, last.tally))
            shortened += last.shortened
    report.refuse_nothing(scores)
    how = report.conditions_of_examples(scorer.run, scorer.loaded, context=scorer.text.context, shortened=shortened)
    report.print_scores(scores, how, as_json=output.as_json, as_csv=output.as_csv)


def _score(scorer: LoadedScorer, file: TextFile, watch: Callable[[int], None]) -> CompletionsScored:
    """Score the examples of one file; `watch` gets their number as it grows."""
    assert isinstance(scorer.text.model, DecoderOnly), "a masked run that is supervised classifies"
    events = measure_completions(
        scorer.text.model, scorer.loaded.tokenizer, file.examples(), context=scorer.text.context,
        batch_size=scorer.text.batch_size, name=file.name, share=scorer.share,
    )  # fmt: skip
    for event in events:
        watch(event.tally.documents)
    return event

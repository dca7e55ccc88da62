"""`lm perplexity` of a run that learned from examples: how well it predicts completions after their prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cli.perplexity.report import Output
from cli.perplexity.scorer import Scorer
from lm.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lm.evaluation.completions import CompletionsScored
    from lm.text.files import TextFile


def are_examples(scorer: Scorer, sources: Sequence[TextFile]) -> bool:
    """Whether completions are to be scored: the run is supervised, no field is named, and files hold examples.

    Raises:
        UsageError: some files hold examples, and some text.
    """
    if not scorer.loaded.config.data.supervised or "field" in scorer.given.typed["data"]:
        return False
    examples = [source for source in sources if source.holds_examples]
    if examples and len(examples) < len(sources):
        text = next(source for source in sources if not source.holds_examples)
        raise UsageError(
            f"{examples[0].name} holds examples and {text.name} text; measure them apart, or name the text of all "
            "(--field)"
        )
    return bool(examples)


def measure(scorer: Scorer, sources: Sequence[TextFile], output: Output) -> None:
    """Score completions, and print the figures."""
    from cli.perplexity import report
    from lm.evaluation.perplexity import FileScore

    _refuse_text_flags(scorer, output)
    scores, shortened = [], 0
    with _progress() as watch:
        for source in sources:
            last = _score(scorer, source, watch)
            scores.append(FileScore(source.name, last.tally))
            shortened += last.shortened
    report.refuse_nothing(scores)
    how = report.conditions_of_examples(scorer.run, scorer.loaded, context=scorer.context, shortened=shortened)
    report.print_scores(scores, how, as_json=output.as_json, as_csv=output.as_csv)


def _score(scorer: Scorer, source: TextFile, watch: Callable[[CompletionsScored], None]) -> CompletionsScored:
    from lm.evaluation.completions import measure_completions

    events = measure_completions(
        scorer.model, scorer.loaded.tokenizer, source.examples(), context=scorer.context,
        batch_size=scorer.batch_size, name=source.name,
    )  # fmt: skip
    for event in events:
        watch(event)
    return event


def _refuse_text_flags(scorer: Scorer, output: Output) -> None:
    """UsageError for what makes sense of text alone."""
    typed = scorer.given.typed
    wrong = [flag for flag in output.asked if flag not in ("--json", "--csv")]
    wrong += [f"--{name}" for name in ("stride", "separator") if name in (typed["perplexity"] | typed["data"])]
    if wrong:
        raise UsageError(
            f"{wrong[0]} is for text, but the run is supervised and the files hold examples; leave it out, or name "
            "what holds the text (--field)"
        )


@contextmanager
def _progress() -> Iterator[Callable[[CompletionsScored], None]]:
    """How many examples of a file are scored, on stderr, if that is a terminal."""
    from rich.progress import Progress, SpinnerColumn, TextColumn

    from cli.console.progress import progress_console

    console = progress_console()
    columns = (SpinnerColumn(), TextColumn("scoring: {task.completed:,} examples"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda scored: bar.update(task, completed=scored.tally.documents)

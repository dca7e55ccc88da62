"""`lm perplexity` of text: the figures, the tokens, or the text coloured by surprisal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cli.perplexity.report import Output
from cli.perplexity.scorer import Scorer
from lm.errors import InputError

if TYPE_CHECKING:
    from lm.evaluation.perplexity import FileScore, Scored
    from lm.evaluation.scoring import Stretch
    from lm.text.files import TextFile


def measure(scorer: Scorer, sources: Sequence[TextFile], output: Output) -> None:
    """Score files, and print or write what was asked for."""
    from cli.console.messages import note
    from cli.perplexity import report
    from lm.evaluation.perplexity import Tally

    scores: list[FileScore] = []
    with _progress(sources, hidden=(output.show or output.per_token) and sys.stdout.isatty()) as watch:
        stretches = scorer.stretches(sources, scores=scores, watch=watch)
        if output.html is not None:
            _write_page(output.html, stretches, sources, scorer, scores)
        elif output.show:
            _show(stretches, sources)
        elif output.per_token:
            _print_tokens(stretches, sources)
        else:
            for _ in stretches:
                pass
    report.refuse_nothing(scores)
    if output.per_token:
        note(report.described(scorer.conditions, Tally.total(score.tally for score in scores)))
    else:
        report.print_scores(scores, scorer.conditions, as_json=output.as_json, as_csv=output.as_csv)


def _print_tokens(stretches: Iterator[Stretch], sources: Sequence[TextFile]) -> None:
    from cli.console.escapes import json_line
    from lm.evaluation.surprisal import token_scores

    for token in token_scores(stretches, sources):
        print(json_line(vars(token)))


def _show(stretches: Iterator[Stretch], sources: Sequence[TextFile]) -> None:
    import shutil

    from cli.console.colours import in_colour
    from cli.perplexity.surprisal import coloured, plain
    from lm.evaluation.surprisal import spans

    names = [source.name for source in sources]
    whole = spans(stretches)
    columns = shutil.get_terminal_size().columns
    room = columns if sys.stdout.isatty() else None  # a pager has its own idea of where rows end
    for part in coloured(whole, names, width=room) if in_colour() else plain(whole, names, width=columns):
        sys.stdout.write(part)
    print()


def _write_page(
    path: Path, stretches: Iterator[Stretch], sources: Sequence[TextFile], scorer: Scorer, scores: Sequence[FileScore]
) -> None:
    """Write the page as the text is scored; `scores` has the figures when all of it is."""
    from cli.console.messages import note
    from cli.perplexity import surprisal_page as page
    from lm.evaluation.perplexity import Tally
    from lm.evaluation.surprisal import spans
    from lm.files import replaced

    names = [source.name for source in sources]
    title = names[0] if len(names) == 1 else f"{len(names)} files"
    conditions = f"Surprisal under {scorer.run}, context {scorer.context}, stride {scorer.stride}"
    with replaced(path) as file:
        file.write(page.opening(title, conditions))
        file.writelines(page.body(spans(stretches), names))
        file.write(page.closing(scores, Tally.total(score.tally for score in scores)))
    note(f"wrote {path}")


def compare(scorer: Scorer, other: Scorer, sources: Sequence[TextFile], *, as_json: bool) -> None:
    """Score files by two models, and print how they differ."""
    from cli.perplexity import versus
    from lm.evaluation.comparison import Difference
    from lm.evaluation.comparison import compare as compared

    with _progress(sources) as watch:
        both = scorer.stretches(sources, scores=[], watch=watch), other.stretches(sources, scores=[])
        differences = compared(*both, files=len(sources))
    total = Difference.total(differences)
    if not total.bytes:
        raise InputError(f"{', '.join(source.name for source in sources)}: nothing to score: there is no text")
    models = scorer.conditions, other.conditions
    if as_json:
        versus.print_json(sources, differences, total, models)
    else:
        versus.print_table(sources, differences, total, models, (scorer.run, other.run))


@contextmanager
def _progress(sources: Sequence[TextFile], *, hidden: bool = False) -> Iterator[Callable[[Scored], None]]:
    """A progress bar on stderr, if that is a terminal that nothing else is drawn on."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from cli.console.progress import progress_console
    from lm.text.files import text_size

    console = progress_console()
    columns = (TextColumn("scoring"), BarColumn(), DownloadColumn(), TextColumn("{task.fields[speed]} tokens/s"))
    disabled = hidden or not console.is_terminal
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=disabled) as bar:
        task = bar.add_task("scoring", total=text_size(sources), speed="–")

        def show(event: Scored) -> None:
            seconds = bar.tasks[0].elapsed
            bar.update(task, completed=event.bytes, speed=f"{event.tokens / seconds:.0f}" if seconds else "–")

        yield show

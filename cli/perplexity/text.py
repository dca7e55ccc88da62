"""`lm perplexity` of text: the figures, the tokens, or the text itself coloured by surprisal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn

from cli.console.colours import in_colour
from cli.console.escapes import json_line
from cli.console.messages import note
from cli.console.progress import progress
from cli.perplexity import report, surprisal_page, versus
from cli.perplexity.request import Output
from cli.perplexity.scorer import LoadedScorer
from cli.perplexity.surprisal import coloured, plain
from lm.errors import InputError
from lm.evaluation import perplexity_comparison
from lm.evaluation.perplexity import FileScore, Scored, Tally
from lm.evaluation.perplexity_comparison import Difference
from lm.evaluation.stretches import Stretch
from lm.evaluation.surprisal import spans, token_scores
from lm.files import replaced
from lm.text.files import TextFile, text_size


def measure(scorer: LoadedScorer, files: Sequence[TextFile], output: Output) -> None:
    """Score files, and print or write what was asked for."""
    scores: list[FileScore] = []
    with scoring_progress(files, hidden=(output.show or output.per_token) and sys.stdout.isatty()) as watch:
        stretches = scorer.text.stretches(files, scores=scores, watch=watch)
        if output.html is not None:
            _write_page(output.html, stretches, files, scorer, scores)
        elif output.show:
            _show(stretches, files)
        elif output.per_token:
            _print_tokens(stretches, files)
        else:
            for _ in stretches:
                pass
    report.refuse_nothing(scores)
    if output.per_token:
        report.warn_of_lost_text(Tally.total(score.tally for score in scores))
        note(report.described(scorer.conditions, Tally.total(score.tally for score in scores)))
    else:
        report.print_scores(scores, scorer.conditions, as_json=output.as_json, as_csv=output.as_csv)


def _print_tokens(stretches: Iterator[Stretch], files: Sequence[TextFile]) -> None:
    """Print a line of JSON for each token."""
    for token in token_scores(stretches, files):
        print(json_line(vars(token)))


def _show(stretches: Iterator[Stretch], files: Sequence[TextFile]) -> None:
    """Print the text coloured by surprisal, or with the bits of each token beneath it."""
    names = [file.name for file in files]
    whole = spans(stretches)
    columns = shutil.get_terminal_size().columns
    width = columns if sys.stdout.isatty() else None  # a pager breaks lines at a width of its own
    for part in coloured(whole, names, width=width) if in_colour() else plain(whole, names, width=columns):
        sys.stdout.write(part)
    print()


def _write_page(
    path: Path,
    stretches: Iterator[Stretch],
    files: Sequence[TextFile],
    scorer: LoadedScorer,
    scores: Sequence[FileScore],
) -> None:
    """Write the page while the text is scored; `scores` holds the figures once all of it is."""
    names = [file.name for file in files]
    title = names[0] if len(names) == 1 else f"{len(names)} files"
    conditions = f"Surprisal under {scorer.run}, context {scorer.text.context}, stride {scorer.text.stride}"
    with replaced(path) as page:
        page.write(surprisal_page.opening(title, conditions))
        page.writelines(surprisal_page.body(spans(stretches), names))
        page.write(surprisal_page.closing(scores, Tally.total(score.tally for score in scores)))
    note(f"wrote {path}")


def compare(scorer: LoadedScorer, other: LoadedScorer, files: Sequence[TextFile], *, as_json: bool) -> None:
    """Score files by two models, and print how they differ."""
    tallies = Tally(), Tally()
    with scoring_progress(files) as watch:
        both = scorer.text.stretches(files, scores=[], watch=watch), other.text.stretches(files, scores=[])
        first, second = (_counted(stretches, tally) for stretches, tally in zip(both, tallies, strict=True))
        differences = perplexity_comparison.compare(first, second, files=len(files))
    total = Difference.total(differences)
    if not total.bytes:
        raise InputError(f"{', '.join(file.name for file in files)}: nothing to score: there is no text")
    models = scorer.conditions, other.conditions
    is_same = scorer.loaded.tokenizer.sha256 == other.loaded.tokenizer.sha256
    compared = versus.Compared((scorer.run, other.run), tallies, is_same_tokenizer=is_same)
    if as_json:
        versus.print_json(files, differences, total, models, compared)
    else:
        versus.print_table(files, differences, total, models, compared)


def _counted(stretches: Iterator[Stretch], tally: Tally) -> Iterator[Stretch]:
    """The same stretches, counted as they pass."""
    for stretch in stretches:
        tally.add_stretch(stretch)
        yield stretch


@contextmanager
def scoring_progress(files: Sequence[TextFile], *, hidden: bool = False) -> Iterator[Callable[[Scored], None]]:
    """A progress bar on stderr, unless something else is drawn there or it is no terminal."""
    columns = (TextColumn("scoring"), BarColumn(), DownloadColumn(), TextColumn("{task.fields[speed]} tokens/s"))
    with progress(*columns, TimeRemainingColumn(), hidden=hidden) as bar:
        task = bar.add_task("scoring", total=text_size(files), speed="–")

        def show(event: Scored) -> None:
            seconds = bar.tasks[0].elapsed
            bar.update(task, completed=event.bytes, speed=f"{event.tokens / seconds:.0f}" if seconds else "–")

        yield show

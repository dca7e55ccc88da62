"""`lm perplexity`: how well a model predicts files."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.flags import completion
from cli.flags.loading import RunPath, load_decoder
from cli.flags.options import Given, takes
from lm.config.data import DataConfig
from lm.config.evaluation import PerplexityConfig
from lm.config.hardware import HardwareConfig
from lm.errors import InputError, UsageError
from lm.files import check_place

if TYPE_CHECKING:
    from collections.abc import Callable

    from lm.checkpoint import LoadedModel
    from lm.evaluation.perplexity import FileScore, Scored
    from lm.evaluation.scoring import Stretch
    from lm.model.transformer import DecoderOnly
    from lm.text.documents import Source

_PANEL = "Output"


_Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE…",
        help="Text files, folders, globs, or - for stdin; without any, what is piped in is read.",
        show_default=False,
    ),
]
_PAIRS_PANEL = "Translations"
_Sources = Annotated[
    list[str] | None,
    typer.Option(
        "--source",
        metavar="FILE",
        help="Sources, of an encoder-decoder; can be repeated.",
        rich_help_panel=_PAIRS_PANEL,
    ),
]
_Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        metavar="FILE",
        help="Their translations, line by line: nats per target token are measured.",
        rich_help_panel=_PAIRS_PANEL,
    ),
]
_Language = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="LANGUAGE",
        help="Language of the targets, where the run knows several [default: from the file's name, as in test.de].",
        rich_help_panel=_PAIRS_PANEL,
    ),
]
_AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print JSON: files, total, macro, and how they were scored.", rich_help_panel=_PANEL),
]
_AsCsv = Annotated[
    bool, typer.Option("--csv", help="Print CSV: a header, a line a file, and the total.", rich_help_panel=_PANEL)
]
_PerToken = Annotated[
    bool,
    typer.Option(
        "--per-token",
        help="Print a line of JSON a token: file, document, index, offset and bytes in the document's text, token, "
        "text, nats (null if not scored).",
        rich_help_panel=_PANEL,
    ),
]
_Show = Annotated[
    bool,
    typer.Option(
        "--show",
        help="Print the text coloured by surprisal, then the table; without colours (NO_COLOR, pipes) with the "
        "bits of each token beneath it.",
        rich_help_panel=_PANEL,
    ),
]
_Html = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="FILE",
        help="Write a page that needs nothing else, the text coloured by surprisal.",
        rich_help_panel=_PANEL,
    ),
]
_Versus = Annotated[
    Path | None,
    typer.Option(
        "--versus",
        metavar="RUN2",
        autocompletion=completion.runs,
        help="Compare with another run: the difference in bits per byte on the same text, with its standard error.",
        rich_help_panel=_PANEL,
    ),
]


@takes(
    {"perplexity": PerplexityConfig, "data": DataConfig, "hardware": HardwareConfig},
    leave_out=("validation", "supervised"),
)
def perplexity(
    run: RunPath,
    files: _Files = None,
    *,
    source: _Sources = None,
    target: _Targets = None,
    language: _Language = None,
    as_json: _AsJson = False,
    as_csv: _AsCsv = False,
    per_token: _PerToken = False,
    show: _Show = False,
    html: _Html = None,
    versus: _Versus = None,
    given: Given,
) -> None:
    """Measure the perplexity of files.

    Every token is scored exactly once, with the tokens before it as far as the window reaches. Documents (parted as
    the run was trained unless told otherwise) are scored apart. The first token of each is predicted from the
    document-start token; if the tokenizer has none it is reported as unscored. Words are whitespace-separated; the
    standard error is that of the mean nats per token, as if tokens were independent. The total counts every token
    alike; the mean of files counts every file alike, and its standard error is between files.

    Perplexity per token depends on the tokenizer, context and stride; word perplexity and bits per byte compare
    across tokenizers. So does --versus, which cuts the text where tokens end in both tokenizations and pairs what
    lies between; its standard error takes stretches of 256 bytes to be independent.

    A run that learned from examples is measured as it was trained, on files of examples ({prompt, completion} or
    {text, label}, JSON Lines): how well it predicts each completion and its end, after the prompt. With --field such
    files are text all the same.

    With --source and --target a translation model is measured: how well it predicts each token of a given target and
    the end of it, after the source and the tokens before. Pairs with a blank side are left out.

    Examples:
      lm perplexity runs/novel held-out.txt
      lm perplexity runs/novel tests/*.txt --stride 128 --json
      lm perplexity runs/novel chapter.txt --show
      FORCE_COLOR=1 lm perplexity runs/novel chapter.txt --show | less -R
      lm perplexity runs/novel chapter.txt --html chapter.html
      lm perplexity runs/novel held-out.txt --versus runs/other
      lm perplexity runs/answers questions.jsonl
      lm perplexity runs/en-de --source test.en --target test.de
    """
    if "as_json" in given.environment and (as_csv or per_token or show):
        as_json = False
    output = Output(as_json, as_csv, per_token, show, html, versus)
    if source or target:
        _refuse_text_flags(files, output, given)
        from cli.perplexity import pairs as perplexity_pairs

        perplexity_pairs.measure(run, source=source or [], target=target or [], language=language,
                                 hardware=HardwareConfig(**given["hardware"]), as_json=as_json)  # fmt: skip
        return
    if not files and sys.stdin.isatty():
        raise UsageError("nothing to measure: name files of text, or pairs by --source and --target")
    scorer = Scorer.load(run, given)
    from cli.perplexity import examples as perplexity_examples
    from lm.text import documents

    sources = documents.resolve(files or [documents.STDIN], field=scorer.data.field)
    if perplexity_examples.are_examples(scorer, sources):
        perplexity_examples.measure(scorer, sources, output)
    elif versus is not None:
        _compare(scorer, Scorer.load(versus, given, data=scorer.data), sources, as_json=as_json)
    else:
        _measure(scorer, sources, output)


def _refuse_text_flags(files: Sequence[str] | None, output: Output, given: Given) -> None:
    """UsageError for what makes sense of text alone, not of pairs."""
    if files:
        raise UsageError(f"{files[0]}: give files of text, or pairs by --source and --target, not both")
    typed = [f"--{name.replace('_', '-')}" for section in ("perplexity", "data") for name in given.typed[section]]
    wrong = [*(flag for flag in output.asked if flag != "--json"), *typed]
    if wrong:
        raise UsageError(f"{wrong[0]} is for text; pairs (--source, --target) go only with --to and --json")


@dataclasses.dataclass(frozen=True)
class Output:
    """What is asked for; refused where it does not go together."""

    as_json: bool
    as_csv: bool
    per_token: bool
    show: bool
    html: Path | None
    versus: Path | None

    @property
    def asked(self) -> list[str]:
        """The flags that were given."""
        flags = {"--json": self.as_json, "--csv": self.as_csv, "--per-token": self.per_token, "--show": self.show,
                 "--html": self.html is not None, "--versus": self.versus is not None}  # fmt: skip
        return [flag for flag, given in flags.items() if given]

    def __post_init__(self) -> None:
        asked = self.asked
        together = ({"--json", "--html"}, {"--csv", "--html"}, {"--json", "--versus"})
        if len(asked) > 1 and set(asked) not in together:
            raise UsageError(f"{asked[0]} and {asked[1]} exclude each other; give one of them")
        if self.html is not None and self.html.is_dir():
            raise UsageError(f"{self.html} is a folder; name the file to write, for instance {self.html / 'text.html'}")
        if self.html is not None:
            check_place(self.html)


@dataclasses.dataclass(frozen=True)
class Scorer:
    """A loaded run, and how it is to score files."""

    run: Path
    given: Given
    model: DecoderOnly
    loaded: LoadedModel
    data: DataConfig
    context: int
    stride: int
    batch_size: int

    @classmethod
    def load(cls, run: Path, given: Given, *, data: DataConfig | None = None) -> Scorer:
        """A run with the settings that were given; documents are parted as `data` says, or as it was trained."""
        config = PerplexityConfig(**given["perplexity"])
        model, loaded = load_decoder(run, HardwareConfig(**given["hardware"]), command="perplexity")
        from lm.evaluation.windows import window_sizes

        context, stride = window_sizes(model.config, config)
        data = data or dataclasses.replace(loaded.config.data, supervised=False, **given["data"])
        return cls(run, given, model, loaded, data, context, stride, config.batch_size)

    @property
    def conditions(self) -> dict[str, Any]:
        """For reports."""
        from cli.perplexity.report import conditions

        return conditions(self.run, self.loaded, context=self.context, stride=self.stride)

    def measure(self, sources: Sequence[Source]) -> Iterator[Scored | FileScore]:
        """Score files."""
        from lm.evaluation.perplexity import measure

        return measure(
            self.model,
            self.loaded.tokenizer,
            sources,
            separator=self.data.separator,
            context=self.context,
            stride=self.stride,
            batch_size=self.batch_size,
        )

    def stretches(
        self, sources: Sequence[Source], *, scores: list[FileScore], watch: Callable[[Scored], None] | None = None
    ) -> Iterator[Stretch]:
        """Score files; `watch` sees each batch, and in the end `scores` holds the figures of each file."""
        from lm.evaluation.perplexity import FileScore

        for event in self.measure(sources):
            if isinstance(event, FileScore):
                scores.append(event)
                continue
            if watch:
                watch(event)
            yield from event.stretches


def _measure(scorer: Scorer, sources: Sequence[Source], output: Output) -> None:
    from cli.perplexity import report
    from cli.training.display import note
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


def _print_tokens(stretches: Iterator[Stretch], sources: Sequence[Source]) -> None:
    from cli.console.escapes import json_line
    from lm.evaluation.surprisal import token_scores

    for token in token_scores(stretches, sources):
        print(json_line(vars(token)))


def _show(stretches: Iterator[Stretch], sources: Sequence[Source]) -> None:
    import shutil

    from cli.perplexity.surprisal import coloured, in_colour, plain
    from lm.evaluation.surprisal import spans

    names = [source.name for source in sources]
    whole = spans(stretches)
    columns = shutil.get_terminal_size().columns
    room = columns if sys.stdout.isatty() else None  # a pager has its own idea of where rows end
    for part in coloured(whole, names, width=room) if in_colour() else plain(whole, names, width=columns):
        sys.stdout.write(part)
    print()


def _write_page(
    path: Path, stretches: Iterator[Stretch], sources: Sequence[Source], scorer: Scorer, scores: Sequence[FileScore]
) -> None:
    """Write the page as the text is scored; `scores` has the figures when all of it is."""
    from cli.perplexity import surprisal_page as page
    from cli.training.display import note
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


def _compare(scorer: Scorer, other: Scorer, sources: Sequence[Source], *, as_json: bool) -> None:
    from cli.perplexity import versus
    from lm.evaluation.comparison import Difference, compare

    with _progress(sources) as watch:
        both = scorer.stretches(sources, scores=[], watch=watch), other.stretches(sources, scores=[])
        differences = compare(*both, files=len(sources))
    total = Difference.total(differences)
    if not total.bytes:
        raise InputError(f"{', '.join(source.name for source in sources)}: nothing to score: there is no text")
    models = scorer.conditions, other.conditions
    if as_json:
        versus.print_json(sources, differences, total, models)
    else:
        versus.print_table(sources, differences, total, models, (scorer.run, other.run))


@contextmanager
def _progress(sources: Sequence[Source], *, hidden: bool = False) -> Iterator[Callable[[Scored], None]]:
    """A progress bar on stderr, if that is a terminal that nothing else is drawn on."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from cli.training.display import progress_console
    from lm.text.documents import text_size

    console = progress_console()
    columns = (TextColumn("scoring"), BarColumn(), DownloadColumn(), TextColumn("{task.fields[speed]} tokens/s"))
    disabled = hidden or not console.is_terminal
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=disabled) as bar:
        task = bar.add_task("scoring", total=text_size(sources), speed="–")

        def show(event: Scored) -> None:
            seconds = bar.tasks[0].elapsed
            bar.update(task, completed=event.bytes, speed=f"{event.tokens / seconds:.0f}" if seconds else "–")

        yield show

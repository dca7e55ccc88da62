"""`lm perplexity`: how well a model predicts files."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.loading import RunPath, load_decoder
from cli.options import Given, takes
from lm.config import HardwareConfig, PerplexityConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from lm.checkpoint import LoadedModel
    from lm.evaluation.perplexity import Progress, Tally

COLUMNS = ("file", "tokens", "words", "bytes", "nats", "perplexity", "word perplexity", "bits/byte", "standard error")

_LONGEST = 1e9


@takes({"perplexity": PerplexityConfig, "hardware": HardwareConfig})
def perplexity(
    run: RunPath,
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE…", help="Text files, folders, globs, or - for stdin.", show_default=False),
    ],
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: files, total, and how they were scored.")
    ] = False,
    given: Given,
) -> None:
    """Measure the perplexity of files.

    Every token is scored exactly once, with the tokens before it as far as the window reaches. Documents (parted by
    the separator lines the run was trained with) are scored apart. The first token of each is predicted from the
    document-start token; if the tokenizer has none it is reported as unscored. Words are whitespace-separated; the
    standard error is that of the mean nats per token, as if tokens were independent.

    Perplexity per token depends on the tokenizer, context and stride; word perplexity and bits per byte compare
    across tokenizers.

    Examples:
      lm perplexity runs/novel held-out.txt
      lm perplexity runs/novel tests/*.txt --stride 128 --json
    """
    config = PerplexityConfig(**given["perplexity"])
    model, loaded = load_decoder(run, HardwareConfig(**given["hardware"]), command="perplexity")
    from lm.data import documents
    from lm.evaluation.perplexity import FileScore, Tally, measure, window_sizes

    context, stride = window_sizes(model.config, config)
    sources = documents.resolve(files)
    scores: list[FileScore] = []
    with _progress(sum(source.path.stat().st_size for source in sources)) as show:
        for event in measure(
            model,
            loaded.tokenizer,
            sources,
            separator=loaded.config.data.separator,
            context=context,
            stride=stride,
            batch_size=config.batch_size,
        ):
            if isinstance(event, FileScore):
                scores.append(event)
            else:
                show(event)
    tallies = [(score.name, score.tally) for score in scores]
    total = Tally.total(score.tally for score in scores)
    conditions = _conditions(run, loaded, context=context, stride=stride)
    (_print_json if as_json else _print_table)(tallies, total, conditions)
    if not total.tokens:
        print("nothing to score", file=sys.stderr)


@contextmanager
def _progress(size: int) -> Iterator[Callable[[Progress], None]]:
    """A progress bar on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (TextColumn("scoring"), BarColumn(), DownloadColumn(), TextColumn("{task.fields[speed]} tokens/s"))
    with Bar(*columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("scoring", total=size, speed="–")

        def show(event: Progress) -> None:
            seconds = bar.tasks[0].elapsed
            bar.update(task, completed=event.bytes, speed=f"{event.tokens / seconds:.0f}" if seconds else "–")

        yield show


def _conditions(run: Path, loaded: LoadedModel, *, context: int, stride: int) -> dict[str, Any]:
    tokenizer = loaded.tokenizer
    return {
        "unit": "token",
        "context": context,
        "stride": stride,
        "first_token_scored": tokenizer.start_of_text is not None,
        "model": {
            "run": str(run),
            "checkpoint": str(loaded.folder),
            "parameters": sum(parameter.numel() for parameter in loaded.model.parameters()),
            "context_length": loaded.config.model.context_length,
        },
        "tokenizer": {"vocab_size": tokenizer.vocab_size, "sha256": tokenizer.sha256},
    }


def _figures(tally: Tally) -> dict[str, Any]:
    return {
        "tokens": tally.tokens,
        "unscored": tally.unscored,
        "documents": tally.documents,
        "words": tally.words,
        "bytes": tally.bytes,
        "nats": tally.nats,
        "perplexity": tally.perplexity,
        "word_perplexity": tally.word_perplexity,
        "bits_per_byte": tally.bits_per_byte,
        "standard_error": tally.standard_error,
    }


def _print_json(files: Sequence[tuple[str, Tally]], total: Tally, conditions: dict[str, Any]) -> None:
    listed = [{"file": name, **_figures(tally)} for name, tally in files]
    print(json.dumps({"files": listed, "total": _figures(total), **conditions}, ensure_ascii=False))


def _print_table(files: Sequence[tuple[str, Tally]], total: Tally, conditions: dict[str, Any]) -> None:
    from cli.display import table

    rows = [*files, ("total", total)] if len(files) > 1 else files
    table(COLUMNS, [_row(name, tally) for name, tally in rows])
    start = "the document-start token is given" if conditions["first_token_scored"] else "the first is not scored"
    print(
        f"perplexity per token ({conditions['tokenizer']['vocab_size']:,} in the vocabulary), "
        f"context {conditions['context']}, stride {conditions['stride']}; "
        f"{total.documents:,} documents, of each {start} ({total.unscored:,} tokens unscored)"
    )


def _row(name: str, tally: Tally) -> list[str]:
    counts = [f"{number:,}" for number in (tally.tokens, tally.words, tally.bytes)]
    figures = (tally.nats, tally.perplexity, tally.word_perplexity, tally.bits_per_byte, tally.standard_error)
    decimals = (1, 3, 3, 4, 4)
    return [name, *counts, *map(_number, figures, decimals)]


def _number(value: float | None, decimals: int) -> str:
    if value is None:
        return "–"
    return f"{value:,.{decimals}f}" if value < _LONGEST else f"{value:.3g}"

"""`lm perplexity RUN --source … --target …`: how well a translation model predicts given translations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm.config.hardware import HardwareConfig
from lm.errors import InputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lm.checkpoint import LoadedModel
    from lm.evaluation.forced import PairsScored
    from lm.evaluation.perplexity import Tally
    from lm.text.parallel import ParallelText

COLUMNS = ("target", "pairs", "tokens", "words", "nats/token", "std error", "perplexity", "per word", "bits/byte")


def measure(
    run: Path,
    *,
    source: Sequence[str],
    target: Sequence[str],
    language: str | None,
    hardware: HardwareConfig,
    as_json: bool,
) -> None:
    """Score each target after its source, and print the figures.

    Args:
        run: an encoder-decoder.
        source: files of sources.
        target: as many files of their translations, line by line.
        language: of the targets, where the model has several directions and file names don't tell.
        hardware: what to run on.
        as_json: print JSON instead of a table.
    """
    from cli.console.escapes import json_line
    from cli.console.messages import note, paragraph
    from cli.console.tables import table
    from lm.checkpoint import load_model
    from lm.config.data import ParallelConfig
    from lm.evaluation.perplexity import Tally
    from lm.hardware import inference_hardware
    from lm.text.parallel import parallel_texts

    if not source or not target:
        raise UsageError("pairs have two sides; give --source and --target")
    files = parallel_texts(ParallelConfig(), source=source, target=target)
    loaded = load_model(run, inference_hardware(hardware))
    scored = [_score(run, loaded, file, language) for file in files]
    total, blank = Tally.total(one.tally for one in scored), sum(one.blank for one in scored)
    if not total.tokens:
        raise InputError(f"{files[0].name}: nothing to score: there is no pair with two sides")
    names = [str(file.target.name if file.target else file.name) for file in files]
    if as_json:
        print(json_line(_report(run, loaded, names, scored, total)))
        return
    rows = [_row(name, one.tally) for name, one in zip(names, scored, strict=True)]
    table(COLUMNS, [*rows, _row("total", total)] if len(rows) > 1 else rows)
    paragraph(
        f"of each target token ({loaded.tokenizer.vocab_size:,} in the vocabulary), the end of the sentence included, "
        "after its source and the tokens before it"
    )
    if blank:
        note(f"{blank:,} {'pair' if blank == 1 else 'pairs'} with a blank side left out")


def _score(run: Path, loaded: LoadedModel, file: ParallelText, language: str | None) -> PairsScored:
    from lm.evaluation import forced
    from lm.model.transformer import EncoderDecoder
    from lm.tokenizer.languages import tag_to

    if not isinstance(loaded.model, EncoderDecoder):
        raise UsageError(f"{run}: this run is decoder-only; name files of text instead of --source and --target")
    tokenizer = loaded.source_tokenizer or loaded.tokenizer
    tag = tag_to(tokenizer, language, told_by_file=file.languages[1])
    encoder = forced.PairEncoder(loaded.tokenizer, loaded.source_tokenizer, tag=None if tag is None else tag.id)
    with _progress() as watch:
        for scored in forced.measure_pairs(loaded.model, encoder, file.pairs(), name=file.name):
            watch(scored)
    return scored


def _row(name: str, tally: Tally) -> list[str]:
    from cli.perplexity.report import number

    mean = tally.nats / tally.tokens if tally.tokens else None
    return [
        name,
        f"{tally.documents:,}",
        f"{tally.tokens:,}",
        f"{tally.words:,}",
        number(mean, 4),
        number(tally.standard_error, 4),
        number(tally.perplexity, 3),
        number(tally.word_perplexity, 3),
        number(tally.bits_per_byte, 4),
    ]


def _report(
    run: Path, loaded: LoadedModel, names: Sequence[str], scored: Sequence[PairsScored], total: Tally
) -> dict[str, Any]:
    """The figures of each file and the total, and what they are of."""
    from lm.model.block import count_parameters

    files = [{"file": name, "blank": one.blank, **_figures(one.tally)} for name, one in zip(names, scored, strict=True)]
    return {
        "files": files,
        "total": {"blank": sum(one.blank for one in scored), **_figures(total)},
        "unit": "target token",
        "model": {
            "run": str(run), "checkpoint": str(loaded.folder), "parameters": count_parameters(loaded.model),
        },
        "tokenizer": {"vocab_size": loaded.tokenizer.vocab_size, "sha256": loaded.tokenizer.sha256},
    }  # fmt: skip


def _figures(tally: Tally) -> dict[str, Any]:
    return {
        "pairs": tally.documents,
        "tokens": tally.tokens,
        "words": tally.words,
        "bytes": tally.bytes,
        "nats": tally.nats,
        "nats_per_token": tally.nats / tally.tokens if tally.tokens else None,
        "standard_error": tally.standard_error,
        "perplexity": tally.perplexity,
        "word_perplexity": tally.word_perplexity,
        "bits_per_byte": tally.bits_per_byte,
    }


@contextmanager
def _progress() -> Iterator[Callable[[PairsScored], None]]:
    """How many pairs are scored, on stderr, if that is a terminal."""
    from rich.progress import Progress, SpinnerColumn, TextColumn

    from cli.console.progress import progress_console

    console = progress_console()
    columns = (SpinnerColumn(), TextColumn("scoring: {task.completed:,} pairs"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda scored: bar.update(task, completed=scored.tally.documents)

"""`lm prepare`: turn a corpus into token shards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.console.escapes import json_line
from cli.flags.arguments import AsJson, Specials, Texts, Unknown
from cli.flags.loading import load_tokenizer
from cli.flags.options import Given, takes
from lm.config.data import DataConfig
from lm.config.tokenizer import TokenizerConfig
from lm.errors import UsageError

TokenizerFile = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        metavar="FILE",
        help="Use this tokenizer.json, or that of a folder, instead of training one.",
        rich_help_panel="Tokenizer",
        show_default=False,
    ),
]


@takes({"tokenizer": TokenizerConfig, "data": DataConfig})
def prepare(
    corpus: Texts,
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", metavar="FOLDER", help="Folder of the tokens [default: in the cache].", show_default=False
        ),
    ] = None,
    tokenizer: TokenizerFile = None,
    special: Specials = None,
    unknown: Unknown = None,
    force: Annotated[bool, typer.Option("--force", help="Replace tokens that the folder has already.")] = False,
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes",
            metavar="N",
            min=1,
            help="Processes that tokenize at the same time, each in 0.2 GB of memory [default: one a processor].",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
    given: Given,
) -> None:
    """Turn a corpus into token shards, as lm train does by itself.

    The same command on the same text reuses the shards. With -o FOLDER, give that folder to lm train as its corpus;
    without, the shards go to the cache, where lm train finds them if it is given the same corpus and --tokenizer.
    """
    if tokenizer is not None:
        _refuse_training_flags(given, special=special, unknown=unknown)
    from cli.console.progress import encode_progress
    from cli.preparing import note_repetition, print_report, report, trained_tokenizer
    from lm.data.corpus import survey
    from lm.data.tokens import prepare_corpus
    from lm.text.files import text_files

    config = DataConfig(**given["data"])
    files = text_files(corpus, field=config.field, supervised=config.supervised)
    loaded = None if tokenizer is None else load_tokenizer(tokenizer)
    surveyed = survey(files, config, workers=processes)
    loaded = loaded or trained_tokenizer(
        surveyed, TokenizerConfig(**given["tokenizer"]), special=special, unknown=unknown
    )
    with encode_progress() as progress:
        prepared = prepare_corpus(surveyed, loaded, folder=out, force=force, processes=processes, progress=progress)
    made = report(prepared)
    print_report(made)
    note_repetition(prepared.manifest)
    if as_json:
        print(json_line(made))


def _refuse_training_flags(given: Given, **own: object) -> None:
    """Raise UsageError if flags for training a tokenizer are given, where there is one already."""
    named = [name for name, value in own.items() if value and name not in given.environment]
    for name in [*given.typed["tokenizer"], *named]:
        raise UsageError(f"--{name.replace('_', '-')} is for training a tokenizer; it does not go with --tokenizer")

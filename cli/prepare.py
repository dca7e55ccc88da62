"""`lm prepare`: turn a corpus into token shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.console.escapes import json_line
from cli.console.progress import encode_progress
from cli.flags.arguments import AsJson, Specials, Texts, Unknown
from cli.flags.loading import load_tokenizer
from cli.flags.options import Given, takes
from lm.config.data import DataConfig
from lm.config.run import RunConfig
from lm.config.tokenizer import TokenizerConfig
from lm.errors import UsageError

if TYPE_CHECKING:
    from lm.data.corpus import Corpus
    from lm.data.manifest import Manifest
    from lm.data.prepare import Prepared
    from lm.tokenizer.tokenizer import Tokenizer

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


_MUCH_REPEATED = 0.05  # as a share of the held-out text; even stories made from templates stay below 0.02


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
    as_json: AsJson = False,
    given: Given,
) -> None:
    """Turn a corpus into token shards, as lm train does by itself.

    A second run with the same inputs reuses the shards. With -o, give the folder to lm train as its corpus; without,
    they go to the cache, where lm train finds them if it is given the same corpus and --tokenizer.
    """
    own = {"special": special, "unknown": unknown}
    training_flags = [
        *given.typed["tokenizer"],
        *(name for name, value in own.items() if value and name not in given.environment),
    ]
    if tokenizer is not None and training_flags:
        flag = "--" + training_flags[0].replace("_", "-")
        raise UsageError(f"{flag} is for training a tokenizer; it does not go with --tokenizer")
    from lm.data.corpus import survey
    from lm.data.training_data import prepare_corpus
    from lm.text.files import text_files

    config = RunConfig(tokenizer=TokenizerConfig(**given["tokenizer"]), data=DataConfig(**given["data"]))
    files = text_files(corpus, field=config.data.field, supervised=config.data.supervised)
    loaded = None if tokenizer is None else load_tokenizer(tokenizer)
    surveyed = survey(files, config.data)
    loaded = loaded or trained_tokenizer(surveyed, config.tokenizer, special=special, unknown=unknown)
    with encode_progress() as progress:
        prepared = prepare_corpus(surveyed, loaded, folder=out, force=force, progress=progress)
    report = _report(prepared)
    _show(report)
    note_repetition(prepared.manifest)
    if as_json:
        print(json_line(report))


def trained_tokenizer(
    corpus: Corpus, config: TokenizerConfig, *, special: Sequence[str] | None = None, unknown: str | None = None
) -> Tokenizer:
    """A tokenizer trained on a corpus, or found as it was trained on the same before."""
    from cli.console.messages import note
    from cli.console.numbers import size
    from lm.data.corpus import train_tokenizer
    from lm.tokenizer.training import SAMPLE_BYTES

    if config.kind == "bpe" and corpus.files_bytes > SAMPLE_BYTES:
        note(f"tokenizer trained on a sample: {size(SAMPLE_BYTES)} of {size(corpus.files_bytes)}")
    return train_tokenizer(corpus, config, special_tokens=special or (), unknown=unknown)


def _report(prepared: Prepared[Manifest]) -> dict[str, Any]:
    manifest = prepared.manifest
    splits = {
        name: {"documents": split.documents, "tokens": split.tokens, "bytes": split.bytes, "shards": len(split.shards)}
        for name, split in manifest.splits.items()
    }
    return {
        "folder": str(prepared.folder),
        "reused": prepared.reused,
        "vocab_size": manifest.vocab_size,
        "tokenizer": manifest.tokenizer,
        "splits": splits,
        "repetition": manifest.repetition and vars(manifest.repetition),
    }


def _show(report: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from cli.console.messages import note
    from cli.console.numbers import size

    table = Table("split", box=None, pad_edge=False)
    for column in ("documents", "tokens", "text", "bytes per token"):
        table.add_column(column, justify="right")
    for name, split in report["splits"].items():
        compression = f"{split['bytes'] / split['tokens']:.2f}" if split["tokens"] else "–"
        table.add_row(name, f"{split['documents']:,}", f"{split['tokens']:,}", size(split["bytes"]), compression)
    console = Console(stderr=True, highlight=False)
    console.print(table)
    note(f"{'reused' if report['reused'] else 'wrote'} {report['folder']}")


def note_repetition(manifest: Manifest) -> None:
    """Say what of a corpus is there more than once, as far as that matters."""
    from cli.console.messages import fact

    found = manifest.repetition
    if found is None:
        return
    documents = sum(split.documents for split in manifest.splits.values())
    if found.documents:
        fact(
            "copies",
            f"{found.documents:,} of {documents:,} documents ({found.documents / documents:.1%}) repeat another",
        )
    if found.held_out is not None and found.held_out >= _MUCH_REPEATED:
        fact(
            "warning",
            f"{found.held_out:.0%} of the held-out text occurs in the training text too: the validation loss "
            "will look better than it is",
        )

"""`lm corpus`: list and download public and bundled corpora."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli import completion
from cli.arguments import AsJson
from cli.console.escapes import escape_for_stream, format_json_line

app = typer.Typer(help="List and download corpora.", rich_markup_mode=None)

_DEFAULT_FOLDER = Path("data")


@app.command("list")
def list_corpora(*, as_json: AsJson = False) -> None:
    """List the bundled corpora, and public ones to download."""
    from cli.console.tables import print_table
    from cli.corpus_download import corpus_to_dict, download_size
    from lm.text.public.catalogue import CORPORA

    if as_json:
        print(format_json_line([corpus_to_dict(corpus) for corpus in CORPORA]))
        return
    rows = [(corpus.name, download_size(corpus), corpus.licence, corpus.description) for corpus in CORPORA]
    print_table(("name", "download", "licence", "description"), rows)


@app.command()
def get(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="A name of lm corpus list.", autocompletion=completion.complete_corpora),
    ],
    *,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FOLDER", help="Folder of the files. [default: data/NAME]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Download a corpus, and say how to train on it.

    If a download is interrupted, the same command continues where it stopped; existing files are only verified. Files
    are compared with their published SHA-256; where none is published, that of the first download is recorded in
    SHA256SUMS beside them.

    Examples:
      lm corpus get tinyshakespeare
      lm corpus get tinystories -o /data/stories
    """
    from cli.console.messages import print_note, quote
    from cli.corpus_download import copy_files, fetch_files
    from lm.text.public import catalogue

    corpus = catalogue.find_corpus(name)
    if corpus.shipped:
        folder, paths = copy_files(corpus, out)
        files = [{"path": str(path)} for path in paths]
    else:
        folder = out or _DEFAULT_FOLDER / corpus.name
        fetched = fetch_files(corpus, folder)
        paths = [file.path for file in fetched]
        files = [{**vars(file), "path": str(file.path)} for file in fetched]
    validation = "" if corpus.validation is None else f" --validation {corpus.validation}"
    command = f"lm train {' '.join(corpus.train)}{validation}".format(folder=quote(folder))
    print_note(f"licence: {corpus.licence}\ntrain on it: {command}")
    if as_json:
        print(format_json_line({"name": corpus.name, "folder": str(folder), "files": files, "train": command}))
    else:
        print("\n".join(escape_for_stream(str(path)) for path in paths))

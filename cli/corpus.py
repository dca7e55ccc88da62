"""`lm corpus`: list and download public and bundled corpora."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.arguments import AsJson
from cli.console.text import escape_for_stream, format_json_line, print_note, quote

app = typer.Typer(help="List and download corpora.", rich_markup_mode=None)


@app.command("list")
def list_corpora(*, as_json: AsJson = False) -> None:
    """List the bundled corpora, and public ones to download."""
    from cli.console.tables import print_table
    from cli.console.text import format_bytes
    from lm.text.public import CORPORA

    if as_json:
        print(format_json_line([corpus._asdict() for corpus in CORPORA]))
        return
    rows = [(one.name, format_bytes(one.size), one.licence, one.description) for one in CORPORA]
    print_table(("name", "download", "licence", "description"), rows)


@app.command()
def get(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="A name of lm corpus list."),
    ],
    *,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FOLDER", help="Folder of the files. [default: data/NAME]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Download a corpus, and print how to train on it.

    Files with a published SHA-256 are verified.

    Examples:
      lm corpus get tinyshakespeare
      lm corpus get tinystories -o /data/stories
    """
    from cli.console.progress import show_counter
    from lm.text import public

    corpus = public.find_corpus(name)
    folder, paths = out or Path("data") / corpus.name, []
    for url, checksum in corpus.files.items():
        with show_counter(url.rpartition("/")[2], "bytes") as progress:
            paths.append(str(public.fetch(url, folder, checksum=checksum, progress=progress)))
    command = f"lm train {corpus.train}".format(folder=quote(folder))
    print_note(f"licence: {corpus.licence}\ntrain on it: {command}")
    if as_json:
        report = {"name": corpus.name, "folder": str(folder), "files": paths, "train": command}
        print(format_json_line(report))
    else:
        print("\n".join(escape_for_stream(path) for path in paths))

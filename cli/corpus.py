"""`lm corpus`: the corpora that ship, and those that everybody knows."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

import corpora
from cli.console.escapes import for_stream, json_line
from cli.console.messages import note
from cli.console.numbers import size
from cli.console.tables import table
from cli.flags import completion
from cli.flags.arguments import AsJson
from lm.files import replaced_bytes
from lm.text.public import catalogue
from lm.text.public.catalogue import PublicCorpus

app = typer.Typer(help="List and fetch corpora.", rich_markup_mode=None)

FOLDER = Path("data")


@app.command("list")
def list_corpora(*, as_json: AsJson = False) -> None:
    """List the corpora that ship with lm, and public ones that lm corpus get fetches."""
    if as_json:
        print(json_line([_described(corpus) for corpus in catalogue.CORPORA]))
        return
    rows = [(corpus.name, _size(corpus), corpus.licence, corpus.description) for corpus in catalogue.CORPORA]
    table(("name", "download", "licence", "what it is"), rows)


def _size(corpus: PublicCorpus) -> str:
    return "–" if corpus.shipped else ("" if corpus.is_size_exact else "~ ") + size(corpus.size)


def _described(corpus: PublicCorpus) -> dict[str, Any]:
    return {
        "name": corpus.name,
        "description": corpus.description,
        "licence": corpus.licence,
        "size": corpus.size,
        "size_is_exact": corpus.is_size_exact,
        "files": [{"url": file.url, "size": file.size, "sha256": file.sha256} for file in corpus.files],
        "shipped": [str(path) for path in _shipped(corpus)],
    }


def _shipped(corpus: PublicCorpus) -> list[Path]:
    return [corpora.path(name) for name in corpus.shipped]


@app.command()
def get(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="As lm corpus list has it.", autocompletion=completion.corpora)
    ],
    *,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FOLDER", help="Folder of the files [default: data/NAME].")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a corpus, print where its files are, and say how to train on it.

    If a download is interrupted, the same command goes on where it stopped; files that are there already are only
    checked. Files are compared with their published sha256; where none is published, that of the first download is
    recorded in SHA256SUMS beside them.

    Examples:
      lm corpus get tinyshakespeare
      lm corpus get tinystories -o /data/stories
    """
    corpus = catalogue.find(name)
    if corpus.shipped:
        folder, paths = _copied(corpus, out)
        files = [{"path": str(path)} for path in paths]
    else:
        from cli.fetching import fetch_files

        folder = out or FOLDER / corpus.name
        fetched = fetch_files(corpus, folder)
        paths = [file.path for file in fetched]
        files = [{**vars(file), "path": str(file.path)} for file in fetched]
    command = "lm train " + corpus.train.format(folder=shlex.quote(str(folder)))
    note(f"licence: {corpus.licence}\ntrain on it: {command}")
    if as_json:
        print(json_line({"name": corpus.name, "folder": str(folder), "files": files, "train": command}))
    else:
        print("\n".join(for_stream(str(path)) for path in paths))


def _copied(corpus: PublicCorpus, out: Path | None) -> tuple[Path, list[Path]]:
    """The folder and the files of a corpus that ships: where they are, or copies where they are wanted."""
    paths = _shipped(corpus)
    if out is None:
        return paths[0].parent, paths
    copies = [out / path.name for path in paths]
    for path, copy in zip(paths, copies, strict=True):
        with replaced_bytes(copy) as file:
            file.write(path.read_bytes())
    return out, copies

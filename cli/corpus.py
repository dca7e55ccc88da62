"""`lm corpus`: the corpora that ship, and those that everybody knows."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.console.escapes import for_stream, json_line
from cli.flags import completion
from cli.flags.arguments import AsJson

if TYPE_CHECKING:
    from lm.text.public.catalogue import PublicCorpus
    from lm.text.public.fetching import Fetched

app = typer.Typer(help="List and fetch corpora.", rich_markup_mode=None)

FOLDER = Path("data")

_CHECKS = {
    "published": "sha256 as published",
    "recorded": "sha256 as at the first download",
    "first": "sha256 not published: recorded now, checked from now on",
}


@app.command("list")
def list_corpora(*, as_json: AsJson = False) -> None:
    """List the corpora that ship with lm, and public ones that lm corpus get fetches."""
    from cli.console.tables import table
    from lm.text.public.catalogue import CORPORA

    if as_json:
        print(json_line([_described(corpus) for corpus in CORPORA]))
        return
    rows = [(corpus.name, _size(corpus), corpus.licence, corpus.description) for corpus in CORPORA]
    table(("name", "download", "licence", "what it is"), rows)


def _size(corpus: PublicCorpus) -> str:
    from cli.console.numbers import size

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
    import corpora

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

    A download that was cut goes on where it stopped when the command is given again; what is there already is only
    checked. Files are held against their published sha256; where none is published the first download's is recorded in
    SHA256SUMS beside them.

    Examples:
      lm corpus get tinyshakespeare
      lm corpus get tinystories -o /data/stories
    """
    from cli.console.messages import note
    from cli.console.numbers import size
    from lm.text.public import catalogue

    corpus = catalogue.find(name)
    if corpus.shipped:
        folder, paths, fetched = _copied(corpus, out)
    else:
        folder = out or FOLDER / corpus.name
        fetched = _fetched(corpus, folder)
        paths = [file.path for file in fetched]
        for file in fetched:
            note(f"{file.path}: {size(file.size)}, {'there already, ' if file.reused else ''}{_CHECKS[file.check]}")
    command = "lm train " + corpus.train.format(folder=shlex.quote(str(folder)))
    note(f"licence: {corpus.licence}\ntrain on it: {command}")
    if as_json:
        files = [{"path": str(file.path), "size": file.size, "sha256": file.sha256, "check": file.check,
                  "reused": file.reused} for file in fetched] or [{"path": str(path)} for path in paths]  # fmt: skip
        print(json_line({"name": corpus.name, "folder": str(folder), "files": files, "train": command}))
    else:
        print("\n".join(for_stream(str(path)) for path in paths))


def _copied(corpus: PublicCorpus, out: Path | None) -> tuple[Path, list[Path], list[Fetched]]:
    """The files that ship: where they are, or copies where they are wanted."""
    from lm.files import replaced_bytes

    paths = _shipped(corpus)
    if out is None:
        return paths[0].parent, paths, []
    copies = [out / path.name for path in paths]
    for path, copy in zip(paths, copies, strict=True):
        with replaced_bytes(copy) as file:
            file.write(path.read_bytes())
    return out, copies, []


def _fetched(corpus: PublicCorpus, folder: Path) -> list[Fetched]:
    from lm.text.public import unpacking
    from lm.text.public.fetching import fetch

    missing = [file for file in corpus.files if file.text and not (folder / file.text).exists()]
    for file in missing:
        unpacking.check(file.name)
    with _progress() as show:
        return [fetch(file, folder, progress=show(file.name)) for file in corpus.files]


@contextmanager
def _progress() -> Iterator[Callable[[str], Callable[[int, int | None], None] | None]]:
    """Bars for downloads on stderr: called with a name, gives what is fed with (bytes done, bytes in all)."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from cli.console.progress import progress_console

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(compact=True), console=progress_console(), transient=True) as bars:

        def show(name: str) -> Callable[[int, int | None], None]:
            task = bars.add_task(name, total=None, visible=False)
            return lambda done, total: bars.update(task, completed=done, total=total, visible=True)

        yield show

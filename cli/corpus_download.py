"""Download public corpora with progress bars, or copy those that ship."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn

import corpora
from cli.console.messages import print_note
from cli.console.numbers import format_bytes
from cli.console.progress import create_progress
from lm.files import atomic_write_bytes
from lm.text.public.catalogue import PublicCorpus
from lm.text.public.fetching import FetchedFile, check_unpackable, fetch_file

_CHECKS = {
    "published": "sha256 as published",
    "recorded": "sha256 as at the first download",
    "first": "sha256 not published: recorded now, checked from now on",
}


def download_size(corpus: PublicCorpus) -> str:
    """Return the download size; a dash for a corpus that ships."""
    return "–" if corpus.shipped else ("" if corpus.is_size_exact else "~ ") + format_bytes(corpus.size)


def corpus_to_dict(corpus: PublicCorpus) -> dict[str, Any]:
    """Return a corpus as plain values."""
    return {
        "name": corpus.name,
        "description": corpus.description,
        "licence": corpus.licence,
        "size": corpus.size,
        "size_is_exact": corpus.is_size_exact,
        "files": [{"url": file.url, "size": file.size, "sha256": file.sha256} for file in corpus.files],
        "shipped": [str(path) for path in _shipped_files(corpus)],
    }


def _shipped_files(corpus: PublicCorpus) -> list[Path]:
    return [corpora.path(name) for name in corpus.shipped]


def copy_files(corpus: PublicCorpus, out: Path | None) -> tuple[Path, list[Path]]:
    """Return folder and files of a corpus that ships, copied if `out` is given."""
    paths = _shipped_files(corpus)
    if out is None:
        return paths[0].parent, paths
    copies = [out / path.name for path in paths]
    for path, copy in zip(paths, copies, strict=True):
        with atomic_write_bytes(copy) as file:
            file.write(path.read_bytes())
    return out, copies


def fetch_files(corpus: PublicCorpus, folder: Path) -> list[FetchedFile]:
    """Download the files of a corpus, and record how each was verified."""
    for file in corpus.files:
        if file.text and not (folder / file.text).exists():
            check_unpackable(file.name)
    with _download_bars() as bar:
        fetched = [fetch_file(file, folder, progress=bar(file.name)) for file in corpus.files]
    for download in fetched:
        origin = "already downloaded, " if download.reused else ""
        print_note(f"{download.path}: {format_bytes(download.size)}, {origin}{_CHECKS[download.check]}")
    return fetched


@contextmanager
def _download_bars() -> Iterator[Callable[[str], Callable[[int, int | None], None] | None]]:
    """Show download bars; yields a function that returns the progress callback of a file."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with create_progress(*columns, TimeRemainingColumn(compact=True)) as bars:

        def bar(name: str) -> Callable[[int, int | None], None]:
            task = bars.add_task(name, total=None, visible=False)
            return lambda done, total: bars.update(task, completed=done, total=total, visible=True)

        yield bar

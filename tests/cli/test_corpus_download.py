"""Each file of a corpus is fetched, and how it was checked is told."""

from __future__ import annotations

from cli import corpus_download
from cli.corpus_download import fetch_files
from lm.text.public.catalogue import CORPORA
from lm.text.public.fetching import FetchedFile

CORPUS = next(corpus for corpus in CORPORA if not corpus.shipped)


def fetched(file, folder, *, progress) -> FetchedFile:
    """As a download of 1,500 bytes whose progress is told, of a file that was there already."""
    if progress:
        progress(700, 1500)
    return FetchedFile(folder / file.name, 1500, "0" * 64, "recorded", reused=True)


def test_every_file_has_a_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(corpus_download, "fetch_file", fetched)
    files = fetch_files(CORPUS, tmp_path)
    assert [file.path.name for file in files] == [file.name for file in CORPUS.files]
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"{file.path}: 1.5 kB, there already, sha256 as at the first download" for file in files]


def test_a_terminal_sees_a_bar_for_each(monkeypatch, tmp_path, terminal):
    screen = terminal(80)
    monkeypatch.setattr(corpus_download, "fetch_file", fetched)
    fetch_files(CORPUS, tmp_path)
    for file in CORPUS.files:
        assert any(line.startswith(file.name) and "0.7/1.5 kB" in line for line in screen.lines)

"""Each file of a corpus is fetched, and how it was checked is told."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli import corpus_download
from cli.corpus_download import fetch_files
from cli.main import run
from lm.text.public import catalogue, download
from lm.text.public.catalogue import CORPORA, PublicCorpus, PublicFile
from lm.text.public.fetching import FetchedFile
from tests.lm.full_disk import full_disk
from tests.lm.text.public.file_server import FileServer, serving

TEXT = b"a small corpus\n" * 100


@pytest.fixture
def server(tmp_path, monkeypatch) -> Iterator[FileServer]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download, "PAUSES", ())
    with serving() as running:
        running.files["a.txt"] = TEXT
        files = (PublicFile(running.url("a.txt"), len(TEXT), hashlib.sha256(TEXT).hexdigest()),)
        corpus = PublicCorpus("small", "a corpus", "CC0", ("{folder}/a.txt",), files, validation="0.2")
        monkeypatch.setattr(catalogue, "CORPORA", (*catalogue.CORPORA, corpus))
        yield running


def test_the_list_says_what_there_is(capsys):
    assert run(["corpus", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(catalogue.CORPORA)
    assert any("tinystories" in line and "~ 2.25 GB" in line and "CDLA-Sharing-1.0" in line for line in lines)
    assert run(["corpus", "list", "--json"]) == 0
    listed = {corpus["name"]: corpus for corpus in json.loads(capsys.readouterr().out)}
    assert listed["multi30k"]["size_is_exact"]
    assert not listed["wikitext-2"]["size_is_exact"]
    assert all(Path(path).is_file() for path in listed["parallel"]["shipped"])


def test_get_prints_the_files_and_the_command(server, capsys):
    assert run(["corpus", "get", "small"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "data/small/a.txt\n"
    assert "train on it: lm train data/small/a.txt --validation 0.2" in captured.err
    assert "licence: CC0" in captured.err
    assert "sha256 as published" in captured.err
    assert "\x1b" not in captured.err
    assert Path("data/small/a.txt").read_bytes() == TEXT


def test_get_again_only_checks(server, capsys):
    for reused in (False, True):
        assert run(["corpus", "get", "small", "-o", "my folder", "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["train"] == "lm train 'my folder'/a.txt --validation 0.2"
        assert report["files"][0]["reused"] == reused
    assert len(server.asked) == 1


def test_what_ships_is_there_or_is_copied(tmp_path, capsys):
    assert run(["corpus", "get", "stories"]) == 0
    assert all(Path(line).is_file() for line in capsys.readouterr().out.splitlines())
    assert run(["corpus", "get", "stories", "-o", str(tmp_path / "s")]) == 0
    assert capsys.readouterr().out.splitlines() == [str(tmp_path / "s" / name) for name in ("train.txt", "heldout.txt")]


def test_a_failed_download_is_one_line(server, capsys):
    server.files.clear()
    assert run(["corpus", "get", "small"]) == 1
    captured = capsys.readouterr()
    assert "404" in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_a_copy_that_does_not_fit_is_named_and_not_there(tmp_path, capsys):
    with full_disk(after=100):
        assert run(["corpus", "get", "stories", "-o", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"lm: {tmp_path.resolve() / 'train.txt'}: File too large\n"
    assert list(tmp_path.iterdir()) == []


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
    assert lines == [f"{file.path}: 1.5 kB, already downloaded, sha256 as at the first download" for file in files]


def test_a_terminal_sees_a_bar_for_each(monkeypatch, tmp_path, terminal):
    screen = terminal(80)
    monkeypatch.setattr(corpus_download, "fetch_file", fetched)
    fetch_files(CORPUS, tmp_path)
    for file in CORPUS.files:
        assert any(line.startswith(file.name) and "0.7/1.5 kB" in line for line in screen.lines)

"""Each file of a corpus is fetched, and how it was checked is told."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.main import run
from lm.text.public import catalogue, download
from lm.text.public.catalogue import PublicCorpus, PublicFile
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
    assert run(["corpus", "list", "--json"]) == 0
    listed = {corpus["name"]: corpus for corpus in json.loads(capsys.readouterr().out)}
    assert listed["multi30k"]["size_is_exact"]
    assert all(Path(path).is_file() for path in listed["parallel"]["shipped"])


def test_get_prints_the_files_and_the_command(server, capsys):
    assert run(["corpus", "get", "small"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "data/small/a.txt\n"
    assert "train on it: lm train data/small/a.txt --validation 0.2" in captured.err
    assert "licence: CC0" in captured.err
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


def test_a_copy_that_does_not_fit_is_not_there(tmp_path):
    with full_disk(after=4096):
        assert run(["corpus", "get", "stories", "-o", str(tmp_path)]) == 1
    assert list(tmp_path.iterdir()) == []

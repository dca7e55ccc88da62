"""`lm corpus`: bundled corpora are there, public ones are downloaded (see tests/lm/text/test_public.py)."""

import json

from cli.main import run
from lm.text import public
from lm.text.public import CORPORA, PublicCorpus


def test_corpora_are_listed(succeed):
    assert len(succeed("corpus", "list").splitlines()) == 1 + len(CORPORA)
    listed = json.loads(succeed("corpus", "list", "--json"))
    assert [corpus["name"] for corpus in listed] == [corpus.name for corpus in CORPORA]


def test_get_prints_the_files_and_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    files = {"https://example.invalid/a.txt": None}
    corpus = PublicCorpus("small", "a corpus", "CC0", "{folder}/a.txt --validation 0.2", 3, files)
    monkeypatch.setattr(public, "CORPORA", (corpus,))
    (tmp_path / "my folder").mkdir()
    (tmp_path / "my folder" / "a.txt").write_text("abc")
    assert run(["corpus", "get", "small", "-o", "my folder"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "my folder/a.txt\n"
    assert captured.err == "licence: CC0\ntrain on it: lm train 'my folder'/a.txt --validation 0.2\n"
    (tmp_path / "data").mkdir()
    (tmp_path / "my folder").rename(tmp_path / "data/small")
    assert run(["corpus", "get", "small"]) == 0
    assert capsys.readouterr().out == "data/small/a.txt\n"

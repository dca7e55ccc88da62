"""What a corpus repeats is told where it matters, and its tokenizer is trained or found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.corpus_report import train_or_load_tokenizer
from cli.main import run
from lm.config.data import DataConfig
from lm.config.tokenizer import TokenizerConfig
from lm.corpus.corpus import scan_corpus
from lm.text.files import find_text_files
from tests.cli.test_prepare import TEXT, folder

__all__ = ["folder"]


def test_repeated_text_is_told_and_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    stories = [f"{number} " + " ".join(f"{number}{word}" for word in TEXT.split()[:60]) for number in range(20)]
    Path("train.txt").write_text("\n<|endoftext|>\n".join([*stories[:18], stories[3]]))
    Path("held.txt").write_text("\n<|endoftext|>\n".join(stories[16:]))
    arguments = ["prepare", "train.txt", "--validation", "held.txt", "--kind", "byte", "-o", "out", "--json"]
    for _ in range(2):  # the second time it is read from the folder
        assert run(arguments) == 0
        captured = capsys.readouterr()
        found = json.loads(captured.out)["repetition"]
        assert found["documents"] == 2  # the last one of train.txt lacks the line end
        assert found["held_out"] == pytest.approx(0.5, abs=0.05)
        assert "copies  2 of 23 documents (8.7%) repeat another" in captured.err
        assert "warning 50% of the held-out text occurs in the training text too" in captured.err


def test_the_stories_that_ship_are_no_cause_for_warning(capsys: pytest.CaptureFixture[str]) -> None:
    corpora = Path(__file__).parents[2] / "corpora" / "stories"
    arguments = ["prepare", str(corpora / "train.txt"), "--validation", str(corpora / "heldout.txt"), "--kind", "byte"]
    assert run([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert 0 < json.loads(captured.out)["repetition"]["held_out"] < 0.03
    assert "warning" not in captured.err
    assert "copies" not in captured.err


def test_a_tokenizer_is_trained_once_for_the_same_corpus(folder, capsys):
    corpus = scan_corpus(find_text_files(["corpus.txt"]), DataConfig())
    config = TokenizerConfig(kind="bpe", vocab_size=280)
    first, second = (train_or_load_tokenizer(corpus, config) for _ in range(2))
    assert first.sha256 == second.sha256
    assert train_or_load_tokenizer(corpus, config, special=["<x>"]).special_tokens.keys() == {"<|endoftext|>", "<x>"}
    assert capsys.readouterr().err == ""

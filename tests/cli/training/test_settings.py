"""Settings of one kind of corpus are refused for the other, where the user types them."""

from __future__ import annotations

import pytest

from cli.main import run
from lm.config.data import ParallelConfig
from lm.config.options import options
from tests.system.conftest import SMALL

_OF_PAIRS = {
    "--bidirectional": (), "--source-language": ("en",), "--target-language": ("de",), "--source-field": ("a",),
    "--target-field": ("b",), "--separate-vocabularies": (), "--max-length": ("99",), "--max-ratio": ("9",),
    "--bpe-dropout": ("0.1",), "--bpe-dropout-until": ("0.5",), "--best-by": ("bleu",), "--bleu-sentences": ("5",),
    "--validation-source": ("text.en", "--validation-target", "text.de"),
}  # fmt: skip


_OF_TEXT = {"--separator": ("%%",), "--field": ("body",), "--supervised": ()}


@pytest.mark.parametrize("flag", [*_OF_PAIRS, *_OF_TEXT])
def test_flags_of_the_other_kind_of_corpus_are_refused(place, pairs, capsys, tmp_path, flag):
    corpus = [str(place / "text.txt")] if flag in _OF_PAIRS else pairs
    values = _OF_PAIRS[flag] if flag in _OF_PAIRS else _OF_TEXT[flag]
    assert run(["train", *corpus, "-o", str(tmp_path / "run"), "--steps", "1", flag, *values]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"lm: {flag} is for {'pairs' if flag in _OF_PAIRS else 'text'}")
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_every_setting_of_pairs_is_known_to_be_one():
    assert {described.flag for described in options(ParallelConfig)} < set(_OF_PAIRS)


def test_the_environment_may_speak_of_both_kinds_of_corpus(place, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("LM_BPE_DROPOUT", "0.1")
    flags = ["--steps", "1", "--no-bidirectional", "--best-by", "loss", *SMALL]
    assert run(["train", str(place / "text.txt"), "-o", str(tmp_path / "run"), *flags]) == 0

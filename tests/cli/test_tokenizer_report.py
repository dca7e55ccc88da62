"""What a tokenizer was trained on is told in a sentence."""

from __future__ import annotations

import pytest

from cli.tokenizer_report import build_training_report, format_training_report
from lm.config.data import DataConfig
from lm.config.tokenizer import TokenizerConfig
from lm.corpus.corpus import read_training_texts, scan_corpus
from lm.text.files import find_text_files
from lm.tokenizer import training


@pytest.mark.parametrize(
    ("kind", "sample", "used"),
    [("bpe", 500, "trained on 500 B"), ("bpe", 100, "trained on a sample: 100 B of 500 B"), ("byte", 0, "nothing")],
)
def test_a_sentence(kind, sample, used):
    made = {"path": "t.json", "kind": kind, "vocab_size": 1234, "bytes_per_token": 2.5, "sample_bytes": sample,
            "corpus_bytes": 500}  # fmt: skip
    assert format_training_report(made).startswith(f"t.json: {kind}, vocabulary 1,234, 2.50 bytes per token; {used}")


def test_bytes_per_token_are_those_of_the_corpus(tmp_path):
    (tmp_path / "text.txt").write_text("the owl saw the fox. " * 50)
    corpus = scan_corpus(find_text_files([str(tmp_path / "text.txt")]), DataConfig(validation="0"))
    config = TokenizerConfig(kind="bpe", vocab_size=270)
    trained = training.train(read_training_texts(corpus), config, corpus_bytes=corpus.files_bytes)
    found = build_training_report(trained, corpus, config, tmp_path / "t.json")
    ids = trained.tokenizer.encode((tmp_path / "text.txt").read_text())
    assert found["bytes_per_token"] == pytest.approx(1050 / len(ids), abs=1e-4)  # four decimals are shown
    assert (found["corpus_bytes"], found["vocab_size"]) == (1050, trained.tokenizer.vocab_size)

"""N-gram baselines choose whether BPE merges within words or within characters."""

import pytest

from lm.config.data import DataConfig
from lm.config.tokenizer import TokenizerConfig
from lm.corpus.survey import read_beginnings, scan_corpus
from lm.text.find import find_text_files
from lm.training.planning.bpe_merges import SAMPLE_BYTES, measure_merge_baselines
from tests.lm.training.texts import of_characters, of_words


@pytest.mark.medium
def test_a_text_of_characters_and_one_of_words():
    config = TokenizerConfig(vocab_size=1024)
    found = measure_merge_baselines([of_characters(12_000)], config)
    assert found is not None
    assert found.settings()["tokenizer"] == {"merges": "characters", "vocab_size": found.vocab_size}
    assert 256 < found.vocab_size < 3000
    assert f"characters {found.characters:.2f}, BPE {found.words:.2f}" in found.reason
    found = measure_merge_baselines([of_words(30_000, letters="абвгдежзиклмнопр")], config)
    assert found is not None
    assert found.settings() == {"tokenizer": {"merges": "words"}}


def test_a_sample_is_the_beginning_of_each_file(tmp_path):
    for name, text in (("a.txt", "é" * 30_000), ("b.txt", "字" * 10_000), ("c.txt", "x")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    files = find_text_files([str(tmp_path / name) for name in ("a.txt", "b.txt", "c.txt")])
    surveyed = scan_corpus(files, DataConfig(validation="0"))
    a, b, c = read_beginnings(surveyed, limit=9000)
    assert (set(a), set(b), c) == ({"é"}, {"字"}, "x")
    assert len(a) == pytest.approx(3000, abs=1)
    assert len(b) == pytest.approx(1000, abs=1)
    assert list(map(len, read_beginnings(surveyed, limit=SAMPLE_BYTES))) == [30_000, 10_000, 1]

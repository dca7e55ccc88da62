"""Pairs read back as the tokenizer made them, and damage is named."""

from pathlib import Path

import pytest

from lm.corpus.prepare_pairs import prepare_pairs
from lm.corpus.tokenized_pairs import open_pairs
from lm.errors import InputError
from tests.lm.corpus.parallel_text import lines
from tests.lm.corpus.small_pairs import BYTES, PLAIN, corpus


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_damage_is_noticed(tmp_path):
    made = corpus(tmp_path, *lines(30))
    folder = prepare_pairs(made, BYTES, PLAIN).folder
    path = folder / "train-target.npy"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(InputError, match="train-target.npy: missing or damaged"):
        open_pairs(folder)
    assert not prepare_pairs(made, BYTES, PLAIN).reused
    assert open_pairs(folder).manifest.splits["train"].pairs == 30
    with pytest.raises(InputError, match="it has no manifest.json"):
        open_pairs(tmp_path)

"""Every public corpus can be had in one way, and its commands name its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from lm.errors import UsageError
from lm.text.public.catalogue import CORPORA, find_corpus


def test_every_corpus_can_be_had_in_one_way() -> None:
    assert len({corpus.name for corpus in CORPORA}) == len(CORPORA)
    for corpus in CORPORA:
        made = [file.text or file.name for file in corpus.files] or [Path(name).name for name in corpus.shipped]
        assert len(set(made)) == len(made) > 0
        assert bool(corpus.files) != bool(corpus.shipped)
        named = (*corpus.train, corpus.validation or "")
        used = [word.removeprefix("{folder}/") for word in named if word.startswith("{folder}/")]
        assert used
        assert set(used) <= set(made)
        for file in corpus.files:
            assert file.url.startswith("https://")
            assert file.size > 0
            assert file.sha256 is None or len(bytes.fromhex(file.sha256)) == 32


def test_an_unknown_name_suggests_one() -> None:
    assert find_corpus("TinyStories").name == "tinystories"
    with pytest.raises(UsageError, match=r"did you mean 'enwik8'\?"):
        find_corpus("enwiki8")

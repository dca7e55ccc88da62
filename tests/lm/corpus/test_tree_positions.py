"""Every token of a word has the word's place in the tree, whatever a tokenizer makes of it."""

from __future__ import annotations

import numpy as np
import pytest

from lm.config.tokenizer import TokenizerConfig
from lm.corpus.ragged import RaggedArray
from lm.corpus.tree_positions import TreeReader, wrap_sources
from lm.text.dependency_trees import compute_tree_positions
from lm.tokenizer import training
from lm.tokenizer.special_tokens import SpecialTokenFrame
from lm.tokenizer.tokenizer import Tokenizer

SENTENCE, HEADS = "Zwölf Füchse, 狐狸 laufen  schnell…", (2, 4, 2, 0, 4)
WORDS = SENTENCE.split()


def tokenizer(kind: str) -> Tokenizer:
    text = SENTENCE * 3
    config = TokenizerConfig(kind=kind, vocab_size=300)
    return training.train([text], config, corpus_bytes=len(text.encode())).tokenizer


@pytest.mark.parametrize("kind", ["bpe", "char", "byte"])
def test_the_words_of_tokens_are_those_that_they_spell(kind: str) -> None:
    made = tokenizer(kind)
    ids = made.encode_batch([SENTENCE])[0]
    words = TreeReader(made).words(SENTENCE, ids)
    assert len(words) == len(ids) > len(WORDS)
    for number, word in enumerate(WORDS):
        spelled = b"".join(made.token_bytes(index) for index in ids[words == number].tolist())
        assert spelled.decode().strip() == word


@pytest.mark.parametrize("kind", ["bpe", "char", "byte"])
def test_tokens_stand_beside_the_places_of_their_words(kind: str) -> None:
    reader, ids = TreeReader(tokenizer(kind)), tokenizer(kind).encode(SENTENCE)
    read, places = reader.read(SENTENCE, ids, HEADS), compute_tree_positions(HEADS)
    assert read[:, 0].tolist() == ids
    assert read[:, 1:].tolist() == [places[word].tolist() for word in reader.words(SENTENCE, ids)]


def test_nothing_has_no_words() -> None:
    assert TreeReader(tokenizer("bpe")).read("", [], ()).shape == (0, 4)


def test_special_tokens_stand_outside_the_tree() -> None:
    sources = RaggedArray(np.arange(12).reshape(3, 4), np.array([1, 3]))
    found = wrap_sources(sources, SpecialTokenFrame((7,), (8, 9)))
    assert found.row(0).tolist() == [[7, -1, -1, -1], [0, 1, 2, 3], [8, -1, -1, -1], [9, -1, -1, -1]]
    assert found.row(1)[:, 0].tolist() == [7, 4, 8, 8, 9]
    assert wrap_sources(RaggedArray.from_rows([[1, 2]]), SpecialTokenFrame((7,), (8,))).row(0).tolist() == [7, 1, 2, 8]

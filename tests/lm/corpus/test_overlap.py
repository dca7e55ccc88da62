"""How much of a text is training text."""

from __future__ import annotations

import random

import numpy as np
import pytest

from lm.config.data import DataConfig
from lm.config.tokenizer import TokenizerConfig
from lm.corpus import overlap
from lm.corpus.corpus import scan_corpus
from lm.corpus.overlap import TrainingOverlap
from lm.corpus.prepare_corpus import prepare_corpus
from lm.corpus.shards import read_manifest
from lm.text.files import find_text_files
from lm.tokenizer import training

WORDS = [
    f"{first}{second}" for first in ("ba", "ko", "mi", "tu", "re", "sol") for second in ("n", "ra", "st", "lo", "x")
]


def text_of(seed: int, sentences: int) -> str:
    source = random.Random(seed)
    return "".join(" ".join(source.choices(WORDS, k=9)) + ".\n" for _ in range(sentences))


@pytest.fixture(scope="module")
def trained_on() -> str:
    return text_of(1, 1200)


@pytest.fixture(scope="module", params=["end of text", "start and end", "none"])
def tokenizer(request, trained_on):
    special = {"end of text": ("<|endoftext|>",), "start and end": ("<s>", "</s>"), "none": ()}[request.param]
    config = TokenizerConfig(vocab_size=300)
    return training.train([trained_on], config, corpus_bytes=len(trained_on), special_tokens=special).tokenizer


def fractions(folder, tokenizer, *files: list[str]) -> list[float]:
    """Of files, which are documents; these come in two parts each."""
    found = TrainingOverlap(tokenizer)
    for number, documents in enumerate(files):
        for text in documents:
            ids = np.array(tokenizer.encode(text))
            found.add(number, ids[: len(ids) // 2], starts_document=True)
            found.add(number, ids[len(ids) // 2 :], starts_document=False)
    return [each.fraction for each in found.measure(folder).values()]


def prepared(tmp_path, tokenizer, documents: list[str], validation: str = "0.1"):
    path = tmp_path / "corpus.txt"
    path.write_text("<|endoftext|>\n".join(documents))
    config = DataConfig(validation=validation)
    return prepare_corpus(
        scan_corpus(find_text_files([str(path)]), config), tokenizer, folder=tmp_path / "tokens"
    ).folder


def test_the_fraction_of_one_document(tmp_path, tokenizer, trained_on):
    folder, other = prepared(tmp_path, tokenizer, [trained_on]), text_of(2, 1200)
    sentences = trained_on.splitlines(keepends=True)
    middle, end = "".join(sentences[300:500]), "".join(sentences[1090:])
    found = fractions(folder, tokenizer, [trained_on], [other], [middle], [end], [middle + text_of(3, 600)], [""])
    assert found[0] == pytest.approx(0.9, abs=0.02)
    assert found[2] == pytest.approx(1, abs=0.05)
    assert found[4] == pytest.approx(0.25, abs=0.03)
    assert [found[place] for place in (1, 3, 5)] == [0, 0, 0]


def test_short_documents_in_another_order(tmp_path, tokenizer, trained_on):
    if tokenizer.start_of_text is None:
        pytest.skip("nothing tells documents apart")
    sentences = trained_on.splitlines(keepends=True)
    folder = prepared(tmp_path, tokenizer, sentences, "0")
    seen, new = random.Random(4).sample(sentences, 200), text_of(5, 200).splitlines(keepends=True)
    assert fractions(folder, tokenizer, seen, new, [*seen, *new]) == [
        pytest.approx(1, abs=0.02), 0, pytest.approx(0.5, abs=0.02),
    ]  # fmt: skip


def test_short_documents_that_begin_where_two_blocks_overlap(tmp_path, tokenizer):
    words = text_of(6, 3200).split()
    documents = [" ".join(words[start : start + 2]) + "\n" for start in range(0, len(words), 2)]
    folder = prepared(tmp_path, tokenizer, documents, "0")
    assert read_manifest(folder).splits["train"].tokens > 65_536  # more than are hashed at once
    expected = 0 if tokenizer.start_of_text is None else pytest.approx(1, abs=0.02)
    assert fractions(folder, tokenizer, documents[:300]) == [expected]


def test_of_a_large_corpus_parts_are_read(tmp_path, tokenizer, trained_on, monkeypatch):
    folder = prepared(tmp_path, tokenizer, [trained_on], "0")
    monkeypatch.setattr(overlap, "_MOST_READ", 8192)
    monkeypatch.setattr(overlap, "_PART", 256)
    found = fractions(folder, tokenizer, [trained_on], [text_of(2, 1200)])
    assert found == [pytest.approx(1, abs=0.15), 0]


def test_what_is_compared_is_bounded(tmp_path, tokenizer, trained_on, monkeypatch):
    monkeypatch.setattr(overlap, "_MOST_TOKENS", 500)
    folder = prepared(tmp_path, tokenizer, [trained_on], "0")
    many = trained_on.splitlines(keepends=True)
    overlapping = TrainingOverlap(tokenizer)
    for sentence in many:
        overlapping.add(0, np.array(tokenizer.encode(sentence)), starts_document=sentence is many[0])
    assert 500 <= sum(map(len, overlapping._texts[0].parts)) < 600
    assert overlapping.measure(folder)[0].fraction > 0.8


def test_text_with_the_phrases_of_its_source_is_not_training_text(tmp_path, tokenizer):
    """A phrase of each passage is in others too, as a licence is in each file of a program."""
    phrases = [text_of(seed, 6) for seed in range(40)]
    passages = [phrases[number % 40] + text_of(100 + number, 30) for number in range(200)]
    folder = prepared(tmp_path, tokenizer, ["".join(passages[:100])])
    repeated = read_manifest(folder).repetition.held_out
    assert 0.02 < repeated < 0.2
    found = TrainingOverlap(tokenizer)
    short, seen = passages[150], "".join(passages[:20])
    for number, text in enumerate(["".join(passages[100:]), short, "".join(passages[100:140]) + seen]):
        found.add(number, np.array(tokenizer.encode(text)), starts_document=True)
    same_source, of_one_passage, leaked = found.measure(folder).values()
    assert same_source.fraction == pytest.approx(repeated, abs=0.05)
    assert [same_source.is_notable, of_one_passage.is_notable, leaked.is_notable] == [False, False, True]


def test_a_held_out_split_that_was_trained_on(tmp_path, tokenizer, trained_on):
    sentences = trained_on.splitlines(keepends=True)
    for name in ("base", "seen", "new"):
        (tmp_path / name).mkdir()
    base = prepared(tmp_path / "base", tokenizer, [trained_on], "0")
    seen, new = ["".join(sentences[300:600])], [text_of(7, 300)]
    for name, documents, expected in (("seen", seen, 1), ("new", new, 0)):
        found = TrainingOverlap(tokenizer)
        found.add_held_out(0, prepared(tmp_path / name, tokenizer, documents, "0.5"))
        assert found.measure(base)[0].fraction == pytest.approx(expected, abs=0.05)

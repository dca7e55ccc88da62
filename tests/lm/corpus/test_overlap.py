"""Overlap and copies equal what a search of the text finds."""

import random

import numpy as np
import pytest

from lm.config.data import DataConfig
from lm.config.tokenizer import END_OF_TEXT
from lm.corpus.overlap import TrainingOverlap, measure_pair_overlap
from lm.corpus.prepare import prepare_corpus
from lm.corpus.store import open_split
from lm.text.records import Record
from tests.lm.corpus import small_pairs
from tests.lm.corpus.preparing import byte_tokenizer, prepare, written

BYTES = byte_tokenizer()


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))


def noise(size, seed):
    return "".join(random.Random(seed).choices("abcdefghij ", k=size))


@pytest.mark.parametrize("seen", [0.0, 0.3, 1.0])
def test_the_fraction_of_a_text_that_was_trained_on_is_found(tmp_path, seen):
    train = noise(100_000, 1)
    folder = prepare(written(tmp_path, train), BYTES, DataConfig(validation="0")).folder
    own = int(20_000 * seen)
    text = train[5000 : 5000 + own] + noise(20_000 - own, 2)
    overlap = TrainingOverlap(BYTES)
    overlap.add(0, np.array(BYTES.encode(text)), starts_document=True)
    overlap.add(1, np.array(BYTES.encode("a few words")), starts_document=True)
    measured = overlap.measure(open_split(folder, "train"))
    assert measured[0].fraction == pytest.approx(seen, abs=0.02)
    assert measured[0].is_notable == (seen > 0)
    assert measured[1].fraction == 0


def test_short_documents_count_as_a_whole(tmp_path):
    documents = [noise(40, seed) for seed in range(500)]
    folder = prepare(written(tmp_path, f"\n{END_OF_TEXT}\n".join(documents)), BYTES, DataConfig(validation="0")).folder
    overlap = TrainingOverlap(BYTES)
    for file, texts in enumerate(([f"{one}\n" for one in documents[:20]], [one[1:] for one in documents[:20]])):
        for text in texts:
            overlap.add(file, np.array(BYTES.encode(text)), starts_document=True)
    measured = overlap.measure(open_split(folder, "train"))
    assert measured[0].fraction > 0.99
    assert measured[1].fraction == 0


def test_copies_and_repeated_held_out_text_are_counted(tmp_path):
    documents = [noise(400, seed) for seed in range(200)]
    text = f"\n{END_OF_TEXT}\n".join([*documents, *documents[:30], "end"])
    held_out = written(tmp_path / ".", f"{documents[0]} {noise(400, 999)}")[0].path.rename(tmp_path / "held.txt")
    files = written(tmp_path, text)
    repetition = prepare(files, BYTES, DataConfig(validation=str(held_out))).manifest.repetition
    assert repetition is not None
    assert repetition.documents == 30
    assert repetition.held_out == pytest.approx(200 / 800, abs=0.02)


def test_pairs_are_found_in_either_direction(tmp_path):
    sources, targets = ([noise(20, seed + start) for seed in range(100)] for start in (0, 1000))
    folder = prepare_corpus(small_pairs.corpus(tmp_path, sources, targets), BYTES).folder
    pairs = [Record.of_pair(source.strip(), target.strip()) for source, target in zip(sources, targets, strict=True)]
    swapped = [Record.of_pair(pair.text, pair.source) for pair in pairs[:50]]
    other = [Record.of_pair(pair.source, "other") for pair in pairs[:25]]
    measured = measure_pair_overlap(folder, {0: pairs, 1: [*swapped, *other], 2: other})
    assert [measured[file].fraction for file in range(3)] == [1.0, 50 / 75, 0.0]

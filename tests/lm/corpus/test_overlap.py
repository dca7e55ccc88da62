"""Overlap equals what a search of the text finds."""

import random

import pytest

from lm.config.run_config import END_OF_TEXT, DataConfig
from lm.corpus import open_split
from lm.corpus.prepare import prepare_corpus
from lm.corpus.survey import hash_records
from lm.text import Record
from tests.lm.corpus import small_pairs
from tests.lm.corpus.preparing import byte_tokenizer, prepare, written

BYTES = byte_tokenizer()


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))


def noise(size, seed):
    return "".join(random.Random(seed).choices("abcdefghij ", k=size))


def found(folder, *texts):
    return open_split(folder, "train").find_overlap(hash_records([Record.of_text(text) for text in texts], "text"))


@pytest.mark.parametrize("seen", [0.0, 0.3, 1.0])
def test_the_fraction_of_a_text_that_was_trained_on_is_found(tmp_path, seen):
    train = noise(400_000, 1)
    folder = prepare(written(tmp_path, train), BYTES, DataConfig(validation="0")).folder
    own = int(100_000 * seen)
    measured = found(folder, train[5000 : 5000 + own] + noise(100_000 - own, 2))
    assert measured == pytest.approx(seen, abs=0.05)
    assert open_split(folder, "train").is_notable(measured) == (seen > 0)
    assert found(folder, "a few words") == 0


def test_short_documents_count_as_a_whole(tmp_path):
    documents = [noise(40, seed) for seed in range(500)]
    folder = prepare(written(tmp_path, f"\n{END_OF_TEXT}\n".join(documents)), BYTES, DataConfig(validation="0")).folder
    assert found(folder, *[f"{one}\n" for one in documents[:20]]) == 1
    assert found(folder, *[one[1:] for one in documents[:20]]) == 0


def test_repeated_held_out_text_is_counted(tmp_path):
    documents = [noise(400, seed) for seed in range(200)]
    text = f"\n{END_OF_TEXT}\n".join([*documents, *documents[:30], "end"])
    held_out = tmp_path / "held.txt"
    held_out.write_text(f"\n{END_OF_TEXT}\n".join([*documents[:50], *(noise(400, 999 + seed) for seed in range(50))]))
    manifest = prepare(written(tmp_path, text), BYTES, DataConfig(validation=str(held_out))).manifest
    assert manifest.repeated == pytest.approx(0.5, abs=0.05)


def test_pairs_are_found_in_either_direction(tmp_path):
    sources, targets = ([noise(20, seed + start) for seed in range(100)] for start in (0, 1000))
    train = open_split(prepare_corpus(small_pairs.corpus(tmp_path, sources, targets), BYTES).folder, "train")
    pairs = [Record.of_pair(source.strip(), target.strip()) for source, target in zip(sources, targets, strict=True)]
    swapped = [Record.of_pair(pair.text, pair.source) for pair in pairs[:50]]
    other = [Record.of_pair(pair.source, "other") for pair in pairs[:25]]
    measured = [train.find_overlap(hash_records(each, "pairs")) for each in (pairs, [*swapped, *other], other)]
    assert measured == [1.0, 50 / 75, 0.0]

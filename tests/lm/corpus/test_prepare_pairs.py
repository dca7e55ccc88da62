"""Pairs are prepared once, with tokenizers of their own; those that do not pass the filters are counted."""

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest

from lm.config.data import DataConfig, ParallelTextConfig
from lm.config.tokenizer import TokenizerConfig
from lm.corpus import parallel_corpus, text_corpus
from lm.corpus.manifest import PairManifest
from lm.corpus.prepare_pairs import load_or_train_tokenizers, prepare_pairs
from lm.corpus.ragged import RaggedArray
from lm.corpus.tokenized_pairs import open_pairs
from lm.corpus.tree_positions import TreeReader, wrap_sources
from lm.errors import InputError, UsageError
from lm.text.dependency_trees import compute_tree_positions
from lm.text.parallel_text import find_parallel_texts
from lm.tokenizer import training
from lm.tokenizer.special_tokens import SpecialTokenFrame
from lm.tokenizer.tokenizer import Tokenizer
from tests.lm.corpus.parallel_text import lines, write
from tests.lm.corpus.small_pairs import BYTES, PLAIN, corpus, ids, parsed_corpus
from tests.lm.tokenizers_elsewhere import TEXT


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_tokens_are_the_tokenizers(elsewhere, tmp_path, monkeypatch):
    if elsewhere.end_of_text is None:
        pytest.skip("has no token that ends a text")
    monkeypatch.setattr(text_corpus, "GROUP_CHARACTERS", 100)
    sources = [line.strip() for line in TEXT.split("\n") if line.strip()]
    targets = [text[::-1] for text in sources]
    prepared = prepare_pairs(corpus(tmp_path, sources, targets), elsewhere, PLAIN)
    assert ids(prepared) == [[elsewhere.encode(text) for text in side] for side in (sources, targets)]


def test_the_same_is_prepared_once(tmp_path):
    sides = lines(30)
    seen: list[tuple[int, int]] = []
    first = prepare_pairs(corpus(tmp_path, *sides), BYTES, PLAIN, progress=lambda *done: seen.append(done))
    again = prepare_pairs(corpus(tmp_path, *sides), BYTES, PLAIN, progress=lambda *done: seen.append(done))
    assert not first.reused
    assert again.reused
    assert again.folder == first.folder
    assert again.manifest == first.manifest
    assert len(seen) == 1
    assert seen[0][0] == seen[0][1] == sum(len(line.encode()) for side in sides for line in side)
    for other in (ParallelTextConfig(max_length=99), ParallelTextConfig(max_ratio=2)):
        assert prepare_pairs(corpus(tmp_path, *sides), BYTES, other).folder != first.folder
    sides[1][3] += "!"
    assert prepare_pairs(corpus(tmp_path, *sides), BYTES, PLAIN).folder != first.folder


def test_vocabularies_are_joint_or_separate(tmp_path):
    made = corpus(tmp_path, *lines(300))
    config = TokenizerConfig(vocab_size=400)
    joint, none = load_or_train_tokenizers(made, config, PLAIN)
    assert none is None
    assert joint.vocab_size == 400
    target, source = load_or_train_tokenizers(made, config, ParallelTextConfig(separate_vocabularies=True))
    assert source is not None
    assert len({joint.sha256, target.sha256, source.sha256}) == 3
    prepared = prepare_pairs(made, target, PLAIN, source_tokenizer=source)
    stored = open_pairs(prepared.folder)
    assert stored.tokenizer.sha256 == target.sha256
    assert stored.source_tokenizer is not None
    assert stored.source_tokenizer.sha256 == source.sha256
    sources, targets = lines(300)
    assert ids(prepared) == [[source.encode(text) for text in sources], [target.encode(text) for text in targets]]


def test_both_directions_have_tags(tmp_path):
    config = ParallelTextConfig(bidirectional=True)
    tokenizer, _ = load_or_train_tokenizers(
        corpus(tmp_path, *lines(50), config=config), TokenizerConfig(vocab_size=300), config
    )
    assert {"<2en>", "<2de>", "<|endoftext|>"} == set(tokenizer.special_tokens)


def test_what_cannot_be_prepared(tmp_path):
    chars = training.train(["ab"], TokenizerConfig(kind="char"), corpus_bytes=2).tokenizer
    with pytest.raises(UsageError, match="no end-of-text token"):
        prepare_pairs(corpus(tmp_path, ["a"], ["b"]), chars, PLAIN)
    chars = training.train(
        ["ab"], TokenizerConfig(kind="char"), corpus_bytes=2, special_tokens=["<|endoftext|>"]
    ).tokenizer
    with pytest.raises(InputError, match=r"train.de: line 2: .*'c'"):
        prepare_pairs(corpus(tmp_path, ["a", "b"], ["b", "c"]), chars, PLAIN)


def test_all_is_on_the_disk_before_the_folder_has_its_name(tmp_path, disk):
    prepared = prepare_pairs(corpus(tmp_path, *lines(30), validation="0.1"), BYTES, PLAIN, source_tokenizer=BYTES)
    name = prepared.folder.name
    assert disk.synced_before(name) == {name} | {path.name for path in prepared.folder.iterdir()}


def test_what_a_killed_process_began_in_the_cache_is_removed(tmp_path, cache):
    abandoned = cache / "pairs" / ".0123.partial-4567"
    abandoned.mkdir(parents=True)
    os.utime(abandoned, (0, 0))
    prepared = prepare_pairs(corpus(tmp_path, *lines(30)), BYTES, PLAIN)
    assert prepared.folder.parent == abandoned.parent
    assert not abandoned.exists()


def test_heads_make_other_pairs_and_leave_those_without_as_they_were(tmp_path):
    """A folder without heads says nothing of trees; its key and its files are those of the same text."""
    with_trees = parsed_corpus(tmp_path, 200)
    plain = parallel_corpus.scan_parallel_corpus(
        [dataclasses.replace(with_trees.texts[0].text, heads=None)], DataConfig(validation="0.2"), PLAIN
    )
    folders = [prepare_pairs(each, BYTES, PLAIN, root=tmp_path / "cache").folder for each in (plain, with_trees)]
    assert folders[0] != folders[1]
    names = [{path.name for path in folder.iterdir()} for folder in folders]
    assert names[1] - names[0] == {
        f"{split}-places{ends}.npy" for split in ("train", "validation") for ends in ("", "-ends")
    }
    assert [PairManifest.read(folder).has_dependency_heads for folder in folders] == [False, True]
    assert ['"heads":' in (folder / "validation.jsonl").read_text() for folder in folders] == [False, True]
    assert [open_pairs(folder).manifest.has_dependency_heads for folder in folders] == [False, True]
    (folders[1] / "train-places.npy").unlink()
    with pytest.raises(InputError, match=r"train-places.npy: missing or damaged"):
        open_pairs(folders[1])


def test_heads_of_one_split_alone_are_refused(tmp_path):
    text = parsed_corpus(tmp_path, 20).texts[0].text
    with pytest.raises(UsageError, match="give heads of both splits"):
        parallel_corpus.scan_parallel_corpus(
            [text], DataConfig(), PLAIN, validation=[dataclasses.replace(text, heads=None)]
        )


@pytest.mark.parametrize("name", ["train-source.npy", "target-words.npy", "validation.jsonl", "tokenizer.json"])
def test_damaged_pairs_are_prepared_again(tmp_path, caplog, name):
    """A text that is another text, a tokenizer that is another tokenizer, numbers that are zeros."""
    sides = lines(30)
    first = prepare_pairs(corpus(tmp_path, *sides), BYTES, PLAIN)
    path = first.folder / name
    before = {each.name: each.read_bytes() for each in first.folder.iterdir()}
    if path.suffix == ".npy":
        np.save(path, np.zeros_like(np.load(path)))
    elif name == "tokenizer.json":
        training.train([], TokenizerConfig(kind="byte"), corpus_bytes=0, special_tokens=["<x>"]).tokenizer.save(path)
    else:
        path.write_text(path.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert not prepare_pairs(corpus(tmp_path, *sides), BYTES, PLAIN).reused
    assert {each.name: each.read_bytes() for each in first.folder.iterdir()} == before
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [str(path)]
    assert prepare_pairs(corpus(tmp_path, *sides), BYTES, PLAIN).reused


def test_filters_report_what_they_leave_out(tmp_path):
    sources = ["fine", "", "blank there", "x" * 30, "short", "  \t", "just  "]
    targets = ["gut", "leer", " ", "y" * 30, "z" * 16, "", "so"]
    config = ParallelTextConfig(max_length=20, max_ratio=3)
    prepared = prepare_pairs(corpus(tmp_path, sources, targets), BYTES, config)
    split = prepared.manifest.splits["train"]
    assert (split.pairs, split.blank, split.too_long, split.ratio) == (2, 3, 1, 1)
    assert (split.source_bytes, split.target_bytes, split.longest) == (8, 5, 4)
    assert ids(prepared) == [[list(b"fine"), list(b"just")], [list(b"gut"), list(b"so")]]
    with pytest.raises(InputError, match=r"no pair is left to train on: 3 have a blank side, 4 are too long"):
        prepare_pairs(corpus(tmp_path, sources, targets), BYTES, ParallelTextConfig(max_length=1))


def test_validation_keeps_its_text(tmp_path):
    sources, targets = lines(400)
    made = corpus(tmp_path, sources, targets, validation="0.2")
    prepared = prepare_pairs(made, BYTES, PLAIN)
    held = [item.texts for item in made.split_pairs() if item.split == "validation"]
    assert list(open_pairs(prepared.folder).validation_texts()) == [(*texts, None) for texts in held]
    assert ids(prepared, "validation") == [[list(text.encode()) for text in side] for side in zip(*held, strict=True)]
    assert prepared.manifest.splits["validation"].target_bytes == sum(len(target.encode()) for _, target in held)


def test_files_for_validation_are_not_filtered_by_ratio(tmp_path):
    train, held = (write(tmp_path, ["a"] * 3, ["b" * 9] * 2 + ["c"], name=name) for name in ("train", "held"))
    config = ParallelTextConfig(max_ratio=2)
    files, validation = (find_parallel_texts(config, source=[pair[0]], target=[pair[1]]) for pair in (train, held))
    made = parallel_corpus.scan_parallel_corpus(files, DataConfig(), config, validation=validation)
    splits = prepare_pairs(made, BYTES, config).manifest.splits
    assert (splits["train"].pairs, splits["train"].ratio) == (1, 2)
    assert (splits["validation"].pairs, splits["validation"].ratio) == (3, 0)


SENTENCE, HEADS = "Zwölf Füchse, 狐狸 laufen  schnell…", (2, 4, 2, 0, 4)

WORDS = SENTENCE.split()


def tokenizer(kind: str) -> Tokenizer:
    text = SENTENCE * 3
    config = TokenizerConfig(kind=kind, vocab_size=300)
    return training.train([text], config, corpus_bytes=len(text.encode())).tokenizer


@pytest.mark.parametrize("kind", ["bpe", "char", "byte"])
def test_the_words_of_tokens_are_those_that_they_spell(kind):
    made = tokenizer(kind)
    ids = made.encode_batch([SENTENCE])[0]
    words = TreeReader(made).words(SENTENCE, ids)
    assert len(words) == len(ids) > len(WORDS)
    for number, word in enumerate(WORDS):
        spelled = b"".join(made.token_bytes(index) for index in ids[words == number].tolist())
        assert spelled.decode().strip() == word


@pytest.mark.parametrize("kind", ["bpe", "char", "byte"])
def test_tokens_stand_beside_the_places_of_their_words(kind):
    reader, ids = TreeReader(tokenizer(kind)), tokenizer(kind).encode(SENTENCE)
    read, places = reader.read(SENTENCE, ids, HEADS), compute_tree_positions(HEADS)
    assert read[:, 0].tolist() == ids
    assert read[:, 1:].tolist() == [places[word].tolist() for word in reader.words(SENTENCE, ids)]


def test_nothing_has_no_words():
    assert TreeReader(tokenizer("bpe")).read("", [], ()).shape == (0, 4)


def test_special_tokens_stand_outside_the_tree():
    sources = RaggedArray(np.arange(12).reshape(3, 4), np.array([1, 3]))
    found = wrap_sources(sources, SpecialTokenFrame((7,), (8, 9)))
    assert found.row(0).tolist() == [[7, -1, -1, -1], [0, 1, 2, 3], [8, -1, -1, -1], [9, -1, -1, -1]]
    assert found.row(1)[:, 0].tolist() == [7, 4, 8, 8, 9]
    assert wrap_sources(RaggedArray.from_rows([[1, 2]]), SpecialTokenFrame((7,), (8,))).row(0).tolist() == [7, 1, 2, 8]

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest

from lm.config.data import DataConfig, ParallelConfig
from lm.config.tokenizer import TokenizerConfig
from lm.data import encoding
from lm.data.manifest import SplitName
from lm.data.pairs import corpus as parallel
from lm.data.pairs.corpus import ParallelCorpus
from lm.data.pairs.manifest import PairManifest
from lm.data.pairs.prepare import prepare_pairs, train_tokenizers
from lm.data.pairs.store import SIDES, is_pairs, open_pairs
from lm.data.pairs.word_table import WordTable
from lm.data.prepare import Prepared
from lm.data.ragged import Ragged
from lm.errors import InputError, UsageError
from lm.text.parallel import parallel_texts
from lm.tokenizer import training
from lm.tokenizer.tokenizer import Tokenizer
from tests.lm.data.pairs.parallel_text import lines, write
from tests.lm.tokenizers_elsewhere import TEXT

PLAIN = ParallelConfig()
BYTES = training.train([], TokenizerConfig(kind="byte"), corpus_bytes=0).tokenizer


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def corpus(
    folder: Path, sources: list[str], targets: list[str], *, validation: str = "0", config: ParallelConfig = PLAIN
) -> ParallelCorpus:
    source, target = write(folder, sources, targets)
    files = parallel_texts(config, source=[source], target=[target])
    return parallel.survey(files, DataConfig(validation=validation), config)


def ids(prepared: Prepared[PairManifest], split: SplitName = "train") -> list[list[list[int]]]:
    """The tokens of sources and of targets, read back."""
    stored = open_pairs(prepared.folder)
    sides = []
    for side in SIDES:
        sentences = stored.sentences(split, side)
        rows = (sentences.table.take(sentences.words.row(number)) for number in range(len(sentences)))
        sides.append([row.values.tolist() for row in rows])
    return sides


def test_tokens_are_the_tokenizers(elsewhere: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if elsewhere.end_of_text is None:
        pytest.skip("has no token that ends a text")
    monkeypatch.setattr(encoding, "GROUP_CHARACTERS", 100)
    sources = [line.strip() for line in TEXT.split("\n") if line.strip()]
    targets = [text[::-1] for text in sources]
    prepared = prepare_pairs(corpus(tmp_path, sources, targets), elsewhere, PLAIN)
    assert ids(prepared) == [[elsewhere.encode(text) for text in side] for side in (sources, targets)]


def test_a_full_table_changes_no_token() -> None:
    chance = random.Random(0)
    sentences = Ragged.of([[chance.randrange(9) for _ in range(chance.randint(1, 9))] for _ in range(50)])
    starts = np.array([chance.random() < 0.4 for _ in sentences.values])
    starts[np.append(0, sentences.ends[:-1])] = True
    for most in (0, 20, 1000):
        table = WordTable(most_tokens=most)
        words = table.words(sentences, starts)
        read = table.rows().take(words.values).grouped(words.ends)
        assert read.values.tolist() == sentences.values.tolist()
        assert read.ends.tolist() == sentences.ends.tolist()
        assert (len(words.values) == starts.sum()) == (most == 1000)
        assert len(table.rows().values) <= most + 9


def test_the_same_is_prepared_once(tmp_path: Path) -> None:
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
    assert is_pairs(first.folder)
    assert not is_pairs(tmp_path)
    for other in (ParallelConfig(max_length=99), ParallelConfig(max_ratio=2)):
        assert prepare_pairs(corpus(tmp_path, *sides), BYTES, other).folder != first.folder
    sides[1][3] += "!"
    assert prepare_pairs(corpus(tmp_path, *sides), BYTES, PLAIN).folder != first.folder


def test_damage_is_noticed(tmp_path: Path) -> None:
    made = corpus(tmp_path, *lines(30))
    folder = prepare_pairs(made, BYTES, PLAIN).folder
    path = folder / "train-target.npy"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(InputError, match="train-target.npy: missing or damaged"):
        open_pairs(folder)
    assert not prepare_pairs(made, BYTES, PLAIN).reused
    assert open_pairs(folder).manifest.splits["train"].pairs == 30
    with pytest.raises(InputError, match="no such file"):
        open_pairs(tmp_path)


def test_filters_report_what_they_leave_out(tmp_path: Path) -> None:
    sources = ["fine", "", "blank there", "x" * 30, "short", "  \t", "just  "]
    targets = ["gut", "leer", " ", "y" * 30, "z" * 16, "", "so"]
    config = ParallelConfig(max_length=20, max_ratio=3)
    prepared = prepare_pairs(corpus(tmp_path, sources, targets), BYTES, config)
    split = prepared.manifest.splits["train"]
    assert (split.pairs, split.blank, split.too_long, split.ratio) == (2, 3, 1, 1)
    assert (split.source_bytes, split.target_bytes, split.longest) == (8, 5, 4)
    assert ids(prepared) == [[list(b"fine"), list(b"just")], [list(b"gut"), list(b"so")]]
    with pytest.raises(InputError, match=r"no pair is left to train on: 3 have a blank side, 4 are too long"):
        prepare_pairs(corpus(tmp_path, sources, targets), BYTES, ParallelConfig(max_length=1))


def test_validation_keeps_its_text(tmp_path: Path) -> None:
    sources, targets = lines(400)
    made = corpus(tmp_path, sources, targets, validation="0.2")
    prepared = prepare_pairs(made, BYTES, PLAIN)
    held = [item.texts for item in made.split_pairs() if item.split == "validation"]
    assert list(open_pairs(prepared.folder).validation_texts()) == held
    assert ids(prepared, "validation") == [[list(text.encode()) for text in side] for side in zip(*held, strict=True)]
    assert prepared.manifest.splits["validation"].target_bytes == sum(len(target.encode()) for _, target in held)


def test_files_for_validation_are_not_filtered_by_ratio(tmp_path: Path) -> None:
    train, held = (write(tmp_path, ["a"] * 3, ["b" * 9] * 2 + ["c"], name=name) for name in ("train", "held"))
    config = ParallelConfig(max_ratio=2)
    files, validation = (parallel_texts(config, source=[pair[0]], target=[pair[1]]) for pair in (train, held))
    made = parallel.survey(files, DataConfig(), config, validation=validation)
    splits = prepare_pairs(made, BYTES, config).manifest.splits
    assert (splits["train"].pairs, splits["train"].ratio) == (1, 2)
    assert (splits["validation"].pairs, splits["validation"].ratio) == (3, 0)


def test_vocabularies_are_joint_or_separate(tmp_path: Path) -> None:
    made = corpus(tmp_path, *lines(300))
    config = TokenizerConfig(vocab_size=400)
    joint, none = train_tokenizers(made, config, PLAIN)
    assert none is None
    assert joint.vocab_size == 400
    target, source = train_tokenizers(made, config, ParallelConfig(separate_vocabularies=True))
    assert source is not None
    assert len({joint.sha256, target.sha256, source.sha256}) == 3
    prepared = prepare_pairs(made, target, PLAIN, source_tokenizer=source)
    stored = open_pairs(prepared.folder)
    assert stored.tokenizer.sha256 == target.sha256
    assert stored.source_tokenizer is not None
    assert stored.source_tokenizer.sha256 == source.sha256
    sources, targets = lines(300)
    assert ids(prepared) == [[source.encode(text) for text in sources], [target.encode(text) for text in targets]]


def test_both_directions_have_tags(tmp_path: Path) -> None:
    config = ParallelConfig(bidirectional=True)
    tokenizer, _ = train_tokenizers(
        corpus(tmp_path, *lines(50), config=config), TokenizerConfig(vocab_size=300), config
    )
    assert {"<2en>", "<2de>", "<|endoftext|>"} == set(tokenizer.special_tokens)


def test_what_cannot_be_prepared(tmp_path: Path) -> None:
    chars = training.train(["ab"], TokenizerConfig(kind="char"), corpus_bytes=2).tokenizer
    with pytest.raises(UsageError, match="no end-of-text token"):
        prepare_pairs(corpus(tmp_path, ["a"], ["b"]), chars, PLAIN)
    chars = training.train(
        ["ab"], TokenizerConfig(kind="char"), corpus_bytes=2, special_tokens=["<|endoftext|>"]
    ).tokenizer
    with pytest.raises(InputError, match=r"train.de: line 2: .*'c'"):
        prepare_pairs(corpus(tmp_path, ["a", "b"], ["b", "c"]), chars, PLAIN)


def test_all_is_on_the_disk_before_the_folder_has_its_name(tmp_path: Path, disk) -> None:
    prepared = prepare_pairs(corpus(tmp_path, *lines(30), validation="0.1"), BYTES, PLAIN, source_tokenizer=BYTES)
    name = prepared.folder.name
    assert disk.synced_before(name) == {name} | {path.name for path in prepared.folder.iterdir()}


def test_what_a_killed_process_began_in_the_cache_is_removed(tmp_path: Path, cache: Path) -> None:
    abandoned = cache / "pairs" / ".0123.partial-4567"
    abandoned.mkdir(parents=True)
    os.utime(abandoned, (0, 0))
    prepared = prepare_pairs(corpus(tmp_path, *lines(30)), BYTES, PLAIN)
    assert prepared.folder.parent == abandoned.parent
    assert not abandoned.exists()

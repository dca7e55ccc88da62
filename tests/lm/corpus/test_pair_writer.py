"""Pairs that do not pass the filters are left out and counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from lm.config.data import DataConfig, ParallelConfig
from lm.corpus import parallel_corpus
from lm.corpus.pairs import open_pairs
from lm.corpus.prepare_pairs import prepare_pairs
from lm.errors import InputError
from lm.text.parallel import find_parallel_texts
from tests.lm.corpus.parallel_text import lines, write
from tests.lm.corpus.small_pairs import BYTES, PLAIN, corpus, ids


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


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
    assert list(open_pairs(prepared.folder).validation_texts()) == [(*texts, None) for texts in held]
    assert ids(prepared, "validation") == [[list(text.encode()) for text in side] for side in zip(*held, strict=True)]
    assert prepared.manifest.splits["validation"].target_bytes == sum(len(target.encode()) for _, target in held)


def test_files_for_validation_are_not_filtered_by_ratio(tmp_path: Path) -> None:
    train, held = (write(tmp_path, ["a"] * 3, ["b" * 9] * 2 + ["c"], name=name) for name in ("train", "held"))
    config = ParallelConfig(max_ratio=2)
    files, validation = (find_parallel_texts(config, source=[pair[0]], target=[pair[1]]) for pair in (train, held))
    made = parallel_corpus.scan_parallel_corpus(files, DataConfig(), config, validation=validation)
    splits = prepare_pairs(made, BYTES, config).manifest.splits
    assert (splits["train"].pairs, splits["train"].ratio) == (1, 2)
    assert (splits["validation"].pairs, splits["validation"].ratio) == (3, 0)

"""Prepared data are used as they were written, or not at all; and large ones are not hashed each time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lm import files
from lm.config.data import DataConfig
from lm.corpus import prepared_folder
from lm.corpus.corpus import scan_corpus
from lm.corpus.manifest import Manifest
from lm.corpus.prepare_corpus import prepare_corpus
from lm.corpus.prepared_folder import PreparedFolder, compute_checksums, verify_checksums
from lm.errors import InputError
from tests.lm.corpus.preparing import byte_tokenizer, prepare, written

CONFIG = DataConfig(validation="0.2")


def zero(path: Path) -> None:
    array = np.load(path)
    np.save(path, np.zeros_like(array))


def randomise(path: Path) -> None:
    array = np.load(path)
    np.save(path, np.random.default_rng(1).integers(0, 1 << 16, len(array)).astype(array.dtype))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


DAMAGE = [
    ("train-00000.npy", zero), ("train-00000.npy", randomise), ("train-00000.npy", cut), ("validation-00000.npy", zero),
    ("train-00000.npy", Path.unlink), ("tokenizer.json", lambda path: path.write_text("{}")),
    ("tokenizer.json", lambda path: path.write_text(path.read_text() + "\n")), ("tokenizer.json", Path.unlink),
]  # fmt: skip
NAMES = [
    "zeros",
    "random",
    "cut",
    "zeros held out",
    "no shard",
    "no tokenizer",
    "another tokenizer",
    "tokenizer is gone",
]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(("name", "damage"), DAMAGE, ids=NAMES)
def test_damaged_data_in_the_cache_are_made_again_and_that_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, damage: Callable[[Path], object]
) -> None:
    corpus = scan_corpus(written(tmp_path, "the owl saw the fox\n" * 300), CONFIG)

    def made() -> PreparedFolder[Manifest]:
        return prepare_corpus(corpus, byte_tokenizer(), root=tmp_path / "cache")

    folder = made().folder
    before = contents(folder)
    assert made().reused
    damage(folder / name)
    assert not made().reused
    assert contents(folder) == before
    assert made().reused
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(str(folder / name))
    assert line.endswith("; prepare the corpus again (done now)")


@pytest.mark.parametrize(("name", "damage"), DAMAGE, ids=NAMES)
def test_damaged_data_in_a_folder_are_named(tmp_path: Path, name: str, damage: Callable[[Path], object]) -> None:
    sources = written(tmp_path, "the owl saw the fox\n" * 300)
    made = prepare(sources, byte_tokenizer(), CONFIG, tmp_path / "out")
    damage(made.folder / name)
    with pytest.raises(InputError, match=rf"out/{name}: .*; do it again$"):
        verify_checksums(made.folder, made.manifest.sha256, advice="do it again")
    with pytest.raises(InputError, match=rf"out/{name}: .*; prepare the corpus again$"):
        prepare(sources, byte_tokenizer(), CONFIG, tmp_path / "out")
    assert not prepare(sources, byte_tokenizer(), CONFIG, tmp_path / "out", force=True).reused


def test_folders_of_an_earlier_version_have_no_checksums_and_are_used(tmp_path: Path) -> None:
    sources = written(tmp_path, "the owl saw the fox\n" * 300)
    folder = prepare(sources, byte_tokenizer(), CONFIG, tmp_path / "out").folder
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["sha256"], manifest["labels"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert Manifest.read(folder).sha256 is None
    assert prepare(sources, byte_tokenizer(), CONFIG, tmp_path / "out").reused


@pytest.mark.parametrize("wrong", [5, ["a"], {"train-00000.npy": 5}, {"../text.txt": "0" * 64}, {"": "0"}, {"\0": "0"}])
def test_checksums_that_are_none_are_damage(tmp_path: Path, wrong: object) -> None:
    folder = prepare(written(tmp_path, "the owl " * 300), byte_tokenizer(), CONFIG, tmp_path / "out").folder
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"sha256": wrong}))
    with pytest.raises(InputError, match="manifest.json: not a manifest of prepared tokens"):
        Manifest.read(folder)


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[Path]]:
    """A folder that counts as large, and the files that have been hashed."""
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(prepared_folder, "_HASHED_EACH_TIME", 10)
    folder, hashed = tmp_path / "large", []
    folder.mkdir()
    for name in ("one", "two"):
        (folder / name).write_bytes(name.encode() * 100)
    sha256 = files.sha256
    monkeypatch.setattr(files, "sha256", lambda path: hashed.append(path) or sha256(path))
    return folder, hashed


def test_a_large_folder_is_hashed_once(large: tuple[Path, list[Path]]) -> None:
    folder, hashed = large
    sums = compute_checksums(folder)
    hashed.clear()
    for _ in range(3):
        verify_checksums(folder, sums)
    assert sorted(hashed) == [folder / "one", folder / "two"]


def test_a_large_folder_is_hashed_again_once_a_file_was_written_to(large: tuple[Path, list[Path]]) -> None:
    """Even if it has its size and its time again."""
    folder, _ = large
    sums, status = compute_checksums(folder), (folder / "one").stat()
    verify_checksums(folder, sums)
    (folder / "one").write_bytes(bytes(status.st_size))
    os.utime(folder / "one", ns=(status.st_atime_ns, status.st_mtime_ns))
    for _ in range(2):
        with pytest.raises(InputError, match="large/one: damaged"):
            verify_checksums(folder, sums)


def test_a_large_folder_is_hashed_each_time_where_that_cannot_be_remembered(
    large: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    folder, hashed = large
    sums = compute_checksums(folder)
    (tmp_path / "cache").write_text("no folder")
    hashed.clear()
    for _ in range(2):
        verify_checksums(folder, sums)
    assert len(hashed) == 4

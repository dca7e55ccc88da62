"""A manifest survives JSON; prepared data are used as they were written, or not at all."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from lm import files
from lm.config.data import DataConfig
from lm.corpus import prepared_folder
from lm.corpus.manifest import (
    MANIFEST,
    Manifest,
    PairManifest,
    PairSplit,
    PreparedManifest,
    Repetition,
    SourceRecord,
    SplitRecord,
)
from lm.corpus.prepare_corpus import prepare_corpus
from lm.corpus.prepared_folder import PreparedFolder, compute_checksums, verify_checksums
from lm.corpus.text_corpus import scan_corpus
from lm.errors import InputError
from tests.lm.corpus.preparing import byte_tokenizer, prepare, written

MADE = Manifest(
    kind="text", key="k", tokenizer="t", vocab_size=300, dtype="uint16", separator="S", validation="0.2",
    sources=(SourceRecord("a.txt", 3, "h"),), validation_sources=(SourceRecord("b.txt", 4, "g"),),
    splits={"train": SplitRecord(1, 5, 99, (5,)), "validation": SplitRecord(0, 0, 0, ())},
    repetition=Repetition(2, 0.5, 32), text_column="body", keep_line_ends=True,
)  # fmt: skip


def write(folder: Path, values: dict[str, object]) -> None:
    (folder / "manifest.json").write_text(json.dumps(values))


def test_a_manifest_survives_json(tmp_path):
    write(tmp_path, MADE.to_dict())
    assert Manifest.read(tmp_path) == MADE
    assert MADE.to_dict()["format_version"] == 2
    assert MADE.data == DataConfig(validation="0.2", separator="S", text_column="body", keep_line_ends=True)


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"format_version": 1}', '{"format_version": 2}', '{"format_version": 2, "splits": 3}', "[" * 200_000],
    ids=["torn", "a list", "another format", "no splits", "wrong splits", "too deep"],
)
def test_a_damaged_manifest_is_named(content, tmp_path):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(InputError, match=r"manifest\.json"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize("name", ["kind", "repetition", "sha256"])
def test_a_manifest_without_a_field_is_named(name, tmp_path):
    values = MADE.to_dict()
    del values[name]
    write(tmp_path, values)
    with pytest.raises(InputError, match=rf"manifest\.json: not a manifest of prepared tokens \(.*'{name}'"):
        Manifest.read(tmp_path)


def test_a_manifest_without_a_split_is_named(tmp_path):
    values = MADE.to_dict()
    del values["splits"]["validation"]
    write(tmp_path, values)
    with pytest.raises(InputError, match=r"manifest\.json: not a manifest of prepared tokens \('validation'\)"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize("name", ["documents", "tokens", "bytes", "shards"])
@pytest.mark.parametrize("count", [None, "3", 1.5, -1, [], {}, 10**400, float("inf")], ids=lambda each: str(each)[:9])
def test_a_count_that_is_none_is_of_no_manifest(name, count, tmp_path):
    values = MADE.to_dict()
    values["splits"] = {split: {**record, name: count if name != "shards" else [count]}
                        for split, record in values["splits"].items()}  # fmt: skip
    (tmp_path / "manifest.json").write_text(json.dumps(values))
    with pytest.raises(InputError, match=r"manifest\.json: not a manifest of prepared tokens \(.* is not a count of "):
        Manifest.read(tmp_path)


PAIRS = PairManifest(
    key="k", languages=("en", None), validation="0.1", max_length=256, max_ratio=9.0,
    sources=(SourceRecord("a.en", 3, "h"), SourceRecord("a.de", 4, "g")), validation_sources=(),
    splits={"train": PairSplit(pairs=3, longest=7), "validation": PairSplit(blank=1)},
)  # fmt: skip


def test_a_manifest_of_pairs_survives_json(tmp_path):
    write(tmp_path, PAIRS.to_dict())
    assert PairManifest.read(tmp_path) == PreparedManifest.read(tmp_path) == PAIRS


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"format_version": 99}, "format version 99 is not 2; prepare the corpus again"),
        ({"format_version": 2}, "not a manifest of prepared pairs .'kind'"),
        ({"format_version": 2, "kind": "birds"}, "not a manifest of prepared pairs .'birds'"),
        ({"format_version": 2, "kind": "pairs"}, "not a manifest of prepared pairs .'sources'"),
        ({**PAIRS.to_dict(), "splits": {"train": {}}}, "not a manifest of prepared pairs .'validation'"),
        ({**PAIRS.to_dict(), "colour": 1}, "not a manifest of prepared pairs .*colour"),
    ],
)
def test_a_damaged_manifest_of_pairs_is_named(values, message, tmp_path):
    write(tmp_path, values)
    with pytest.raises(InputError, match=rf"manifest\.json: .*{message}"):
        PairManifest.read(tmp_path)


def test_a_manifest_of_another_kind_is_refused(tmp_path):
    write(tmp_path, PAIRS.to_dict())
    with pytest.raises(InputError, match="holds prepared pairs, not prepared tokens"):
        Manifest.read(tmp_path)


def test_a_missing_manifest_is_named(tmp_path):
    with pytest.raises(InputError, match=rf"not a folder of prepared pairs \(it has no {MANIFEST}\)"):
        PairManifest.read(tmp_path)


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
    "zeros", "random", "cut", "zeros held out", "no shard", "no tokenizer", "another tokenizer", "tokenizer is gone",
]  # fmt: skip


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(("name", "damage"), DAMAGE, ids=NAMES)
def test_damaged_data_in_the_cache_are_made_again_and_that_is_said_once(tmp_path, caplog, name, damage):
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
def test_damaged_data_in_a_folder_are_named(tmp_path, name, damage):
    sources = written(tmp_path, "the owl saw the fox\n" * 300)
    made = prepare(sources, byte_tokenizer(), CONFIG, tmp_path / "out")
    damage(made.folder / name)
    with pytest.raises(InputError, match=rf"out/{name}: .*; do it again$"):
        verify_checksums(made.folder, made.manifest.sha256, advice="do it again")
    with pytest.raises(InputError, match=rf"out/{name}: .*; prepare the corpus again$"):
        prepare(sources, byte_tokenizer(), CONFIG, tmp_path / "out")
    assert not prepare(sources, byte_tokenizer(), CONFIG, tmp_path / "out", force=True).reused


@pytest.mark.parametrize("wrong", [5, ["a"], {"train-00000.npy": 5}, {"../text.txt": "0" * 64}, {"": "0"}, {"\0": "0"}])
def test_checksums_that_are_none_are_damage(tmp_path, wrong):
    folder = prepare(written(tmp_path, "the owl " * 300), byte_tokenizer(), CONFIG, tmp_path / "out").folder
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"sha256": wrong}))
    with pytest.raises(InputError, match="manifest.json: not a manifest of prepared tokens"):
        Manifest.read(folder)


@pytest.fixture
def large(tmp_path, monkeypatch) -> tuple[Path, list[Path]]:
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


def test_a_large_folder_is_hashed_once(large):
    folder, hashed = large
    sums = compute_checksums(folder)
    hashed.clear()
    for _ in range(3):
        verify_checksums(folder, sums)
    assert sorted(hashed) == [folder / "one", folder / "two"]


def test_a_large_folder_is_hashed_again_once_a_file_was_written_to(large):
    """Even if it has its size and its time again."""
    folder, _ = large
    sums, status = compute_checksums(folder), (folder / "one").stat()
    verify_checksums(folder, sums)
    (folder / "one").write_bytes(bytes(status.st_size))
    os.utime(folder / "one", ns=(status.st_atime_ns, status.st_mtime_ns))
    for _ in range(2):
        with pytest.raises(InputError, match="large/one: damaged"):
            verify_checksums(folder, sums)


def test_a_large_folder_is_hashed_each_time_where_that_cannot_be_remembered(large, tmp_path):
    folder, hashed = large
    sums = compute_checksums(folder)
    (tmp_path / "cache").write_text("no folder")
    hashed.clear()
    for _ in range(2):
        verify_checksums(folder, sums)
    assert len(hashed) == 4

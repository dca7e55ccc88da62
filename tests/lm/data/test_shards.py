"""Tokens read back across shards, and damage is named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lm.data import shards
from lm.data.manifest import MANIFEST, Manifest, SourceRecord, SplitRecord
from lm.data.shards import ShardWriter, open_split
from lm.errors import InputError


def write(folder: Path, values: np.ndarray, *, dtype: str = "uint16", shard_tokens: int = 10) -> Manifest:
    writer = ShardWriter(folder, "train", dtype=dtype, shard_tokens=shard_tokens)
    for start in range(0, len(values), 7):
        writer.append(values[start : start + 7])
    writer.close()
    manifest = Manifest(
        key="k", tokenizer="t", vocab_size=300, dtype=dtype, separator="S", validation="0",
        sources=(SourceRecord("a.txt", 3, "h"),), validation_sources=(),
        splits={
            "train": SplitRecord(1, len(values), 99, tuple(writer.shards)),
            "validation": SplitRecord(0, 0, 0, ()),
        },
    )  # fmt: skip
    (folder / MANIFEST).write_text(json.dumps(manifest.to_dict()))
    return manifest


@pytest.mark.parametrize(("dtype", "top"), [("uint16", 65535), ("uint32", 4_000_000_000)])
def test_every_range_reads_back_across_shards(dtype: str, top: int, tmp_path: Path) -> None:
    values = np.linspace(0, top, 35).astype(dtype)
    assert write(tmp_path, values, dtype=dtype).splits["train"].shards == (10, 10, 10, 5)
    tokens = open_split(tmp_path, "train")
    assert (len(tokens), tokens.documents, tokens.bytes) == (35, 1, 99)
    for start in range(36):
        for stop in range(start, 36):
            read = tokens.read(start, stop)
            assert read.dtype == np.int64
            assert read.tolist() == values[start:stop].tolist()


def test_shards_are_plain_npy_files(tmp_path: Path) -> None:
    write(tmp_path, np.arange(25))
    parts = [np.load(tmp_path / shards.shard_name("train", number)) for number in range(3)]
    assert np.concatenate(parts).tolist() == list(range(25))
    assert parts[0].dtype == np.uint16


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (0, 36)])
def test_a_range_outside_is_an_error(start: int, stop: int, tmp_path: Path) -> None:
    write(tmp_path, np.arange(35))
    with pytest.raises(IndexError):
        open_split(tmp_path, "train").read(start, stop)


def test_an_empty_split_has_no_tokens(tmp_path: Path) -> None:
    write(tmp_path, np.arange(5))
    validation = open_split(tmp_path, "validation")
    assert len(validation) == 0
    assert validation.read(0, 0).tolist() == []


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a folder of prepared tokens"):
        open_split(tmp_path, "train")


@pytest.mark.parametrize("damage", ["missing", "short", "empty"])
def test_a_damaged_shard_is_named(damage: str, tmp_path: Path) -> None:
    write(tmp_path, np.arange(25))
    path = tmp_path / "train-00001.npy"
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] if damage == "short" else b"")
    with pytest.raises(InputError, match=r"train-00001\.npy: missing or damaged; prepare the corpus again"):
        open_split(tmp_path, "train")

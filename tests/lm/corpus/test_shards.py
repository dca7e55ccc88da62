"""Tokens read back across shards, and damage is named."""

import json
from pathlib import Path

import numpy as np
import pytest

from lm.corpus import shards
from lm.corpus.manifest import MANIFEST, Manifest, SourceRecord, SplitRecord
from lm.corpus.shards import ShardWriter, TokenShards, open_split
from lm.data.windows import WindowData, WindowOrder
from lm.errors import InputError
from lm.pseudorandom import permute_indices


def write(folder: Path, values: np.ndarray, *, dtype: str = "uint16", shard_tokens: int = 10) -> Manifest:
    writer = ShardWriter(folder, "train", dtype=dtype, shard_tokens=shard_tokens)
    for start in range(0, len(values), 7):
        writer.append(values[start : start + 7])
    writer.close()
    manifest = Manifest(
        kind="text", key="k", tokenizer="t", vocab_size=300, dtype=dtype, separator="S", validation="0",
        sources=(SourceRecord("a.txt", 3, "h"),), validation_sources=(),
        splits={
            "train": SplitRecord(1, len(values), 99, tuple(writer.shards)),
            "validation": SplitRecord(0, 0, 0, ()),
        },
    )  # fmt: skip
    (folder / MANIFEST).write_text(json.dumps(manifest.to_dict()))
    return manifest


@pytest.mark.parametrize(("dtype", "top"), [("uint16", 65535), ("uint32", 4_000_000_000)])
def test_every_range_reads_back_across_shards(dtype, top, tmp_path):
    values = np.linspace(0, top, 35).astype(dtype)
    assert write(tmp_path, values, dtype=dtype).splits["train"].shards == (10, 10, 10, 5)
    tokens = open_split(tmp_path, "train")
    assert (len(tokens), tokens.documents, tokens.bytes) == (35, 1, 99)
    for start in range(36):
        for stop in range(start, 36):
            read = tokens.read(start, stop)
            assert read.dtype == np.int64
            assert read.tolist() == values[start:stop].tolist()


def test_shards_are_plain_npy_files(tmp_path):
    write(tmp_path, np.arange(25))
    parts = [np.load(tmp_path / shards.shard_file_name("train", number)) for number in range(3)]
    assert np.concatenate(parts).tolist() == list(range(25))
    assert parts[0].dtype == np.uint16


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (0, 36)])
def test_a_range_outside_is_an_error(start, stop, tmp_path):
    write(tmp_path, np.arange(35))
    with pytest.raises(IndexError):
        open_split(tmp_path, "train").read(start, stop)


def test_an_empty_split_has_no_tokens(tmp_path):
    write(tmp_path, np.arange(5))
    validation = open_split(tmp_path, "validation")
    assert len(validation) == 0
    assert validation.read(0, 0).tolist() == []


def test_a_folder_without_a_manifest_is_refused(tmp_path):
    with pytest.raises(InputError, match="not a folder of prepared tokens"):
        open_split(tmp_path, "train")


@pytest.mark.parametrize("damage", ["missing", "short", "empty"])
def test_a_damaged_shard_is_named(damage, tmp_path):
    write(tmp_path, np.arange(25))
    path = tmp_path / "train-00001.npy"
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] if damage == "short" else b"")
    with pytest.raises(InputError, match=r"train-00001\.npy: missing or damaged; prepare the corpus again"):
        open_split(tmp_path, "train")


@pytest.mark.parametrize("mapped", [True, False])
def test_very_many_shards_are_read_as_few_are(mapped, tmp_path, monkeypatch):
    values = np.arange(35)
    record = write(tmp_path, values).splits["train"]
    monkeypatch.setattr(shards, "_MAX_MAPPED_SHARDS", 3)
    tokens = TokenShards(tmp_path, "train", record, mapped=mapped)
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    for start, stop in [(0, 35), (9, 31), (10, 20), (19, 21), (34, 35), (7, 7)]:
        assert tokens.read(start, stop).tolist() == values[start:stop].tolist()
    assert len(list(Path("/proc/self/fd").iterdir())) == open_files


class TestMoreThan32Bits:
    """Shards of which only a few places are on the disk."""

    SHARD = 1 << 26
    SHARDS = 80  # 5.4e9 tokens

    @pytest.fixture
    def folder(self, tmp_path) -> Path:
        for number in range(self.SHARDS):
            path = tmp_path / shards.shard_file_name("train", number)
            with path.open("wb") as file:
                header = {"descr": "<u2", "fortran_order": False, "shape": (self.SHARD,)}
                np.lib.format.write_array_header_1_0(file, header)
                first = file.tell()
                file.truncate(first + 2 * self.SHARD)
                for place, value in ((0, number + 1), (self.SHARD - 1, number + 1000)):
                    file.seek(first + 2 * place)
                    file.write(np.array([value], dtype="<u2").tobytes())
        return tmp_path

    def test_every_window_is_seen_once_and_read_where_it_is(self, folder):
        total = self.SHARD * self.SHARDS
        tokens = TokenShards(folder, "train", SplitRecord(1, total, total, (self.SHARD,) * self.SHARDS))
        assert len(tokens) == total > 1 << 32
        for number in range(1, self.SHARDS):
            edge = number * self.SHARD
            assert tokens.read(edge - 2, edge + 2).tolist() == [0, number + 999, number + 1, 0]
        order = WindowOrder(tokens=total, context=1024, seed=3)
        assert order.windows > 1 << 22
        last = order.windows - 1
        starts = np.array(order.starts(0, 4000) + order.starts(last - 4000, 4000))
        assert len(np.unique(starts)) == len(starts)
        offset = starts[0] % 1024
        assert (starts % 1024 == offset).all()
        assert starts.min() >= 0
        assert starts.max() + 1025 <= total
        assert (starts > 1 << 32).mean() == pytest.approx(1 - (1 << 32) / total, abs=0.05)
        assert order.starts(order.windows, 1)[0] % 1024 != offset  # the next epoch has an offset of its own
        batch = WindowData(tokens, tokens, context=1024, rows=4, seed=3).batch(last - 2)
        assert batch.targets.shape[-1] == 1024

    def test_a_permutation_of_more_than_32_bits_is_one(self):
        size = (1 << 32) + 12_345
        keys = np.full(1 << 16, 7, dtype=np.uint64)
        indices = np.arange(size - (1 << 16), size, dtype=np.uint64)
        found = permute_indices(indices, size, keys)
        assert len(np.unique(found)) == len(indices)
        assert found.max() < size
        assert found.max() > 1 << 31

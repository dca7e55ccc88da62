"""Arrays that are written bit by bit are read by numpy, and on the disk once they are closed."""

import numpy as np
import pytest

from lm.corpus.shards import ArrayWriter, token_dtype
from tests.lm.full_disk import full_disk


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "int64"])
@pytest.mark.parametrize("parts", [[], [[]], [[1, 2], [], [65_535]], [list(range(1000))] * 12])
def test_numpy_reads_what_was_written(tmp_path, disk, dtype, parts):
    path = tmp_path / "a.npy"
    writer = ArrayWriter(path, dtype=dtype)
    for part in parts:
        writer.append(np.array(part, dtype=np.int64))
    assert len(writer) == sum(map(len, parts))
    writer.close()
    assert disk.entries == [("sync", "a.npy")]
    found = np.load(path)
    assert found.dtype == np.dtype(dtype)
    assert found.tolist() == [number for part in parts for number in part]
    writer.close()
    assert disk.entries == [("sync", "a.npy")]


def test_what_is_discarded_is_closed_and_not_finished(tmp_path, disk):
    writer = ArrayWriter(tmp_path / "a.npy", dtype="uint16")
    writer.append(np.arange(3))
    writer.discard()
    assert len(np.load(tmp_path / "a.npy")) == 0
    with pytest.raises(ValueError, match="closed"):
        writer.append(np.arange(3))
    assert disk.entries == []


def test_ids_take_two_bytes_as_long_as_they_fit():
    assert [token_dtype(size) for size in (1, 65_536, 65_537)] == ["uint16", "uint16", "uint32"]


def test_a_full_disk_is_told_of_by_name_also_after_discarding(tmp_path):
    writer = ArrayWriter(tmp_path / "a.npy", dtype="uint16")
    with full_disk(after=200):
        with pytest.raises(OSError, match=r"File too large: '.*a\.npy'"):  # noqa: PT012 (whatever the size of the buffer)
            for _ in range(10_000):
                writer.append(np.arange(1000))
        writer.discard()

"""Tokens on disk: `.npy` files, appended to when written and memory-mapped when read.

A folder holds `train-00000.npy`, `validation-00000.npy`, … (one-dimensional, uint16 where the vocabulary allows, else
uint32), the `tokenizer.json` that made them and `manifest.json`. A folder with a manifest is complete: the manifest is
written last, and the folder gets its name only then.

While a corpus is tokenized, each of its chunks has a folder, named by its key, so that no chunk is made twice: the
arrays that it adds to each split, and a record with their checksums. Shards are joined from chunks.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lm import files
from lm.config import options
from lm.corpus.manifest import Manifest, Repetition, SplitName, SplitRecord
from lm.errors import InputError, UsageError


def token_dtype(vocab_size: int) -> str:
    """The smallest type for the ids of a vocabulary."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


class ArrayWriter:
    """Appends numbers to a `.npy` file."""

    def __init__(self, path: Path, *, dtype: npt.DTypeLike, lasting: bool = True) -> None:
        """Create the file at `path`; there may be one already. One that is not `lasting` is not waited for."""
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._path, self._lasting = path, lasting
        self._stream = path.open("wb")
        self._length = 0
        self._write_header()

    def __len__(self) -> int:
        """How many numbers have been written."""
        return self._length

    def append(self, values: npt.NDArray[Any]) -> None:
        """Write numbers after those that are there."""
        with files.naming(self._path):
            self._stream.write(values.astype(self._dtype, copy=False).tobytes())
        self._length += len(values)

    def close(self) -> None:
        """Finish the file; it is on the disk when this returns, if it is to last."""
        if not self._stream.closed:
            with files.naming(self._path):
                self._stream.seek(0)
                self._write_header()  # the first one was written with room for any length
                self._stream.flush()
                if self._lasting:
                    files.sync_open(self._stream.fileno())
                self._stream.close()

    def discard(self) -> None:
        """Close the file without finishing it."""
        with contextlib.suppress(OSError):  # as on a full disk, of which has been told already
            self._stream.close()

    def _write_header(self) -> None:
        described = np.lib.format.dtype_to_descr(self._dtype)
        header = {"descr": described, "fortran_order": False, "shape": (self._length,)}
        np.lib.format.write_array_header_1_0(self._stream, header)


SHARD_TOKENS = 1 << 26

_MAX_MAPPED_SHARDS = 512  # shards of a split, for each takes a file descriptor, of which a process may have 1,024


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a complete folder of shards.

    Raises:
        InputError: there is none, or it is damaged, or a shard is missing or has another size.
    """
    manifest = Manifest.read(folder)
    for split, record in manifest.splits.items():
        for number, tokens in enumerate(record.shards):
            _open_shard(folder / shard_file_name(split, number), tokens)
    return manifest


def _open_shard(path: Path, tokens: int) -> npt.NDArray[Any]:
    try:
        shard: npt.NDArray[Any] = np.load(path, mmap_mode="r")
        if shard.shape == (tokens,):
            return shard
    except (OSError, ValueError, EOFError):
        pass
    raise InputError(f"{path}: missing or damaged; prepare the corpus again")


def shard_file_name(split: str, number: int) -> str:
    """The file name of a shard."""
    return f"{split}-{number:05d}.npy"


class _Readable(Protocol):
    def __getitem__(self, part: slice, /) -> npt.NDArray[Any]: ...


class _ShardFile:
    """A shard that is opened whenever tokens are read."""

    def __init__(self, path: Path, tokens: int) -> None:
        mapped: Any = _open_shard(path, tokens)
        self._path, self._tokens, self._dtype, self._offset = path, tokens, mapped.dtype, mapped.offset

    def __getitem__(self, part: slice) -> npt.NDArray[Any]:
        start, stop, _ = part.indices(self._tokens)
        offset = self._offset + start * self._dtype.itemsize
        return np.fromfile(self._path, dtype=self._dtype, count=max(0, stop - start), offset=offset)


class TokenReader(Protocol):
    """A sequence of tokens that can be read in parts, such as a split of a prepared folder."""

    def __len__(self) -> int:
        """Number of tokens."""
        ...

    def read(self, start: int, stop: int) -> npt.NDArray[np.integer]:
        """The tokens from start to stop."""
        ...


class TokenShards:
    """The tokens of one split, read through mmap: only what is asked for is loaded."""

    def __init__(self, folder: Path, split: SplitName, record: SplitRecord, *, mapped: bool = True) -> None:
        """Open the shards that a record lists; InputError if one is missing or damaged.

        Those of very many shards are read as files instead, as all are that are not to be `mapped`: each once, say,
        where what has been read shall not stay in memory.
        """
        opened = _ShardFile if not mapped or len(record.shards) > _MAX_MAPPED_SHARDS else _open_shard
        self._shards: list[_Readable] = [
            opened(folder / shard_file_name(split, number), tokens) for number, tokens in enumerate(record.shards)
        ]
        self._starts = np.cumsum([0, *record.shards])
        self.documents = record.documents
        self.bytes = record.bytes

    def __len__(self) -> int:
        """How many tokens there are."""
        return int(self._starts[-1])

    def read(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """A copy of the tokens from `start` to before `stop`, across shards.

        Returns:
            (stop - start,) of int64, whatever the shards hold.

        Raises:
            IndexError: the range does not lie within the split.
        """
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"tokens {start} to {stop} of {len(self)}")
        out = np.empty(stop - start, dtype=np.int64)
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        for shard, offset in zip(self._shards[first:], self._starts[first:-1].tolist(), strict=True):
            if offset >= stop:
                break
            part = shard[max(start - offset, 0) : stop - offset]
            position = max(offset - start, 0)
            out[position : position + len(part)] = part
        return out


def open_split(folder: Path | str, split: SplitName) -> TokenShards:
    """The tokens of a split of a prepared folder.

    Raises:
        InputError: the folder holds no prepared tokens, or they are damaged.
    """
    return TokenShards(Path(folder), split, read_manifest(Path(folder)).splits[split])


@dataclass(frozen=True)
class WrittenShards:
    """The tokens of a corpus in shards.

    Attributes:
        splits: what each split holds.
        repetition: how much of the text occurs more than once, where that is measured.
        labels: how many labels there are (see `lm.corpus.examples`), where examples may have some.
    """

    splits: dict[str, SplitRecord]
    repetition: Repetition | None = None
    labels: int | None = None


class ShardWriter:
    """Appends tokens to the shards of one split, in bounded memory."""

    def __init__(self, folder: Path, split: SplitName, *, dtype: str, shard_tokens: int = SHARD_TOKENS) -> None:
        """Write into `folder`, which exists."""
        self._folder, self._split, self._dtype = folder, split, dtype
        self._shard_tokens = shard_tokens
        self._shard: ArrayWriter | None = None
        self.shards: list[int] = []

    def append(self, ids: npt.NDArray[Any]) -> None:
        """Write tokens after those that are there."""
        while len(ids):
            if self._shard is None or len(self._shard) == self._shard_tokens:
                self.close()
                path = self._folder / shard_file_name(self._split, len(self.shards))
                self._shard = ArrayWriter(path, dtype=self._dtype)
                self.shards.append(0)
            part = ids[: self._shard_tokens - len(self._shard)]
            self._shard.append(part)
            self.shards[-1] = len(self._shard)
            ids = ids[len(part) :]

    def close(self) -> None:
        """Finish the last shard; all are on disk when this returns."""
        if self._shard is not None:
            self._shard.close()

    def discard(self) -> None:
        """Close the file without finishing it."""
        if self._shard is not None:
            self._shard.discard()


_RECORD = "part.json"


@dataclass(frozen=True)
class ChunkSplit:
    """What a chunk adds to a split.

    Attributes:
        documents: that begin in the chunk.
        bytes: UTF-8 bytes of their text.
    """

    documents: int
    bytes: int


@dataclass(frozen=True)
class StoredChunk:
    """A chunk that is made.

    Attributes:
        folder: where its files are.
        splits: what it adds to each split.
        found: whether it was there already.
    """

    folder: Path
    splits: dict[SplitName, ChunkSplit]
    found: bool = field(default=False, compare=False)

    @property
    def bytes(self) -> int:
        """UTF-8 bytes of its text."""
        return sum(split.bytes for split in self.splits.values())

    def array(self, split: SplitName, name: str) -> npt.NDArray[Any]:
        """One of its arrays, read through mmap."""
        array: npt.NDArray[Any] = np.load(self.folder / array_file_name(split, name), mmap_mode="r")
        return array


def array_file_name(split: SplitName, name: str) -> str:
    """The file name of an array of a chunk."""
    return f"{split}-{name}.npy"


def load_chunk(folder: Path) -> StoredChunk | None:
    """The chunk in a folder, if all its files are as they were written."""
    try:
        record = files.read_json(folder / _RECORD)
        whole = all(files.sha256(folder / name) == expected for name, expected in record["sha256"].items())
        splits = {
            split: options.build_config(ChunkSplit, values, where=split) for split, values in record["splits"].items()
        }
    except (InputError, UsageError, OSError, KeyError, TypeError, AttributeError):
        return None
    return StoredChunk(folder, splits, found=True) if whole else None


def write_chunk_record(folder: Path, splits: Mapping[SplitName, ChunkSplit]) -> None:
    """Write what a chunk adds to each split, and the checksums of its files, which make it complete."""
    sums = {path.name: files.sha256(path) for path in folder.iterdir()}
    described = {split: asdict(record) for split, record in splits.items()}
    (folder / _RECORD).write_text(json.dumps({"splits": described, "sha256": sums}))  # sums tell whether all is there


def read_in_blocks(array: npt.NDArray[Any], *, block: int = 1 << 20) -> Iterator[npt.NDArray[Any]]:
    """An array in blocks, so that little of it is in memory at a time."""
    for start in range(0, len(array), block):
        yield array[start : start + block]

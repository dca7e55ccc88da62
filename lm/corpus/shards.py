"""Token shards: `.npy` files, written by appending and read by memory-mapping.

A folder holds `train-00000.npy`, `validation-00000.npy`, … (uint16 if the vocabulary allows, else uint32), the
`tokenizer.json` and `manifest.json`. The manifest is written last, before the folder is renamed, so a folder with a
manifest is complete.

While a corpus is tokenized, each chunk has a folder, named by its key, with its arrays for each split and a record with
checksums, so that no chunk is tokenized twice. Shards are merged from chunks.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lm import files
from lm.config import settings as options
from lm.corpus.manifest import SPLITS, Manifest, Repetition, SplitName, SplitRecord
from lm.errors import InputError, UsageError


def token_dtype(vocab_size: int) -> str:
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


class ArrayWriter:
    """Appends to a `.npy` file."""

    def __init__(self, path: Path, *, dtype: npt.DTypeLike, lasting: bool = True) -> None:
        """Create or replace the file; without `lasting` it is not synced to disk."""
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._path, self._lasting = path, lasting
        self._stream = path.open("wb")
        self._length = 0
        self._write_header()

    def __len__(self) -> int:
        return self._length

    def append(self, values: npt.NDArray[Any]) -> None:
        with files.with_path_in_errors(self._path):
            self._stream.write(values.astype(self._dtype, copy=False).tobytes())
        self._length += len(values)

    def close(self) -> None:
        """Finish the file, durably if `lasting`."""
        if not self._stream.closed:
            with files.with_path_in_errors(self._path):
                self._stream.seek(0)
                self._write_header()  # the first one was written with room for any length
                self._stream.flush()
                if self._lasting:
                    files.sync_descriptor(self._stream.fileno())
                self._stream.close()

    def discard(self) -> None:
        with contextlib.suppress(OSError):  # as on a full disk, of which has been told already
            self._stream.close()

    def _write_header(self) -> None:
        described = np.lib.format.dtype_to_descr(self._dtype)
        header = {"descr": described, "fortran_order": False, "shape": (self._length,)}
        np.lib.format.write_array_header_1_0(self._stream, header)


SHARD_TOKENS = 1 << 26

_MAX_MAPPED_SHARDS = 512  # shards of a split, for each takes a file descriptor, of which a process may have 1,024


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a complete folder of shards.

    Raises:
        InputError: it is missing or damaged, or a shard is missing or has another size.
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
    return f"{split}-{number:05d}.npy"


class _Readable(Protocol):
    def __getitem__(self, part: slice, /) -> npt.NDArray[Any]: ...


class _ShardFile:
    """A shard that is opened for each read."""

    def __init__(self, path: Path, tokens: int) -> None:
        mapped: Any = _open_shard(path, tokens)
        self._path, self._tokens, self._dtype, self._offset = path, tokens, mapped.dtype, mapped.offset

    def __getitem__(self, part: slice) -> npt.NDArray[Any]:
        start, stop, _ = part.indices(self._tokens)
        offset = self._offset + start * self._dtype.itemsize
        return np.fromfile(self._path, dtype=self._dtype, count=max(0, stop - start), offset=offset)


class TokenReader(Protocol):
    """A token sequence that can be read in parts, such as a split."""

    def __len__(self) -> int: ...

    def read(self, start: int, stop: int) -> npt.NDArray[np.integer]: ...


class TokenShards:
    """The tokens of a split, memory-mapped."""

    def __init__(self, folder: Path, split: SplitName, record: SplitRecord, *, mapped: bool = True) -> None:
        """Open the shards of a record; InputError if one is missing or damaged.

        Very many shards, and all if not `mapped`, are opened for each read, so that pages don't stay in memory.
        """
        open_file = _ShardFile if not mapped or len(record.shards) > _MAX_MAPPED_SHARDS else _open_shard
        self._shards: list[_Readable] = [
            open_file(folder / shard_file_name(split, number), tokens) for number, tokens in enumerate(record.shards)
        ]
        self._starts = np.cumsum([0, *record.shards])
        self.documents = record.documents
        self.bytes = record.bytes

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Copy the tokens from `start` to before `stop`, across shards.

        Returns:
            (stop - start,) int64.

        Raises:
            IndexError: the range is not within the split.
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
    """Open the tokens of a split of a prepared folder.

    Raises:
        InputError: the folder has no prepared tokens, or they are damaged.
    """
    return TokenShards(Path(folder), split, read_manifest(Path(folder)).splits[split])


@dataclass(frozen=True)
class WrittenShards:
    """The shards written for a corpus.

    Attributes:
        repetition: duplicated text, if measured.
        labels: number of labels (`lm.corpus.tokenized_examples`), if examples can have labels.
    """

    splits: dict[str, SplitRecord]
    repetition: Repetition | None = None
    labels: int | None = None


class ShardWriter:
    """Appends tokens to the shards of a split, in bounded memory."""

    def __init__(self, folder: Path, split: SplitName, *, dtype: str, shard_tokens: int = SHARD_TOKENS) -> None:
        self._folder, self._split, self._dtype = folder, split, dtype
        self._shard_tokens = shard_tokens
        self._shard: ArrayWriter | None = None
        self.shards: list[int] = []

    def append(self, ids: npt.NDArray[Any]) -> None:
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
        """Finish the last shard; all are durable afterwards."""
        if self._shard is not None:
            self._shard.close()

    def discard(self) -> None:
        if self._shard is not None:
            self._shard.discard()


_RECORD = "part.json"


@dataclass(frozen=True)
class ChunkSplit:
    """What a chunk adds to a split."""

    documents: int
    bytes: int


@dataclass(frozen=True)
class StoredChunk:
    """A tokenized chunk."""

    folder: Path
    splits: dict[SplitName, ChunkSplit]
    is_reused: bool = field(default=False, compare=False)

    @property
    def bytes(self) -> int:
        return sum(split.bytes for split in self.splits.values())

    def array(self, split: SplitName, name: str) -> npt.NDArray[Any]:
        array: npt.NDArray[Any] = np.load(self.folder / array_file_name(split, name), mmap_mode="r")
        return array


def array_file_name(split: SplitName, name: str) -> str:
    return f"{split}-{name}.npy"


def load_chunk(folder: Path) -> StoredChunk | None:
    """Load the chunk in a folder; None unless all checksums match."""
    try:
        record = files.read_json(folder / _RECORD)
        whole = all(files.sha256(folder / name) == expected for name, expected in record["sha256"].items())
        splits = {
            split: options.build_config(ChunkSplit, values, where=split) for split, values in record["splits"].items()
        }
    except (InputError, UsageError, OSError, KeyError, TypeError, AttributeError):
        return None
    return StoredChunk(folder, splits, is_reused=True) if whole else None


def write_chunk_record(folder: Path, splits: Mapping[SplitName, ChunkSplit]) -> None:
    """Write counts and checksums of a chunk, which makes it complete."""
    checksums = {path.name: files.sha256(path) for path in folder.iterdir()}
    split_records = {split: asdict(record) for split, record in splits.items()}
    (folder / _RECORD).write_text(
        json.dumps({"splits": split_records, "sha256": checksums})
    )  # sums tell whether all is there


def read_in_blocks(array: npt.NDArray[Any], *, block: int = 1 << 20) -> Iterator[npt.NDArray[Any]]:
    for start in range(0, len(array), block):
        yield array[start : start + block]


class SplitMerger(Protocol):
    """Merges one split of all chunks."""

    def add(self, chunk: StoredChunk) -> None: ...

    def close(self) -> SplitRecord: ...

    def discard(self) -> None: ...


@contextlib.contextmanager
def merged_splits(
    chunks: Iterable[StoredChunk], create: Callable[[SplitName], SplitMerger]
) -> Iterator[dict[str, SplitRecord]]:
    """Merge all chunks, in order, with a merger for each split; yields what the splits hold."""
    with contextlib.ExitStack() as stack:
        mergers = {}
        for split in SPLITS:
            mergers[split] = create(split)
            stack.callback(mergers[split].discard)
        for chunk in chunks:
            for merger in mergers.values():
                merger.add(chunk)
        yield {split: merger.close() for split, merger in mergers.items()}

"""A corpus divided among machines: each tokenizes a partition of its chunks, and one of them joins the partitions.

A partition is a folder with its chunks, the tokenizer, and `share.json`, which is written last. It lists all chunks in
order, so that partitions are joined without the corpus, to the very folder that one machine makes.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lm import files
from lm.config import options
from lm.config.data import DataConfig
from lm.corpus.chunks import StoredChunk, chunk_name, find_chunk, stored_chunks
from lm.corpus.corpus import Corpus
from lm.corpus.folders import Prepared, locked_folder
from lm.corpus.manifest import Manifest, SourceRecord, check_version
from lm.corpus.prepare import Origin, counted, making_of, tokens_of_chunks
from lm.errors import InputError, UsageError
from lm.text.files import Progress
from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer

VERSION = 1
"""Of the format of `share.json` and of the chunks beside it."""

PARTITION = "share.json"
_PARTS = "parts"


@dataclass(frozen=True)
class Partition:
    """Which partition of a corpus a folder holds; `share.json` is this, as JSON.

    Attributes:
        number: of the partition, from 1.
        count: of all partitions.
        tokenizer: hash of the tokenizer (`Tokenizer.sha256`).
        chunks: the names of all chunks of the corpus in order; they fall to the partitions in turns.
        origin: of the tokens.
    """

    number: int
    count: int
    tokenizer: str
    chunks: tuple[str, ...]
    origin: Origin

    @property
    def own(self) -> tuple[str, ...]:
        """The chunks that fall to this partition."""
        return self.chunks[self.number - 1 :: self.count]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the format's version in front."""
        values = asdict(self)
        chunks = values.pop("chunks")
        return {"format_version": VERSION, **values, "parts": chunks}

    @classmethod
    def read(cls, folder: Path) -> Partition:
        """The partition in a folder; InputError if there is none that is complete."""
        path = folder / PARTITION
        if not path.is_file():
            raise InputError(f"{folder}: no complete partition (it has no {PARTITION}); make it with --part")
        values = files.read_json(path)
        try:
            check_version(values, VERSION, where=str(path), what="partition")
            fields = {key: value for key, value in values.items() if key != "format_version"}
            chunks, origin = tuple(fields.pop("parts")), _origin(fields["origin"], where=str(path))
            return options.build(cls, {**fields, "chunks": chunks, "origin": origin}, where=str(path))
        except (KeyError, TypeError, AttributeError, UsageError) as error:
            raise InputError(f"{path}: damaged ({error}); prepare it again") from None


def _origin(values: Mapping[str, Any], *, where: str) -> Origin:
    records = {
        key: tuple(options.build(SourceRecord, record, where=where) for record in values[key])
        for key in ("sources", "validation_sources")
    }
    config = options.build(DataConfig, values["config"], where=where)
    return options.build(Origin, {**values, **records, "config": config}, where=where)


@dataclass(frozen=True)
class PreparedPartition:
    """A partition in a folder.

    Attributes:
        folder: where it is.
        partition: which one.
        chunks_found: how many of its chunks were there already.
    """

    folder: Path
    partition: Partition
    chunks_found: int


def prepare_partition(
    corpus: Corpus,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    number: int,
    count: int,
    force: bool = False,
    processes: int | None = None,
    progress: Progress | None = None,
) -> PreparedPartition:
    """Tokenize a partition of a corpus into a folder, or what of it is missing there.

    Args:
        corpus: the whole corpus.
        tokenizer: what makes the tokens: the same for all partitions.
        folder: is made with its parents; it may exist if it is empty or holds this partition.
        number: of the partition, from 1.
        count: of all partitions.
        force: replace another partition in the folder.
        processes: that tokenize at the same time, at most [default: as many as there are processors].
        progress: called as text is tokenized.

    Raises:
        InputError: as of `prepare_corpus`, or another process is at work on the folder.
        UsageError: as of `prepare_corpus`.
    """
    making = making_of(corpus.config)
    every = making.chunks(corpus)
    own = every[number - 1 :: count]
    names = tuple(chunk_name(chunk, tokenizer.sha256) for chunk in every)
    partition = Partition(number, count, tokenizer.sha256, names, Origin.of(corpus, tokenizer))
    done = counted(progress, round(corpus.bytes * len(own) / len(every)))
    with locked_folder(folder):
        _make_room(folder, partition, force=force)
        tokenizer.save(folder / FILE_NAME)
        place, saved = folder / _PARTS, folder / FILE_NAME
        stored = stored_chunks(own, tokenizer, making.write, folder=place, saved=saved, workers=processes, done=done)
        found = sum(chunk.found for chunk in stored)
        files.write_json(folder / PARTITION, partition.to_dict())
    return PreparedPartition(folder, partition, found)


def _make_room(folder: Path, partition: Partition, *, force: bool) -> None:
    """Remove what is no part of a partition from its folder; InputError if that might be precious."""
    present = {path.name for path in folder.iterdir()}
    if present - {PARTITION, _PARTS, FILE_NAME}:
        raise InputError(f"{folder}: is there already, and holds no partition of a corpus; choose another folder")
    if PARTITION in present and not force and Partition.read(folder) != partition:
        raise InputError(f"{folder}: holds another partition already; choose another folder, or --force")
    (folder / PARTITION).unlink(missing_ok=True)
    (folder / _PARTS).mkdir(exist_ok=True)
    for path in (folder / _PARTS).iterdir():
        if path.name not in partition.own:
            shutil.rmtree(path)


def join_partitions(
    folders: Sequence[Path], *, folder: Path | None = None, force: bool = False, root: Path | None = None
) -> Prepared[Manifest]:
    """Join all partitions of a corpus to a folder of tokens, or find it there.

    Args:
        folders: of the partitions, in any order.
        folder: as of `prepare_corpus`.
        force: as of `prepare_corpus`.
        root: as of `prepare_corpus`.

    Raises:
        InputError: a partition is missing, damaged or of another corpus, or the errors of `prepare_corpus`.
    """
    partitions = {partition.number: (place, partition) for place in folders for partition in (Partition.read(place),)}
    first_place, first = partitions[min(partitions)]
    _check_complete(partitions)

    def stored(_unfinished: Path, _saved: Path) -> Iterator[StoredChunk]:
        for place, name in enumerate(first.chunks):
            owner, partition = partitions[place % first.count + 1]
            if (chunk := find_chunk(owner / _PARTS / name)) is None:
                again = f"--part {partition.number}/{partition.count}"
                raise InputError(f"{owner / _PARTS / name}: missing or damaged; prepare it again ({again})")
            yield chunk

    tokenizer = Tokenizer.load(first_place / FILE_NAME)
    if tokenizer.sha256 != first.tokenizer:
        raise InputError(f"{first_place / FILE_NAME}: not the tokenizer of the partition; prepare it again")
    made = tokens_of_chunks(first.origin, tokenizer, stored, folder=folder, force=force, root=root)
    return Prepared(made.folder, made.manifest, reused=made.reused)


def _check_complete(partitions: Mapping[int, tuple[Path, Partition]]) -> None:
    """Raise InputError unless the partitions are all of one corpus."""
    first_place, first = partitions[min(partitions)]
    for place, partition in partitions.values():
        if (partition.chunks, partition.count, partition.origin.key) != (first.chunks, first.count, first.origin.key):
            raise InputError(f"{place}: a partition of another corpus, or by another tokenizer, than {first_place}")
    missing = [f"{number}/{first.count}" for number in range(1, first.count + 1) if number not in partitions]
    if missing:
        raise InputError(f"partitions are missing: {', '.join(missing)}; make them with --part, and name them too")

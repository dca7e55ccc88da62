"""Preparation on several machines: each tokenizes a partition of the chunks, and one joins the partitions.

A partition is a folder with its chunks, the tokenizer, and a manifest, written last. The manifest lists all chunks, so
that partitions can be joined without the corpus, to the same folder that one machine would write.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lm import files
from lm.corpus.manifest import MANIFEST, DataKind, Manifest, PartitionManifest, has_manifest
from lm.corpus.prepare_corpus import (
    PreparationInputs,
    accumulate_progress,
    find_kind,
    merge_chunks,
    select_stages,
    tokenize_chunks,
)
from lm.corpus.prepared_folder import PreparedFolder, locked_folder
from lm.corpus.shards import StoredChunk, load_chunk
from lm.corpus.text_corpus import Corpus, chunk_name, split_into_chunks
from lm.errors import InputError, UsageError
from lm.text.text_files import ProgressCallback
from lm.tokenizer.chat_template import CONFIG_FILE
from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer

_PARTS_FOLDER = "parts"
"""The folder of the chunks."""


def prepare_partition(
    corpus: Corpus,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    number: int,
    count: int,
    force: bool = False,
    processes: int | None = None,
    progress: ProgressCallback | None = None,
) -> PreparedFolder[PartitionManifest]:
    """Tokenize a partition of a corpus into a folder, or the part of it that is missing.

    Args:
        tokenizer: the same for all partitions.
        folder: created with its parents; may exist if empty or with this partition.
        number: of the partition, from 1.
        force: replace another partition in the folder.
        processes: maximum number of processes [default: one per processor].

    Raises:
        InputError: as of `prepare_corpus`, or another process works on the folder.
        UsageError: as of `prepare_corpus`.
    """
    if (kind := find_kind(corpus)) == "conversations":
        raise UsageError(f"{corpus.name}: conversations are prepared as a whole, not in partitions", settings=["part"])
    preparation = select_stages(kind)
    held_out = preparation.held_out(corpus)
    all_chunks = split_into_chunks(corpus, held_out)
    own = all_chunks[number - 1 :: count]
    names = tuple(chunk_name(chunk, tokenizer.sha256) for chunk in all_chunks)
    origin = PreparationInputs.from_corpus(corpus, tokenizer)
    partition = PartitionManifest(
        key=origin.key,
        sources=origin.sources,
        validation_sources=origin.validation_sources,
        number=number,
        count=count,
        tokenizer=tokenizer.sha256,
        chunks=names,
        config=origin.config,
        name=origin.name,
        bytes=origin.bytes,
    )
    done = accumulate_progress(progress, round(corpus.bytes * len(own) / len(all_chunks)))
    with locked_folder(folder):
        _remove_other_files(folder, partition, force=force)
        tokenizer.save(folder / FILE_NAME)
        unfinished, saved = folder / _PARTS_FOLDER, folder / FILE_NAME
        stored = tokenize_chunks(
            own, tokenizer, preparation.write, folder=unfinished, saved=saved, workers=processes, done=done
        )
        n_reused = sum(chunk.is_reused for chunk in stored)
        files.write_json(folder / MANIFEST, partition.to_dict())
    return PreparedFolder(folder, partition, reused=False, chunks_reused=n_reused)


def _remove_other_files(folder: Path, partition: PartitionManifest, *, force: bool) -> None:
    """Remove files that don't belong to a partition; InputError if they may be valuable."""
    present = {path.name for path in folder.iterdir()}
    if present - {MANIFEST, _PARTS_FOLDER, FILE_NAME, CONFIG_FILE}:
        raise InputError(f"{folder}: already exists, and holds no partition of a corpus; choose another folder")
    if has_manifest(folder) and not force and PartitionManifest.read(folder) != partition:
        problem = f"{folder}: holds another partition already; choose another folder, or replace it"
        raise InputError(problem, settings=["force"])
    (folder / MANIFEST).unlink(missing_ok=True)
    (folder / _PARTS_FOLDER).mkdir(exist_ok=True)
    for path in (folder / _PARTS_FOLDER).iterdir():
        if path.name not in partition.own_chunks:
            shutil.rmtree(path)


def join_partitions(
    folders: Sequence[Path], *, folder: Path | None = None, force: bool = False, root: Path | None = None
) -> PreparedFolder[Manifest]:
    """Join all partitions into a folder of tokens, or load it.

    Args:
        folders: of the partitions, in any order.

    Raises:
        InputError: a partition is missing, damaged or of another corpus, or as of `prepare_corpus`.
    """
    read = [(partition_folder, PartitionManifest.read(partition_folder)) for partition_folder in folders]
    partitions = {partition.number: (partition_folder, partition) for partition_folder, partition in read}
    first_place, first = partitions[min(partitions)]
    _check_complete(partitions)

    def stored(_unfinished: Path, _saved: Path) -> Iterator[StoredChunk]:
        for index, name in enumerate(first.chunks):
            owner, partition = partitions[index % first.count + 1]
            if (chunk := load_chunk(owner / _PARTS_FOLDER / name)) is None:
                again = f"part={partition.number}/{partition.count}"
                raise InputError(
                    f"{owner / _PARTS_FOLDER / name}: missing or damaged; prepare it again", settings=[again]
                )
            yield chunk

    tokenizer = Tokenizer.load(first_place / FILE_NAME)
    if tokenizer.sha256 != first.tokenizer:
        raise InputError(f"{first_place / FILE_NAME}: not the tokenizer of the partition; prepare it again")
    kind: DataKind = "examples" if first.config.supervised else "text"
    origin = PreparationInputs(
        first.key, first.config, kind, first.name, first.bytes, first.sources, first.validation_sources
    )
    merged = merge_chunks(origin, tokenizer, stored, folder=folder, force=force, root=root)
    return PreparedFolder(merged.folder, merged.manifest, reused=merged.reused)


def _check_complete(partitions: Mapping[int, tuple[Path, PartitionManifest]]) -> None:
    first_place, first = partitions[min(partitions)]
    for partition_folder, partition in partitions.values():
        if (partition.chunks, partition.count, partition.key) != (first.chunks, first.count, first.key):
            raise InputError(
                f"{partition_folder}: a partition of another corpus, or by another tokenizer, than {first_place}"
            )
    missing = [f"{number}/{first.count}" for number in range(1, first.count + 1) if number not in partitions]
    if missing:
        raise InputError(
            f"partitions are missing: {', '.join(missing)}; make them, and name them too", settings=["part"]
        )

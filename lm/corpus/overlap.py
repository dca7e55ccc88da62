"""Overlap: how much of a text is also in a training split, and copies of documents, by hashes in the store.

Text is compared by passages of 200 bytes, of which about one in 128 is hashed: those whose first four bytes have a
certain hash, so that the same passages are chosen wherever a text stands (Schleimer et al. 2003, Winnowing), and at
least one of each text, however short. Examples, conversations and sentence pairs are compared as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from lm.config.data import DataKind
from lm.corpus.store import SPLITS, Manifest, Split
from lm.corpus.survey import record_hash
from lm.pseudorandom import hash64
from lm.text.records import Record

Hashes = NDArray[np.uint64]

PASSAGE_BYTES = 200
"""About 50 tokens of English: Lee et al. 2022 (section 4.1) count repetitions of this length or more."""

_MULTIPLIER, _LIMIT = np.uint32(0x9E3779B1), np.uint32((1 << 32) // 128)
_WORD_KEYS = hash64(np.arange(PASSAGE_BYTES // 8, dtype=np.uint64))
_MIN_NOTABLE = 0.05


def hash_records(records: Sequence[Record], kind: DataKind) -> Hashes:
    """Return the hashes by which records are found in a store of a kind; of text, those of some passages."""
    if kind != "text":
        return np.array([record_hash(record) for record in records], dtype=np.uint64)
    texts = [record.text.encode().ljust(PASSAGE_BYTES, b"\0") for record in records]
    data, ends = b"".join(texts), np.cumsum([*map(len, texts)])
    beginnings = [np.frombuffer(data, "<u4", (len(data) - offset) // 4, offset) for offset in range(4)]
    chosen = np.concatenate(
        [4 * np.flatnonzero(words * _MULTIPLIER < _LIMIT) + offset for offset, words in enumerate(beginnings)]
    )
    numbers = np.searchsorted(ends, chosen, side="right")
    is_inside = chosen + PASSAGE_BYTES <= ends[numbers]
    first = np.delete(np.append(0, ends[:-1]), np.unique(numbers[is_inside]))  # of texts without a chosen one
    places = np.append(chosen[is_inside], first)
    passages = sliding_window_view(np.frombuffer(data, np.uint8), PASSAGE_BYTES)[places].view("<u8")
    return hash64(passages ^ _WORD_KEYS).sum(axis=1, dtype=np.uint64)


def measure_overlap(hashes: Sequence[Hashes], train: Split) -> float:
    """Return the fraction of hashes (`hash_records`) that are in a training split."""
    sought = np.unique(np.concatenate(hashes))
    is_found = np.zeros(len(sought), dtype=bool)
    for stored in train.parts("passages"):
        places = np.searchsorted(sought, stored) % len(sought)
        is_found[places[sought[places] == stored]] = True
    return float(is_found.mean())


def is_notable(overlap: float, manifest: Manifest) -> bool:
    """Return whether a text overlaps with a training split clearly more than text of the same source does."""
    return overlap >= max(_MIN_NOTABLE, min(0.5, 2 * (manifest.repeated or 0)))


def measure_repetition(folder: Path, manifest: Manifest) -> Manifest:
    """Measure the copies of documents in a store, and the fraction of the held-out text in its training split."""
    train, held_out = (Split(folder, manifest, name) for name in SPLITS)
    documents = np.concatenate([split.column("hash").astype(np.uint64) for split in (train, held_out)])
    repeated = measure_overlap([held_out.column("passages")], train) if held_out.documents else None
    return replace(manifest, copies=len(documents) - len(np.unique(documents)), repeated=repeated)

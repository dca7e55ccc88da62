"""The held-out split of a run, decoded from its prepared tokens, as a file of the kind it was trained on."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np

from lm.checkpoint import LoadedModel
from lm.config.data import DataConfig, FilesConfig
from lm.config.run_config import RunConfig
from lm.corpus.store import Manifest, open_split, read_held_out, verify_checksums
from lm.errors import InputError
from lm.text.find import write_temporary_file
from lm.text.parallel_text import ParallelText
from lm.text.text_file import TextFile
from lm.tokenizer.tokenizer import Tokenizer

HELD_OUT_NAME = "held-out"
"""The name of the split in reports."""

_MAX_ROW_TOKENS = 1 << 24
"""Tokens; a longer document is cut, so that each row fits into memory."""

_ADVICE = "name text to measure it on, or prepare its corpus again"


def _write_rows(rows: Iterable[Mapping[str, str]]) -> TextFile:
    """Write a file of rows, whose line ends were normalised when they were prepared."""
    lines = (json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)
    file = write_temporary_file(lines, name=HELD_OUT_NAME)
    return dataclasses.replace(file, data=DataConfig(keep_line_ends=True), reading=FilesConfig(format="jsonl"))


def find_prepared_folder(checkpoint: Path, config: RunConfig) -> Path:
    """Return the prepared data of a run; InputError if they are gone, or the model was imported."""
    plan = config.plan
    if plan is None:
        raise InputError(f"{checkpoint}: not trained here, so nothing is held out; name text to measure it on")
    folder = Path(plan.data)
    if not folder.is_dir():
        raise InputError(f"{folder}: the prepared tokens of this run are gone; {_ADVICE}")
    if Manifest.read(folder).key != plan.data_key:
        raise InputError(f"{folder}: not the tokens that this run was trained on; {_ADVICE}")
    return folder


def open_held_out_text(loaded: LoadedModel) -> TextFile:
    """Return the held-out documents or examples of a run as JSON Lines.

    Raises:
        InputError: nothing was held out, or the prepared tokens are gone or damaged.
    """
    folder = _verified_folder(loaded)
    manifest = Manifest.read(folder)
    if not manifest.splits["validation"].tokens:
        raise _nothing_held_out(loaded)
    rows = _documents(folder, loaded.tokenizer) if manifest.kind == "text" else read_held_out(folder)
    return _write_rows(rows)


def open_held_out_pairs(loaded: LoadedModel) -> tuple[ParallelText, str | None]:
    """Return the held-out pairs of a translation run, and their target language if known.

    Raises:
        InputError: nothing was held out, or the prepared pairs are gone or damaged.
    """
    folder = _verified_folder(loaded)
    manifest, pairs = Manifest.read(folder), list(read_held_out(folder))
    if not pairs:
        raise _nothing_held_out(loaded)
    heads = None
    if manifest.has_dependency_heads:
        lines = (" ".join(map(str, pair["heads"])) + "\n" for pair in pairs)
        heads = write_temporary_file((line.encode() for line in lines), name=f"{HELD_OUT_NAME}, heads")
    return ParallelText(_write_rows(pairs), heads=heads), manifest.languages[1]


def _verified_folder(loaded: LoadedModel) -> Path:
    folder = find_prepared_folder(loaded.folder, loaded.config)
    verify_checksums(folder, Manifest.read(folder).sha256, advice=_ADVICE)
    return folder


def _nothing_held_out(loaded: LoadedModel) -> InputError:
    return InputError(f"{loaded.folder}: this run held nothing out; name text to measure it on")


def _documents(folder: Path, tokenizer: Tokenizer) -> Iterator[dict[str, str]]:
    """Yield the documents between start and end tokens."""
    tokens = open_split(folder, "validation")
    frame = [token for token in (tokenizer.start_of_text, tokenizer.end_of_text) if token is not None]
    pending = np.empty(0, dtype=np.int64)
    for start in range(0, len(tokens), _MAX_ROW_TOKENS):
        pending = np.concatenate([pending, tokens.read(start, min(start + _MAX_ROW_TOKENS, len(tokens)))])
        edges = [-1, *np.flatnonzero(np.isin(pending, frame)).tolist()]
        yield from (
            _decode_row(tokenizer, pending[before + 1 : end]) for before, end in pairwise(edges) if end > before + 1
        )
        pending = pending[edges[-1] + 1 :]
        if len(pending) > _MAX_ROW_TOKENS:
            yield _decode_row(tokenizer, pending)
            pending = pending[:0]
    if len(pending):
        yield _decode_row(tokenizer, pending)


def _decode_row(tokenizer: Tokenizer, ids: np.ndarray[tuple[int], np.dtype[np.int64]]) -> dict[str, str]:
    return {"text": tokenizer.decode(ids)}

"""The held-out split of a run, decoded from its prepared tokens, as a file of the kind it was trained on."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lm.checkpoint import LoadedModel
from lm.config.data import DataConfig, FilesConfig
from lm.config.run_config import RunConfig
from lm.corpus.store import Manifest, open_split, read_held_out, verify_checksums
from lm.data.rows import find_examples
from lm.errors import InputError
from lm.evaluation.scoring import ScoredTexts, find_scored_kind
from lm.text.find import find_text_files, write_temporary_file
from lm.text.parallel_text import ParallelText
from lm.text.text_file import TextFile
from lm.tokenizer.tokenizer import Tokenizer

HELD_OUT_NAME = "held-out"
"""The name of the split in reports."""

_MAX_ROW_TOKENS = 1 << 24
"""Tokens; a longer document is cut, so that each row fits into memory."""

_ADVICE = "name text to measure it on, or prepare its corpus again"


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


def open_held_out(loaded: LoadedModel) -> ScoredTexts:
    """Return the held-out documents, examples, conversations or sentence pairs of a run.

    Raises:
        InputError: nothing was held out, or the prepared tokens are gone or damaged.
    """
    folder = find_prepared_folder(loaded.folder, loaded.config)
    manifest = Manifest.read(folder)
    verify_checksums(folder, manifest.sha256)
    if not manifest.splits["validation"].tokens:
        raise InputError(f"{loaded.folder}: this run held nothing out; name text to measure it on")
    if manifest.kind != "pairs":
        rows = _documents(folder, loaded.tokenizer) if manifest.kind == "text" else read_held_out(folder)
        return ScoredTexts([_write_rows(rows)], manifest.kind)
    pairs, heads = list(read_held_out(folder)), None
    if manifest.has_dependency_heads:
        lines = (" ".join(map(str, pair["heads"])) + "\n" for pair in pairs)
        heads = write_temporary_file((line.encode() for line in lines), name=f"{HELD_OUT_NAME}, heads")
    texts = ParallelText(_write_rows(pairs), heads=heads)
    return ScoredTexts([texts], "pairs", file_language=manifest.languages[1])


def _write_rows(rows: Iterable[Mapping[str, Any]]) -> TextFile:
    """Write a file of rows, whose line ends were normalised when they were prepared."""
    lines = (json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)
    file = write_temporary_file(lines, name=HELD_OUT_NAME)
    return dataclasses.replace(file, data=DataConfig(keep_line_ends=True), reading=FilesConfig(format="jsonl"))


def _documents(folder: Path, tokenizer: Tokenizer) -> Iterator[dict[str, str]]:
    """Yield the documents between start and end tokens."""
    tokens = open_split(folder, "validation")
    frame = [token for token in (tokenizer.start_of_text, tokenizer.end_of_text) if token is not None]
    pending = np.empty(0, dtype=np.int64)
    for start in range(0, len(tokens), _MAX_ROW_TOKENS):
        pending = np.concatenate([pending, tokens.read(start, min(start + _MAX_ROW_TOKENS, len(tokens)))])
        is_last = start + _MAX_ROW_TOKENS >= len(tokens)
        edges = [-1, *np.flatnonzero(np.isin(pending, frame)).tolist()]
        if is_last or len(pending) - edges[-1] > _MAX_ROW_TOKENS:
            edges.append(len(pending))
        for before, end in pairwise(edges):
            if end > before + 1:
                yield {"text": tokenizer.decode(pending[before + 1 : end])}
        pending = pending[edges[-1] + 1 :]


def open_texts(
    loaded: LoadedModel,
    names: Sequence[str],
    reading: FilesConfig,
    data: Mapping[str, Any],
    *,
    kind: Literal["examples"] | None = None,
) -> ScoredTexts:
    """Return files to score by a run, or without any what it held out.

    Args:
        names: files, folders and globs.
        data: settings of `DataConfig` that differ from those of the run.
        kind: what files hold [default: see `find_scored_kind`].

    Raises:
        InputError: a file is missing, or not of the kind; or as of `open_held_out`.
        UsageError: as of `find_scored_kind`.
    """
    if not names:
        return open_held_out(loaded)
    config = loaded.config.data.for_other_files(**data)
    if kind == "examples":
        return ScoredTexts(find_examples(names, config, reading), kind)
    files = find_text_files(names, config, reading)
    return ScoredTexts(files, find_scored_kind(loaded, files))

"""The held-out split of a run, decoded from its prepared tokens, as a file of the kind it was trained on."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np

from lm.checkpoint import LoadedModel
from lm.config.data import DataConfig
from lm.config.run_config import RunConfig
from lm.corpus.manifest import Manifest, PairManifest, PreparedManifest
from lm.corpus.prepared_folder import verify_checksums
from lm.corpus.shards import open_split
from lm.corpus.tokenized_conversations import HELD_OUT_FILE
from lm.corpus.tokenized_examples import open_examples
from lm.corpus.tokenized_pairs import open_pairs
from lm.errors import InputError
from lm.text.parallel_text import ParallelText
from lm.text.rows import FIELD, PAIR_FIELDS
from lm.text.text_files import TextFile, write_temporary_file
from lm.tokenizer.special_tokens import build_example_frame
from lm.tokenizer.tokenizer import Tokenizer

HELD_OUT_NAME = "held-out"
"""The name of the split in reports."""

_MAX_ROW_TOKENS = 1 << 24
"""Tokens; a longer document is cut, so that each row fits into memory."""

_ADVICE = "name text to measure it on, or prepare its corpus again"


_AS_PREPARED = DataConfig(keep_line_ends=True)
"""Line ends were normalised when the text was prepared."""


def find_prepared_folder(checkpoint: Path, config: RunConfig) -> Path:
    """Return the prepared data of a run; InputError if they are gone, or the model was imported."""
    plan = config.plan
    if plan is None:
        raise InputError(f"{checkpoint}: not trained here, so nothing is held out; name text to measure it on")
    folder = Path(plan.data)
    if not folder.is_dir():
        raise InputError(f"{folder}: the prepared tokens of this run are gone; {_ADVICE}")
    if PreparedManifest.read(folder).key != plan.data_key:
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
    if manifest.kind == "conversations":
        lines = (folder / HELD_OUT_FILE).read_bytes().splitlines(keepends=True)
        return dataclasses.replace(write_temporary_file(lines, name=HELD_OUT_NAME), data=_AS_PREPARED)
    rows = _examples(folder, loaded.tokenizer) if manifest.supervised else _documents(folder, loaded.tokenizer)
    return dataclasses.replace(write_temporary_file(_lines(rows), name=HELD_OUT_NAME), data=_AS_PREPARED)


def open_held_out_pairs(loaded: LoadedModel) -> tuple[ParallelText, str | None]:
    """Return the held-out pairs of a translation run, and their target language if known.

    Raises:
        InputError: nothing was held out, or the prepared pairs are gone or damaged.
    """
    folder = _verified_folder(loaded)
    manifest, pairs = PairManifest.read(folder), list(open_pairs(folder).validation_texts())
    if not pairs:
        raise _nothing_held_out(loaded)
    rows = write_temporary_file(
        _lines(dict(zip(PAIR_FIELDS, pair[:2], strict=True)) for pair in pairs), name=HELD_OUT_NAME
    )
    heads = None
    if manifest.has_dependency_heads:
        lines = (" ".join(map(str, source_heads or ())) + "\n" for _, _, source_heads in pairs)
        heads = write_temporary_file((line.encode() for line in lines), name=f"{HELD_OUT_NAME}, heads")
    return ParallelText(
        dataclasses.replace(rows, data=DataConfig(text_column=PAIR_FIELDS[0], keep_line_ends=True)),
        None,
        PAIR_FIELDS,
        heads,
    ), manifest.languages[1]


def _verified_folder(loaded: LoadedModel) -> Path:
    folder = find_prepared_folder(loaded.folder, loaded.config)
    verify_checksums(folder, PreparedManifest.read(folder).sha256, advice=_ADVICE)
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
    return {FIELD: tokenizer.decode(ids)}


def _examples(folder: Path, tokenizer: Tokenizer) -> Iterator[dict[str, str]]:
    examples, frame = open_examples(folder, "validation"), build_example_frame(tokenizer)
    for number in range(len(examples)):
        ids, learned = examples.read(number)
        prompt, completion = ids[len(frame.before) : len(ids) - learned], ids[len(ids) - learned :]
        completion = completion[: learned - len(frame.after)]
        yield {"prompt": tokenizer.decode(prompt), "completion": tokenizer.decode(completion)}


def _lines(rows: Iterable[Mapping[str, str]]) -> Iterator[bytes]:
    for row in rows:
        yield json.dumps(row, ensure_ascii=False).encode() + b"\n"

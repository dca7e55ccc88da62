"""SentencePiece vocabularies of Marian models: pieces of source and target, and their shared IDs."""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from lm.errors import InputError
from lm.interop.hugging_face.folder import read_json
from lm.tokenizer.tokenizer import Tokenizer

SOURCE, TARGET, IDS = "source.spm", "target.spm", "vocab.json"
_NORMAL, _UNKNOWN, _CONTROL = 1, 2, 3
_UNIGRAM = 1
_HIDDEN, _ALONE = "\x01", "\x02"
"""Prefixes of tokens that only the other side has pieces for; decoding removes them.

No text has the first when it is cut; the second precedes tokens of unknown characters alone (`_build_normalizers`).
"""
_START, _UNKNOWN_NAME, _SPACE = "<s>", "<unk>", "\u2581"


@dataclass(frozen=True)
class SentencePieceModel:
    """A parsed SentencePiece model file.

    Attributes:
        scores: log-probability of each piece.
        characters: precompiled character map for normalisation; may be empty.
        has_prefix: whether a space is prepended to each text.
        joins_spaces: whether repeated spaces are merged and outer ones removed.
    """

    scores: Mapping[str, float]
    characters: bytes
    has_prefix: bool
    joins_spaces: bool


def read_tokenizers(folder: Path, start: int) -> tuple[Tokenizer, Tokenizer]:
    """Build the source and target tokenizers with the IDs of `vocab.json`.

    Language tokens such as `>>fra<<` are renamed to ours: `<2fra>`.

    Raises:
        InputError: a file is missing, damaged, or of another kind.
    """
    missing = next((name for name in (SOURCE, TARGET, IDS) if not (folder / name).is_file()), None)
    if missing is not None:
        raise InputError(f"{folder / missing}: missing; a Marian without tokenizer.json needs it")
    ids = read_json(folder / IDS)
    if not isinstance(ids, Mapping) or sorted(ids.values(), key=str) != sorted(range(len(ids)), key=str):
        raise InputError(f"{folder / IDS}: is not a mapping of tokens to IDs")
    if _UNKNOWN_NAME not in ids:
        raise InputError(f"{folder / IDS}: has no token {_UNKNOWN_NAME}")
    names = sorted(ids, key=lambda name: ids[name])
    source, target = (_build_tokenizer(read_model(folder / name), names, start) for name in (SOURCE, TARGET))
    return source, target


def read_model(path: Path) -> SentencePieceModel:
    """Parse a SentencePiece model file.

    Raises:
        InputError: it is damaged, or not a unigram model.

    Source: sentencepiece_model.proto, in the wire format of Protocol Buffers.
    """
    try:
        parts = list(_parse_fields(path.read_bytes()))
        trainer, normalizer = (dict(_parse_fields(b"".join(_field_values(parts, number)))) for number in (2, 3))
        pieces = [dict(_parse_fields(part)) for part in _field_values(parts, 1)]
        scores = {piece[1].decode(): _score(piece) for piece in pieces if piece.get(3, _NORMAL) == _NORMAL}
    except (ValueError, KeyError, AttributeError, TypeError, struct.error):
        raise InputError(f"{path}: not a readable SentencePiece model; download it again") from None
    if trainer.get(3, _UNIGRAM) != _UNIGRAM or trainer.get(35) or trainer.get(24) or not scores:
        raise InputError(f"{path}: is not a unigram model, which is the only kind that lm reads")
    if any(piece.get(3, _NORMAL) not in {_NORMAL, _UNKNOWN, _CONTROL} for piece in pieces):
        raise InputError(f"{path}: has pieces of unsupported kinds (user-defined, bytes)")
    return SentencePieceModel(scores, normalizer.get(2, b""), bool(normalizer.get(3, 1)), bool(normalizer.get(4, 1)))


def _field_values(parts: list[tuple[int, Any]], number: int) -> list[bytes]:
    return [value for field, value in parts if field == number]


def _score(piece: Mapping[int, Any]) -> float:
    value: float = struct.unpack("<f", piece.get(2, bytes(4)))[0]
    return value


def _parse_fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield field numbers with integer or bytes values of a message; ValueError if damaged."""
    offset = 0
    while offset < len(data):
        key, offset = _parse_varint(data, offset)
        value: int | bytes
        if key & 7 == 0:
            value, offset = _parse_varint(data, offset)
        else:
            size, offset = (8 if key & 7 == 1 else 4, offset) if key & 7 in {1, 5} else _parse_varint(data, offset)
            value, offset = data[offset : offset + size], offset + size
        if key & 7 not in {0, 1, 2, 5} or offset > len(data):
            raise ValueError("damaged")
        yield key >> 3, value


def _parse_varint(data: bytes, offset: int) -> tuple[int, int]:
    """Return a varint and the position after it; ValueError if truncated."""
    for length in range(10):
        if offset + length >= len(data):
            break
        if data[offset + length] < 128:
            digits = data[offset : offset + length + 1]
            return sum((digit & 127) << (7 * index) for index, digit in enumerate(digits)), offset + length + 1
    raise ValueError("damaged")


def _build_tokenizer(pieces: SentencePieceModel, names: Sequence[str], start: int) -> Tokenizer:
    """Build a unigram tokenizer for source or target, with the shared IDs."""
    known = {piece for piece in pieces.scores if len(piece) == 1} | {" ", _SPACE}
    languages = {name for name in names if name.startswith(">>") and name.endswith("<<")}
    special = languages | ({"</s>", _UNKNOWN_NAME} & {*names}) | {names[start]}
    foreign = [name for name in names if name not in special and name not in pieces.scores]
    isolated = {name for name in foreign if known.isdisjoint(name)}
    spelled = {name: (_ALONE if name in isolated else _HIDDEN) + name for name in foreign}
    spelled |= {name: f"<2{name[2:-2]}>" if name in languages else name for name in special} | {names[start]: _START}
    scores = {**dict.fromkeys(names, min(pieces.scores.values())), **pieces.scores}
    named = [(spelled.get(name, name), scores[name]) for name in names]
    backend = tokenizers.Tokenizer(models.Unigram(named, unk_id=names.index(_UNKNOWN_NAME)))
    backend.add_special_tokens([spelled[name] for name in names if name in special])
    backend.normalizer = normalizers.Sequence(_build_normalizers(pieces, known, isolated))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always" if pieces.has_prefix else "never")
    marks = [decoders.Replace(mark, "") for mark in (_HIDDEN, _ALONE)]
    backend.decoder = decoders.Sequence([*marks, decoders.Metaspace()])
    return Tokenizer(backend)


def _build_normalizers(
    pieces: SentencePieceModel, known: Collection[str], isolated: Collection[str]
) -> list[normalizers.Normalizer]:
    """Return the normalisers; the last one marks foreign tokens among known characters.

    SentencePiece encodes a run of unknown characters as one piece; Marian takes this for a token if the other side has
    one with that spelling.
    """
    steps: list[normalizers.Normalizer] = []
    if pieces.characters:
        steps.append(normalizers.Precompiled(pieces.characters))
    steps.append(normalizers.Replace(Regex(f"[{_HIDDEN}{_ALONE}]"), ""))
    if pieces.joins_spaces:
        steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if isolated:
        unknown, tokens = f"[^{re.escape(''.join(sorted(known)))}]", "|".join(map(re.escape, sorted(isolated)))
        marked = Regex(f"(?<!{unknown})(?={unknown})(?=(?:{tokens})(?!{unknown}))")
        steps.append(normalizers.Replace(marked, _ALONE))
    return steps

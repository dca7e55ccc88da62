"""SentencePiece vocabularies of Marian models: pieces of source and target, and their shared IDs."""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from lm import files
from lm.errors import InputError
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


def read_tokenizers(folder: Path, start: Any) -> tuple[Tokenizer, Tokenizer]:
    """Build the source and target tokenizers with the IDs of `vocab.json`, in which `start` starts a target.

    Language tokens such as `>>fra<<` are renamed to ours: `<2fra>`.

    Raises:
        InputError: a file is missing, damaged, or of another kind.
    """
    if missing := [name for name in (SOURCE, TARGET, IDS) if not (folder / name).is_file()]:
        raise InputError(f"{folder / missing[0]}: missing; a Marian without tokenizer.json needs it")
    ids = files.read_json(folder / IDS)
    names = sorted(ids, key=lambda name: str(ids[name]).zfill(10)) if isinstance(ids, dict) else []
    if [ids[name] for name in names] != list(range(len(names))) or _UNKNOWN_NAME not in names:
        raise InputError(f"{folder / IDS}: is not a mapping of tokens to IDs, with {_UNKNOWN_NAME}")
    if type(start) is not int or start not in range(len(names)):
        raise InputError(f"{folder}: no token {start!r} (decoder_start_token_id)")
    source, target = (_build_tokenizer(read_model(folder / name), names, start) for name in (SOURCE, TARGET))
    return source, target


def read_model(path: Path) -> SentencePieceModel:
    """Parse a SentencePiece model file.

    Raises:
        InputError: it is damaged, or not a unigram model.

    Source: sentencepiece_model.proto, in the wire format of Protocol Buffers.
    """
    try:
        message = _parse(path.read_bytes())
        trainer, normalizer = (_parse_last(b"".join(message[number])) for number in (2, 3))
        pieces = [_parse_last(part) for part in message[1]]
        kinds = {piece.get(3, _NORMAL) for piece in pieces}
        scores = {
            piece[1].decode(): struct.unpack("<f", piece.get(2, bytes(4)))[0]
            for piece in pieces
            if piece.get(3, _NORMAL) == _NORMAL
        }
    except (ValueError, KeyError, AttributeError, TypeError, struct.error):
        raise InputError(f"{path}: not a readable SentencePiece model; download it again") from None
    is_plain = trainer.get(3, _UNIGRAM) == _UNIGRAM and not trainer.get(35) and not trainer.get(24)
    if not is_plain or not scores or not kinds <= {_NORMAL, _UNKNOWN, _CONTROL}:
        raise InputError(f"{path}: is not a unigram model without user-defined pieces and bytes, as lm reads")
    return SentencePieceModel(scores, normalizer.get(2, b""), bool(normalizer.get(3, 1)), bool(normalizer.get(4, 1)))


def _parse_last(data: bytes) -> dict[int, Any]:
    return {number: values[-1] for number, values in _parse(data).items()}


def _parse(data: bytes) -> Mapping[int, list[Any]]:
    """Return the integers or bytes of each field of a message; ValueError or KeyError if damaged."""
    stream, fields = BytesIO(data), defaultdict[int, list[Any]](list)

    def read_varint() -> int:
        digits: list[int] = []
        while not digits or digits[-1] > 127:
            digits += struct.unpack("B", stream.read(1))
        return sum((digit & 127) << (7 * index) for index, digit in enumerate(digits))

    while stream.tell() < len(data):
        number, kind = divmod(read_varint(), 8)
        value: int | bytes = read_varint() if kind in {0, 2} else {1: 8, 5: 4}[kind]
        if kind and len(value := stream.read(size := int(value))) < size:
            raise ValueError("truncated")
        fields[number].append(value)
    return fields


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

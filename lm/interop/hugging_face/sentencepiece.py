"""SentencePiece vocabularies of Marian models: pieces of source and target, and their shared IDs."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from lm import files
from lm.errors import InputError, missing_packages
from lm.tokenizer.tokenizer import Tokenizer

SOURCE, TARGET, IDS = "source.spm", "target.spm", "vocab.json"
_NORMAL, _UNKNOWN, _CONTROL = 1, 2, 3
_UNIGRAM = 1
_HIDDEN, _ALONE = "\x01", "\x02"
"""Prefixes of tokens that only the other side has pieces for; decoding removes them.

No text has the first when it is cut; the second precedes tokens of unknown characters alone (`_build_normalizers`).
"""
_START, _UNKNOWN_NAME, _SPACE = "<s>", "<unk>", "\u2581"


def read_tokenizers(folder: Path, start: Any) -> tuple[Tokenizer, Tokenizer]:
    """Build the source and target tokenizers with the IDs of `vocab.json`, in which `start` starts a target.

    Language tokens such as `>>fra<<` are renamed to ours: `<2fra>`.

    Raises:
        InputError: a file is missing or of another kind.
    """
    ids = files.read_json(folder / IDS)
    names = sorted(ids, key=lambda name: int(ids[name]))
    if [ids[name] for name in names] != list(range(len(names))):
        raise InputError(f"{folder / IDS}: has gaps in its IDs")
    starting = dict(enumerate(names)).get(start, "")
    source, target = (_build_tokenizer(_read_model(folder / name), names, starting) for name in (SOURCE, TARGET))
    return source, target


def _read_model(path: Path) -> Any:
    """Read a SentencePiece model file; InputError if it is not a unigram model."""
    try:
        from sentencepiece import sentencepiece_model_pb2 as proto  # noqa: PLC0415 (an optional dependency)
    except ImportError:
        raise missing_packages("a Marian without tokenizer.json", "sentencepiece", "protobuf") from None
    model = proto.ModelProto.FromString(path.read_bytes())
    trainer, kinds = model.trainer_spec, {piece.type for piece in model.pieces}
    is_plain = trainer.model_type == _UNIGRAM and not trainer.byte_fallback and not trainer.treat_whitespace_as_suffix
    if not is_plain or not kinds <= {_NORMAL, _UNKNOWN, _CONTROL}:
        raise InputError(f"{path}: is not a unigram model without user-defined pieces and bytes, as lm reads")
    return model


def _build_tokenizer(model: Any, names: Sequence[str], start: str) -> Tokenizer:
    """Build a unigram tokenizer for source or target, with the shared IDs."""
    own = {piece.piece: piece.score for piece in model.pieces if piece.type == _NORMAL}
    known = {piece for piece in own if len(piece) == 1} | {" ", _SPACE}
    languages = {name for name in names if name.startswith(">>") and name.endswith("<<")}
    special = languages | ({"</s>", _UNKNOWN_NAME} & {*names}) | {start}
    foreign = [name for name in names if name not in special and name not in own]
    isolated = {name for name in foreign if known.isdisjoint(name)}
    spelled = {name: (_ALONE if name in isolated else _HIDDEN) + name for name in foreign}
    spelled |= {name: f"<2{name[2:-2]}>" if name in languages else name for name in special} | {start: _START}
    scores = {**dict.fromkeys(names, min(own.values())), **own}
    named = [(spelled.get(name, name), scores[name]) for name in names]
    backend = tokenizers.Tokenizer(models.Unigram(named, unk_id=names.index(_UNKNOWN_NAME)))
    backend.add_special_tokens([spelled[name] for name in names if name in special])
    backend.normalizer = normalizers.Sequence(_build_normalizers(model.normalizer_spec, known, isolated))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
        prepend_scheme="always" if model.normalizer_spec.add_dummy_prefix else "never"
    )
    marks = [decoders.Replace(mark, "") for mark in (_HIDDEN, _ALONE)]
    backend.decoder = decoders.Sequence([*marks, decoders.Metaspace()])
    return Tokenizer(backend)


def _build_normalizers(spec: Any, known: Collection[str], isolated: Collection[str]) -> list[normalizers.Normalizer]:
    """Return the normalisers; the last one marks foreign tokens among known characters.

    SentencePiece encodes a run of unknown characters as one piece; Marian takes this for a token if the other side has
    one with that spelling.
    """
    steps: list[normalizers.Normalizer] = []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    steps.append(normalizers.Replace(Regex(f"[{_HIDDEN}{_ALONE}]"), ""))
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if isolated:
        unknown, tokens = f"[^{re.escape(''.join(sorted(known)))}]", "|".join(map(re.escape, sorted(isolated)))
        marked = Regex(f"(?<!{unknown})(?={unknown})(?=(?:{tokens})(?!{unknown}))")
        steps.append(normalizers.Replace(marked, _ALONE))
    return steps

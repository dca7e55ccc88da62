"""The folder of a model as transformers lays it out, its tokenizer files, and the SentencePiece vocabularies of Marian.

config.json                      the model
model.safetensors                its weights, or model.safetensors.index.json, which names several files
tokenizer.json                   the tokenizer, with tokenizer_config.json
generation_config.json           sampling settings
README.md                        the model card
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor

from lm import files
from lm.checkpoint import load_tensors
from lm.config.model import ModelConfig
from lm.errors import InputError, missing_packages
from lm.tokenizer import FILE_NAME, Tokenizer, read_special_ids
from lm.tokenizer.chat_template import TEMPLATE_FILE, build_text_frame, read_json_object, spelling

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
GENERATION, TOKENIZER_CONFIG = "generation_config.json", "tokenizer_config.json"
INDEX = "model.safetensors.index.json"


def read_weights(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a folder, memory-mapped, from one file or those that an index names.

    Raises:
        InputError: there are none, or the index is invalid; pickles are not read.
    """
    names: set[Any] = {WEIGHTS}
    if not (folder / WEIGHTS).is_file() and (folder / INDEX).is_file():
        try:
            names = set(files.read_json(folder / INDEX)["weight_map"].values())
        except (TypeError, KeyError, AttributeError):
            raise InputError(f"{folder / INDEX}: does not say which tensors are in which file (weight_map)") from None
    for name in sorted(map(str, names)):
        if Path(name).name != name or not name.endswith(".safetensors") or not (folder / name).is_file():
            raise InputError(f"{folder}: has no {name}; weights are read from .safetensors files in the folder")
        yield from load_tensors(folder / name).items()


def write_tokenizer(folder: Path, tokenizer: Tokenizer, model: ModelConfig) -> None:
    """Write the tokenizer files into the folder of a model.

    A tokenizer of an encoder adds the special tokens, which our models add themselves, unless it has a post-processor
    of its own.
    """
    backend = tokenizers.Tokenizer.from_str(json.dumps(tokenizer.description))
    is_encoder = model.is_masked or model.is_encoder_decoder
    if is_encoder and (tokenizer.description["post_processor"] or {}).get("type") in {None, "ByteLevel"}:
        frame = build_text_frame(tokenizer)
        before, after = ([str(tokenizer.token(index)) for index in ids] for ids in (frame.before, frame.after))
        before = before if model.is_masked else []
        names = {name: tokenizer.token_id(name) for name in (*before, *after)}
        backend.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after],
            pair=[*before, "$A", *after, "$B:1", *(f"{name}:1" for name in after)],
            special_tokens=list(names.items()),
        )
    files.replace_text(folder / FILE_NAME, backend.to_str(pretty=True))
    ids = special_token_ids(tokenizer, model)
    if model.is_masked:
        ids |= {"cls_token_id": tokenizer.start_of_text, "sep_token_id": tokenizer.end_of_text}
        ids |= {"mask_token_id": tokenizer.mask, "unk_token_id": tokenizer.unknown}
    spelled = {
        name.removesuffix("_id"): tokenizer.token(index[0] if isinstance(index, list) else index)
        for name, index in ids.items()
        if index is not None and not name.startswith(("decoder", "forced"))
    }
    template = tokenizer.chat_template
    if template is not None:
        files.replace_text(folder / TEMPLATE_FILE, template.source)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", **spelled, "model_max_length": model.context_length,
        "padding_side": "right" if is_encoder else "left", "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        **(template.special_tokens if template else {}),  # which the template may write, and its end-of-turn token
    }  # fmt: skip
    files.write_json(folder / TOKENIZER_CONFIG, config)


def special_token_ids(tokenizer: Tokenizer, model: ModelConfig) -> dict[str, int | list[int] | None]:
    """Return the IDs of start, end and padding tokens."""
    if model.is_encoder_decoder:
        start, end = tokenizer.start_of_text, tokenizer.end_of_text
        return {
            "bos_token_id": None, "decoder_start_token_id": start, "pad_token_id": start, "eos_token_id": end,
            "forced_eos_token_id": None,
        }  # fmt: skip
    ends = tokenizer.ends[0] if len(tokenizer.ends) == 1 else list(tokenizer.ends) or None
    known = {"bos_token_id": tokenizer.start_of_text, "eos_token_id": ends, "pad_token_id": tokenizer.padding}
    return {name: index for name, index in known.items() if index is not None}


def read_tokenizer(folder: Path, model: ModelConfig, settings: Mapping[str, Any]) -> tuple[Tokenizer, Tokenizer | None]:
    """Read the tokenizer of a model, and that of its sources if separate.

    The decoder start token of a translation model starts a text; Marian starts with its padding token.

    Args:
        settings: the parsed config.json.

    Raises:
        InputError: it is missing, or a translation model starts or ends with none of its tokens.
    """
    path, source = folder / FILE_NAME, None
    if model.is_encoder_decoder and not path.is_file():
        source, tokenizer = read_tokenizers(folder, settings.get("decoder_start_token_id"))
    else:
        tokenizer = Tokenizer.load(path)
    if not model.is_encoder_decoder:
        return tokenizer.with_special_ids(_stated_ids(folder, tokenizer, settings, is_masked=model.is_masked)), None
    start, end = settings.get("decoder_start_token_id"), settings.get("eos_token_id")
    if source is None:
        tokenizer = tokenizer.with_special_ids(read_special_ids({"bos_token_id": start, "eos_token_id": end}))
    if (tokenizer.start_of_text, tokenizer.ends) != (start, (end,)):
        raise InputError(f"{folder / CONFIG}: no token {start!r} or {end!r} (decoder_start_token_id, eos_token_id)")
    return tokenizer, None if source is None or source.sha256 == tokenizer.sha256 else source


def _stated_ids(
    folder: Path, tokenizer: Tokenizer, settings: Mapping[str, Any], *, is_masked: bool
) -> dict[str, tuple[int, ...]]:
    """Return the special tokens that generation_config.json states, else config.json, else tokenizer_config.json.

    Of several ends the one that config.json states ends a document.
    """
    config, names = read_json_object(folder / TOKENIZER_CONFIG), {"bos": "cls", "eos": "sep"} if is_masked else {}
    spelled = {
        f"{role}_token_id": tokenizer.token_id(spelling(config.get(f"{names.get(role, role)}_token")))
        for role in ("bos", "eos", "pad", "mask")
    }
    generation, stated = read_special_ids(read_json_object(folder / GENERATION)), read_special_ids(settings)
    found = read_special_ids(spelled) | stated | generation
    ends = sorted(found.pop("eos_token_id", ()), key=lambda index: index not in stated.get("eos_token_id", ()))
    return {**found, "eos_token_id": tuple(ends)}


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

"""Tokenizer files of an exported or imported model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import processors

from lm import files
from lm.config.model import ModelConfig
from lm.errors import InputError
from lm.interop.hugging_face import sentencepiece
from lm.interop.hugging_face.folder import CONFIG, GENERATION, TOKENIZER_CONFIG, find_tokenizer_file
from lm.tokenizer.chat_template import TEMPLATE_FILE, read_json_object, spelling
from lm.tokenizer.special_tokens import SpecialTokenFrame, build_text_frame
from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer, read_special_ids

_NAMED = (
    "bos_token_id", "eos_token_id", "pad_token_id", "cls_token_id", "sep_token_id", "mask_token_id", "unk_token_id",
)  # fmt: skip
"""The special token IDs in a transformers config."""


def write_tokenizer(folder: Path, tokenizer: Tokenizer, model: ModelConfig) -> None:
    """Write the tokenizer files into the folder of a model."""
    config = _tokenizer_config(tokenizer, model)
    if (template := tokenizer.chat_template) is not None:
        config |= template.special_tokens  # which the template may write, and its end-of-turn token
        files.replace_text(folder / TEMPLATE_FILE, template.source)
    frame = build_text_frame(tokenizer)
    if model.is_masked:
        files.replace_text(folder / FILE_NAME, _with_post_processor(tokenizer, frame).to_str(pretty=True))
    elif model.is_encoder_decoder:
        files.replace_text(
            folder / FILE_NAME, _with_post_processor(tokenizer, SpecialTokenFrame((), frame.after)).to_str(pretty=True)
        )
    else:
        tokenizer.save(folder / FILE_NAME)
    files.write_json(folder / TOKENIZER_CONFIG, config)


def read_tokenizer(folder: Path, model: ModelConfig, settings: Mapping[str, Any]) -> tuple[Tokenizer, Tokenizer | None]:
    """Read the tokenizer of a model, and that of its sources if separate.

    The decoder start token of a translation model starts a text; Marian starts with its padding token.

    Args:
        settings: the parsed config.json.

    Raises:
        InputError: it is missing, or a translation model starts or ends with none of its tokens.
    """
    start, end = settings.get("decoder_start_token_id"), settings.get("eos_token_id")
    if not model.is_encoder_decoder:
        tokenizer = Tokenizer.load(find_tokenizer_file(folder))
        return tokenizer.with_special_ids(_stated_ids(folder, tokenizer, settings, is_masked=model.is_masked)), None
    if type(start) is not int:
        raise InputError(f"{folder / CONFIG}: decoder_start_token_id {start!r} is no token")
    if (folder / FILE_NAME).is_file() or not (folder / sentencepiece.SOURCE).is_file():
        path, source = find_tokenizer_file(folder), None
        ids = read_special_ids({"bos_token_id": start, "eos_token_id": end})
        target = Tokenizer.load(path).with_special_ids(ids)
    else:
        path = folder / sentencepiece.IDS
        source, target = sentencepiece.read_tokenizers(folder, start)
    if (target.start_of_text, target.ends) != (start, (end,)):
        raise InputError(f"{path}: has no token {start!r} or {end!r} (decoder_start_token_id, eos_token_id)")
    return target, None if source is None or source.sha256 == target.sha256 else source


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


def special_token_ids(tokenizer: Tokenizer, model: ModelConfig) -> dict[str, int | list[int] | None]:
    """Return the IDs of start, end and padding tokens."""
    if model.is_encoder_decoder:
        start, end = tokenizer.start_of_text, tokenizer.end_of_text
        return {
            "bos_token_id": None, "decoder_start_token_id": start, "pad_token_id": start, "eos_token_id": end,
            "forced_eos_token_id": None,
        }  # fmt: skip
    ends = tokenizer.ends[0] if len(tokenizer.ends) == 1 else list(tokenizer.ends) or None
    known = {
        "bos_token_id": tokenizer.start_of_text, "eos_token_id": ends, "pad_token_id": tokenizer.padding,
    }  # fmt: skip
    return {name: index for name, index in known.items() if index is not None}


def _tokenizer_config(tokenizer: Tokenizer, model: ModelConfig) -> dict[str, Any]:
    ids = special_token_ids(tokenizer, model)
    if model.is_masked:
        also = {
            "cls_token_id": tokenizer.start_of_text, "sep_token_id": tokenizer.end_of_text,
            "mask_token_id": tokenizer.mask, "unk_token_id": tokenizer.unknown,
        }  # fmt: skip
        ids |= {name: index for name, index in also.items() if index is not None}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{
            name.removesuffix("_id"): tokenizer.token(index[0] if isinstance(index, list) else index)
            for name, index in ids.items()
            if name in _NAMED and index is not None
        },
        "model_max_length": model.context_length,
        "padding_side": "right" if model.is_masked or model.is_encoder_decoder else "left",
        "clean_up_tokenization_spaces": False,
    }


def _with_post_processor(tokenizer: Tokenizer, frame: SpecialTokenFrame) -> tokenizers.Tokenizer:
    """Add a post-processor that adds the special tokens, as encoders expect.

    Our models add them themselves; a tokenizer that has its own post-processor keeps it.
    """
    framing = tokenizers.Tokenizer.from_str(json.dumps(tokenizer.description))
    if (tokenizer.description["post_processor"] or {}).get("type") not in {None, "ByteLevel"}:
        return framing
    before, after = ([str(tokenizer.token(index)) for index in ids] for ids in (frame.before, frame.after))
    names = {str(tokenizer.token(index)): index for index in (*frame.before, *frame.after)}
    framing.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, "$B:1", *(f"{name}:1" for name in after)],
        special_tokens=list(names.items()),
    )
    return framing

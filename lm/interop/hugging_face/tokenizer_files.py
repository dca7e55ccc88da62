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
from lm.interop.hugging_face.folder import CONFIG, GENERATION, TOKENIZER_CONFIG
from lm.tokenizer.chat_template import TEMPLATE_FILE, read_json_object, spelling
from lm.tokenizer.special_tokens import build_text_frame
from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer, read_special_ids


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
        source, tokenizer = sentencepiece.read_tokenizers(folder, settings.get("decoder_start_token_id"))
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

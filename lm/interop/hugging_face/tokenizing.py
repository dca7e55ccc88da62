"""The tokenizer of an exported run: its file, what transformers is to know of it, and the ids that models name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import processors

from lm import files
from lm.config.model import ModelConfig
from lm.interop.hugging_face.folder import TOKENIZER_CONFIG
from lm.tokenizer.framing import text_frame
from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer

_PADDING = ("[PAD]", "<pad>", "<|pad|>")


def write(folder: Path, tokenizer: Tokenizer, model: ModelConfig) -> None:
    """The files of a tokenizer, in the folder of its model."""
    files.write_json(folder / TOKENIZER_CONFIG, _settings(tokenizer, model))
    if model.is_masked:
        files.replace_text(folder / FILE_NAME, _framing(tokenizer).to_str(pretty=True))
    else:
        tokenizer.save(folder / FILE_NAME)


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """The tokens that start and end a text, and what rows are filled up with."""
    padding = next((tokenizer.special_tokens[name] for name in _PADDING if name in tokenizer.special_tokens), None)
    known = {
        "bos_token_id": tokenizer.start_of_text, "eos_token_id": tokenizer.end_of_text,
        "pad_token_id": tokenizer.end_of_text if padding is None else padding,
    }  # fmt: skip
    return {name: index for name, index in known.items() if index is not None}


def _settings(tokenizer: Tokenizer, model: ModelConfig) -> dict[str, Any]:
    ids = special_ids(tokenizer)
    if model.is_masked:
        also = {
            "cls_token_id": tokenizer.start_of_text, "sep_token_id": tokenizer.end_of_text,
            "mask_token_id": tokenizer.mask, "unk_token_id": tokenizer.special_tokens.get("[UNK]"),
        }  # fmt: skip
        ids |= {name: index for name, index in also.items() if index is not None}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{name.removesuffix("_id"): tokenizer.token(index) for name, index in ids.items()},
        "model_max_length": model.context_length,
        "padding_side": "right" if model.is_masked else "left",
        "clean_up_tokenization_spaces": False,
    }


def _framing(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """A tokenizer that puts a text between the tokens that start and end it, as masked models read it.

    Ours do that themselves, and their files say nothing of it; one that came with a frame of its own keeps it.
    """
    framing = tokenizers.Tokenizer.from_str(json.dumps(tokenizer.description))
    if (tokenizer.description["post_processor"] or {}).get("type") not in {None, "ByteLevel"}:
        return framing
    frame = text_frame(tokenizer)
    before, after = ([str(tokenizer.token(index)) for index in ids] for ids in (frame.before, frame.after))
    names = {str(tokenizer.token(index)): index for index in (*frame.before, *frame.after)}
    framing.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, "$B:1", *(f"{name}:1" for name in after)],
        special_tokens=list(names.items()),
    )
    return framing

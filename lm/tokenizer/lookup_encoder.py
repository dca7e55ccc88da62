"""Encode by table lookup: tokenizers whose tokens are single characters or bytes need no search."""

from __future__ import annotations

import unicodedata
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lm.errors import InputError
from lm.tokenizer.byte_tokens import decode_byte_level

ANY_CHARACTER = r"[\s\S]"
"""The pattern that a character tokenizer splits by: each character, line ends included, is a token."""

_CODE_POINTS = 0x110000
_MISSING = np.uint32(0xFFFFFFFF)


class LookupEncoder:
    """Encodes by a table of the token IDs of code points or bytes.

    The IDs equal those of the `tokenizers` library for the same `tokenizer.json`, some hundred times faster.
    """

    def __init__(self, ids: npt.NDArray[np.uint32], unit: Literal["character", "byte"]) -> None:
        self._ids = ids
        self.unit = unit

    @classmethod
    def from_json(cls, description: dict[str, Any]) -> LookupEncoder | None:
        """Build the encoder of a parsed `tokenizer.json`; None if encoding takes more than a table."""
        non_special = [token for token in description["added_tokens"] if not token["special"]]
        if description["normalizer"] or non_special or not description["pre_tokenizer"]:
            return None
        model, splitter = description["model"], description["pre_tokenizer"]
        if model["type"] == "WordLevel" and splitter == _as_character_splitter(splitter):
            return cls._of_characters(model)
        is_byte_level = (
            splitter["type"] == "ByteLevel" and not splitter["add_prefix_space"] and not splitter["use_regex"]
        )
        if model["type"] == "BPE" and not model["merges"] and is_byte_level:
            return cls._of_bytes(model)
        return None

    @classmethod
    def _of_characters(cls, model: dict[str, Any]) -> LookupEncoder:
        ids = np.full(_CODE_POINTS, model["vocab"].get(model["unk_token"], _MISSING), dtype=np.uint32)
        for token, index in model["vocab"].items():
            if len(token) == 1:
                ids[ord(token)] = index
        return cls(ids, "character")

    @classmethod
    def _of_bytes(cls, model: dict[str, Any]) -> LookupEncoder | None:
        ids = np.full(256, _MISSING, dtype=np.uint32)
        for token, index in model["vocab"].items():
            spelled = decode_byte_level(token)
            if len(token) == len(spelled) == 1:
                ids[spelled[0]] = index
        return None if (ids == _MISSING).any() else cls(ids, "byte")

    def encode(self, text: str) -> npt.NDArray[np.uint32]:
        """Encode a text.

        Raises:
            InputError: a character has no token; the message names the first such character.
        """
        if self.unit == "byte":
            return self._ids[np.frombuffer(text.encode(), dtype=np.uint8)]
        ids = self._ids[np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)]
        missing = ids == _MISSING
        if missing.any():
            raise InputError(_format_unknown_character(text[int(missing.argmax())]), settings=["unknown"])
        return ids


def _format_unknown_character(character: str) -> str:
    name = unicodedata.name(character, "")
    return (
        f"character {character!r} (U+{ord(character):04X}{' ' + name if name else ''}) is not in the tokenizer's "
        "vocabulary; train it on text that has the character, or give it an unknown token"
    )


def merges_within_characters(description: dict[str, Any]) -> bool:
    """Return whether a parsed `tokenizer.json` splits text into characters before merging."""
    splitter = description["pre_tokenizer"] or {}
    first: dict[str, Any] = next(iter(splitter.get("pretokenizers", ())), {})
    return bool(first) and first == _as_character_splitter(first)


def _as_character_splitter(splitter: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON of `Split(Regex(ANY_CHARACTER), "isolated")`; `invert` makes no difference here."""
    return {**splitter, "type": "Split", "pattern": {"Regex": ANY_CHARACTER}, "behavior": "Isolated"}

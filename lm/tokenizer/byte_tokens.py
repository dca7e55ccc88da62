"""Tokens that spell bytes: byte-level characters (GPT-2), byte-fallback tokens (`<0x0A>`), and tables of both units."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

ANY_CHARACTER = r"[\s\S]"
"""The pattern that a character tokenizer splits by: each character, line ends included, is a token."""

_BYTE_FALLBACK = re.compile("<0x[0-9A-Fa-f]{2}>")

MISSING = np.uint32(0xFFFFFFFF)
"""In a lookup table: this character has no token."""


def is_byte_level(description: dict[str, Any]) -> bool:
    """Return whether a parsed `tokenizer.json` represents bytes as characters, as GPT-2's does."""
    decoder = description["decoder"] or {}
    if decoder.get("type") == "Sequence" and len(decoder["decoders"]) == 1:
        decoder = decoder["decoders"][0]
    return decoder.get("type") == "ByteLevel"


def decode_byte_level(token: str) -> bytes:
    """Return the bytes of a byte-level token; a token with other characters stands for itself."""
    try:
        return bytes(map(byte_alphabet().__getitem__, token))
    except KeyError:
        return token.encode()


def decode_byte_fallback(token: str) -> bytes | None:
    """Return the byte of a byte-fallback token such as `<0x0A>`; None for any other token."""
    return bytes.fromhex(token[3:5]) if _BYTE_FALLBACK.fullmatch(token) else None


@cache
def byte_alphabet() -> dict[str, int]:
    """Return the byte of each character of a byte-level vocabulary.

    Printable Latin-1 characters stand for themselves, other bytes for characters from U+0100 on.

    Source: Radford et al. 2019, `bytes_to_unicode` of GPT-2's encoder.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def splits_characters(splitter: dict[str, Any] | None) -> bool:
    """Return whether a pre-tokenizer makes each character a word."""
    expected = {"type": "Split", "pattern": {"Regex": ANY_CHARACTER}, "behavior": "Isolated"}
    return expected.items() <= (splitter or {}).items()


def build_lookup_table(description: dict[str, Any]) -> tuple[str, npt.NDArray[np.uint32]] | None:
    """Return "char" or "byte", and the token ID of each code point or byte; None if encoding takes more than a table.

    The IDs equal those of the `tokenizers` library for the same `tokenizer.json`, some hundred times faster.
    """
    model, splitter = description["model"], description["pre_tokenizer"] or {}
    if description["normalizer"] or not all(token["special"] for token in description["added_tokens"]):
        return None
    if model["type"] == "WordLevel" and splits_characters(splitter):
        table = np.full(0x110000, model["vocab"].get(model["unk_token"], MISSING), dtype=np.uint32)
        for token, index in model["vocab"].items():
            if len(token) == 1:
                table[ord(token)] = index
        return "char", table
    bytes_alone = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    if model["type"] == "BPE" and not model["merges"] and bytes_alone.items() <= splitter.items():
        ids = {byte: model["vocab"].get(character) for character, byte in byte_alphabet().items()}
        if None not in ids.values():
            return "byte", np.array([ids[byte] for byte in range(256)], dtype=np.uint32)
    return None

"""Byte-level characters (GPT-2) and byte-fallback tokens (`<0x0A>`)."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def is_byte_level(description: dict[str, Any]) -> bool:
    """Return whether a parsed `tokenizer.json` represents bytes as characters, as GPT-2's does."""
    decoder = description["decoder"] or {}
    if decoder.get("type") == "Sequence" and len(decoder["decoders"]) == 1:
        decoder = decoder["decoders"][0]
    return decoder.get("type") == "ByteLevel"


def decode_byte_level(token: str) -> bytes:
    """Return the bytes of a byte-level token; a token with other characters stands for itself."""
    alphabet = byte_alphabet()
    try:
        return bytes(alphabet[character] for character in token)
    except KeyError:
        return token.encode()


def decode_byte_fallback(token: str) -> bytes | None:
    """Return the byte of a byte-fallback token such as `<0x0A>`; None for any other token."""
    match = _BYTE_FALLBACK.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else None


@cache
def byte_alphabet() -> dict[str, int]:
    """Return the byte of each character of a byte-level vocabulary.

    Printable Latin-1 characters stand for themselves, other bytes for characters from U+0100 on.

    Source: Radford et al. 2019, `bytes_to_unicode` of GPT-2's encoder.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}

"""Byte offsets of tokens in their text, including tokens that are parts of characters or stand for other characters."""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lm.text.documents import TextPiece
from lm.tokenizer.tokenizer import Tokenizer

Ids = npt.NDArray[np.integer[Any]]
ByteOffsets = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RoundTripLoss:
    """What is lost when a text is encoded and decoded.

    Attributes:
        unknown: tokens for text that the vocabulary cannot represent.
        bytes: bytes of the text that decoding does not restore: of unknown characters, and of letters whose case,
            accents or form normalisation changes.
    """

    unknown: int = 0
    bytes: int = 0


def _count_differing_bytes(text: bytes, spelled: bytes) -> int:
    """Count bytes of a text that its decoding lacks; an implied leading space does not count."""
    if len(text) != len(spelled):
        spelled = spelled.removeprefix(b" ")
    if len(text) == len(spelled):
        return sum(byte != spelled_byte for byte, spelled_byte in zip(text, spelled, strict=True))
    backwards = zip(reversed(text), reversed(spelled), strict=False)
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], backwards))
    return len(text) - same


class TokenOffsets:
    """Finds where tokens end in their text; caches the bytes of each token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._spelled: dict[int, bytes] = {}

    def ends(self, piece: TextPiece, tokens: Ids) -> ByteOffsets:
        """Return the byte offset at which each token of a piece ends.

        Tokens that spell the text byte for byte end where their bytes do. Otherwise (unknown characters, normalised
        text, implied spaces) they end at the tokenizer's character offsets: text between two tokens belongs to the
        second, and of several tokens for one character the first has all of it.

        Args:
            piece: a text that can be tokenized alone.

        Returns:
            (tokens,) non-decreasing offsets; the last is the size of the text.
        """
        data = piece.text.encode()
        parts = [self._bytes(index) for index in tokens.tolist()]
        if not parts or b"".join(parts) == data:
            return np.cumsum([len(part) for part in parts], dtype=np.int64)
        characters = self._tokenizer.character_ends(piece.context + piece.text)[piece.context_tokens :]
        points = np.frombuffer(piece.text.encode("utf-32-le"), dtype=np.uint32)
        widths = 1 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000)
        offsets = np.concatenate(([0], np.cumsum(widths, dtype=np.int64)))
        ends = offsets[np.maximum.accumulate(np.clip(np.array(characters) - len(piece.context), 0, len(piece.text)))]
        ends[-1] = len(data)
        return ends

    def round_trip_loss(self, piece: TextPiece, tokens: Ids) -> RoundTripLoss:
        """Count what encoding and decoding loses of a piece.

        Args:
            piece: a text that can be tokenized alone.
        """
        data = piece.text.encode()
        parts = [self._bytes(index) for index in tokens.tolist()]
        if b"".join(parts) == data:
            return RoundTripLoss()
        whole = piece.context + piece.text
        decoded = self._tokenizer.decode(self._tokenizer.encode_batch([whole])[0])
        if decoded.removeprefix(" ") == whole.removeprefix(" "):  # many tokenizers put a space before a text
            return RoundTripLoss()
        if not parts:
            return RoundTripLoss(0, len(data))
        unknowns = lost = start = 0
        spelled: list[bytes] = []
        ends = self.ends(piece, tokens).tolist()
        for number, (index, part, end) in enumerate(zip(tokens.tolist(), parts, ends, strict=True)):
            spelled.append(part)
            if number + 1 < len(ends) and ends[number + 1] == end:  # another token of the same characters
                continue
            text = data[start:end]
            is_unknown = index == self._tokenizer.unknown and text.strip() != part.strip()
            unknowns += is_unknown
            lost += len(text.strip() or text) if is_unknown else _count_differing_bytes(text, b"".join(spelled))
            spelled, start = [], end
        return RoundTripLoss(unknowns, lost)

    def _bytes(self, index: int) -> bytes:
        if index not in self._spelled:
            self._spelled[index] = self._tokenizer.token_bytes(index)
        return self._spelled[index]


def assign_word_indices(text: str, ends: Iterable[int]) -> list[int]:
    """Return the index of the whitespace-separated word of each token, given the byte offsets where tokens end.

    White space belongs to the next word, at the end of a text to the last one. A token that spans several words belongs
    to the first.
    """
    word_ends = [len(text[: match.end()].encode()) for match in re.finditer(r"\S+", text)]
    words, start = [], 0
    for end in ends:
        words.append(min(bisect_right(word_ends, start), max(0, len(word_ends) - 1)))
        start = end
    return words

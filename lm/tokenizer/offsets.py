"""The byte offsets of tokens in their text, also where tokens are parts of characters or stand for other characters."""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lm.tokenizer.tokenizer import TextPiece, Tokenizer

Ids = npt.NDArray[np.integer[Any]]
ByteOffsets = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RoundTripLoss:
    """What a tokenizer loses of a text: what decoding its tokens does not give back.

    Attributes:
        unknown: tokens that stand for any text that the vocabulary cannot spell.
        bytes: of the text that don't come back when its tokens are decoded: of unknown characters, and of letters whose
            case, accents or form a tokenizer changes.
    """

    unknown: int = 0
    bytes: int = 0


def _count_differing_bytes(text: bytes, spelled: bytes) -> int:
    """The bytes of a text that a spelling of it does not have; a space that is implied before a text is none."""
    if len(text) != len(spelled):
        spelled = spelled.removeprefix(b" ")
    if len(text) == len(spelled):
        return sum(one != other for one, other in zip(text, spelled, strict=True))
    backwards = zip(reversed(text), reversed(spelled), strict=False)
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], backwards))
    return len(text) - same


class TokenOffsets:
    """Finds where tokens end in their text; what each token stands for is looked up once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Find the offsets of tokens that `tokenizer` made."""
        self._tokenizer = tokenizer
        self._spelled: dict[int, bytes] = {}

    def ends(self, piece: TextPiece, tokens: Ids) -> ByteOffsets:
        """The byte offset in a piece's text at which each of its tokens ends.

        Tokens that spell the text byte for byte end where their bytes do. Otherwise (unknown characters, normalised
        text, spaces that are implied) they end where the tokenizer says, in whole characters: text between two tokens
        counts as the second one's, and of several tokens for the same character the first has all of it.

        Args:
            piece: a text that can be tokenized alone.
            tokens: (tokens,) its ids.

        Returns:
            (tokens,) offsets that never fall; the last is the size of the text.
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

    def loss(self, piece: TextPiece, tokens: Ids) -> RoundTripLoss:
        """Count what the tokenizer loses of the text of a piece.

        Args:
            piece: a text that can be tokenized alone.
            tokens: (tokens,) its ids.
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
        for place, (index, part, end) in enumerate(zip(tokens.tolist(), parts, ends, strict=True)):
            spelled.append(part)
            if place + 1 < len(ends) and ends[place + 1] == end:  # another token of the same characters
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
    """The whitespace-separated word that each token is in, by the bytes where tokens end.

    White space belongs to the word after it, and at the end of a text to the last one. A token that reaches into
    several words is in the first of them.
    """
    word_ends = [len(text[: match.end()].encode()) for match in re.finditer(r"\S+", text)]
    words, start = [], 0
    for end in ends:
        words.append(min(bisect_right(word_ends, start), max(0, len(word_ends) - 1)))
        start = end
    return words

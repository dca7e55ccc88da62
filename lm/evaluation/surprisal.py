"""Surprisal of text: by token, or by spans that never split a character."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from lm.evaluation.file_scoring import ScoredSegment
from lm.text.text_file import TextFile

_JOINER = "\u200d"


@dataclass(frozen=True)
class TokenScore:
    """A scored token.

    Attributes:
        document: document index in the file.
        index: token index in the document.
        offset: byte offset of its text in the document.
        bytes: length of its text; 0 if an earlier token has all of their character.
        text: its text, with replacement characters for partial characters.
        nats: its surprisal; None for an unscored first token.
    """

    file: str
    document: int
    index: int
    offset: int
    bytes: int
    token: int
    text: str
    nats: float | None


@dataclass(frozen=True)
class TextSpan:
    """Text of one or more tokens that splits no grapheme.

    Attributes:
        document: document index in the file.
        text: never empty.
        nats: sum of their surprisals; NaN if one is not scored.
    """

    file: int
    document: int
    text: str
    tokens: int
    nats: float

    def __add__(self, following: TextSpan) -> TextSpan:
        """Merge two neighbouring spans."""
        tokens, nats = self.tokens + following.tokens, self.nats + following.nats
        return TextSpan(self.file, self.document, self.text + following.text, tokens, nats)


def iterate_token_scores(segments: Iterable[ScoredSegment], files: Sequence[TextFile]) -> Iterator[TokenScore]:
    """Yield each token with its surprisal, in reading order."""
    for segment in segments:
        piece, start = segment.piece, segment.start
        first = piece.first + segment.first
        columns = zip(segment.tokens.tolist(), segment.ends.tolist(), segment.nats.tolist(), strict=True)
        for index, (token, end, nats) in enumerate(columns, first):
            yield TokenScore(
                file=files[piece.file].name,
                document=piece.document,
                index=index,
                offset=piece.offset + start,
                bytes=end - start,
                token=token,
                text=piece.data[start:end].decode(errors="replace"),
                nats=None if math.isnan(nats) else nats,
            )
            start = end


def merge_into_spans(segments: Iterable[ScoredSegment]) -> Iterator[TextSpan]:
    """Merge tokens, adding their surprisals, until no grapheme is split.

    A grapheme includes combining marks, the parts of an emoji or flag, the letters of a Hangul syllable, and CRLF.
    """
    pending: TextSpan | None = None
    for span in _split_at_characters(segments):
        if (
            pending
            and (pending.file, pending.document) == (span.file, span.document)
            and _must_merge(pending.text, span.text)
        ):
            pending += span
            continue
        if pending:
            yield pending
        pending = span
    if pending:
        yield pending


def _must_merge(before: str, after: str) -> bool:
    return not (before and after) or is_within_grapheme(before, after)


def _split_at_characters(segments: Iterable[ScoredSegment]) -> Iterator[TextSpan]:
    """Yield the shortest token runs that are valid UTF-8; some are empty if tokens share a character."""
    data, tokens, total = b"", 0, 0.0
    for segment in segments:
        piece, start = segment.piece, segment.start
        if not len(piece.tokens):
            yield TextSpan(piece.file, piece.document, piece.record.text, 0, 0.0)
        for end, nats in zip(segment.ends.tolist(), segment.nats.tolist(), strict=True):
            data, tokens, total, start = data + piece.data[start:end], tokens + 1, total + nats, end
            if _ends_character(piece.data, end):
                yield TextSpan(piece.file, piece.document, data.decode(), tokens, total)
                data, tokens, total = b"", 0, 0.0


def _ends_character(data: bytes, end: int) -> bool:
    """Return whether no continuation byte follows `end`."""
    return end == len(data) or data[end] & 0xC0 != 0x80


def is_within_grapheme(before: str, after: str) -> bool:
    """Return whether the boundary between two texts is inside a grapheme.

    Source: Unicode Standard Annex 29, extended grapheme clusters, without the rules for Indic conjuncts.
    """
    last, first = before[-1], after[0]
    if first in (_JOINER, "\u200c") or last == _JOINER or last + first == "\r\n":
        return True
    if _is_regional(first):
        flags = len(before) - len(before.rstrip("".join(map(chr, range(0x1F1E6, 0x1F200)))))
        return flags % 2 == 1
    return unicodedata.category(first) in ("Mn", "Mc", "Me") or _is_modifier(first) or _continues_syllable(first)


def _is_regional(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _is_modifier(character: str) -> bool:
    """Return whether it is a skin tone, or a tag letter of a regional flag."""
    return "\U0001f3fb" <= character <= "\U0001f3ff" or "\U000e0020" <= character <= "\U000e007f"


def _continues_syllable(character: str) -> bool:
    """Return whether it is a vowel or final consonant of conjoining Hangul."""
    return "\u1160" <= character <= "\u11ff" or "\ud7b0" <= character <= "\ud7fb"

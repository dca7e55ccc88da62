"""Surprisal of text by token, by words, or by the shortest spans that split no character."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lm.evaluation.scoring import Scored

_JOINERS = "\u200c\u200d"


@dataclass(frozen=True)
class TextSpan:
    """Text of one or more tokens.

    Attributes:
        document: document index in the file.
        offset: byte offset of its text in the document.
        text: never empty.
        nats: sum of their surprisals; NaN if one is not scored.
    """

    file: int
    document: int
    offset: int
    text: str
    tokens: int
    nats: float

    def __add__(self, following: TextSpan) -> TextSpan:
        """Merge two neighbouring spans."""
        text, tokens = self.text + following.text, self.tokens + following.tokens
        return replace(self, text=text, tokens=tokens, nats=self.nats + following.nats)

    def continues(self, previous: TextSpan) -> bool:
        """Return whether it belongs to the same document as a previous span."""
        return (self.file, self.document) == (previous.file, previous.document)

    @property
    def bits(self) -> float:
        return self.nats / math.log(2)


def iterate_tokens(scored: Iterable[Scored], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield each token in reading order: its place and surprisal.

    `offset` and `bytes` are its text's in the document; `bytes` is 0 if an earlier token has all of their character,
    and `text` has replacement characters for parts of one. `nats` is None for an unscored token.
    """
    for some in scored:
        piece, start = some.piece, some.start
        first = piece.first + some.first
        columns = zip(some.tokens.tolist(), some.ends.tolist(), some.nats.tolist(), strict=True)
        for index, (token, end, nats) in enumerate(columns, first):
            yield {
                "file": names[piece.file],
                "document": piece.document,
                "index": index,
                "offset": piece.offset + start,
                "bytes": end - start,
                "token": token,
                "text": piece.data[start:end].decode(errors="replace"),
                "nats": None if math.isnan(nats) else nats,
            }
            start = end


def iterate_words(scored: Iterable[Scored], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield each whitespace-separated word in reading order: its place and surprisal.

    The surprisal of a word is that of its tokens. White space belongs to the next word, at the end of a document to the
    last one. A token that spans words makes them one. `bits` is None if one of the tokens is unscored.
    """
    index, document = 0, (-1, -1)
    for word in _merge_into_words(merge_into_spans(scored)):
        index = index + 1 if (word.file, word.document) == document else 0
        document = word.file, word.document
        text = word.text.strip()
        yield {
            "file": names[word.file],
            "document": word.document,
            "index": index,
            "offset": word.offset + len(word.text[: word.text.find(text)].encode()),
            "bytes": len(text.encode()),
            "tokens": word.tokens,
            "text": text,
            "bits": None if math.isnan(word.nats) else word.bits,
        }


def _merge_into_words(spans: Iterable[TextSpan]) -> Iterator[TextSpan]:
    word: TextSpan | None = None
    space: TextSpan | None = None  # after the word, or the word's last token has it
    for span in spans:
        if word is None or not span.continues(word):
            if word:
                yield word + space if space else word
            word, space = span, None
        elif space is None and (word.text.isspace() or not (word.text[-1].isspace() or span.text[0].isspace())):
            word += span
        else:
            space = space + span if space else span
            if not space.text.isspace():
                yield word
                word, space = space, None
    if word:
        yield word + space if space else word


def merge_into_spans(scored: Iterable[Scored]) -> Iterator[TextSpan]:
    """Merge tokens, adding their surprisals, until no grapheme is split.

    A grapheme includes combining marks, the parts of an emoji or flag, the letters of a Hangul syllable, and CRLF.
    """
    pending: TextSpan | None = None
    for span in _split_at_characters(scored):
        if pending and span.continues(pending) and _must_merge(pending.text, span.text):
            pending += span
            continue
        if pending:
            yield pending
        pending = span
    if pending:
        yield pending


def _must_merge(before: str, after: str) -> bool:
    return not (before and after) or is_within_grapheme(before, after)


def _split_at_characters(scored: Iterable[Scored]) -> Iterator[TextSpan]:
    """Yield the shortest token runs that are valid UTF-8; some are empty if tokens share a character."""
    data, tokens, total = b"", 0, 0.0
    for some in scored:
        piece, start = some.piece, some.start
        if piece.text and not len(piece.tokens):
            yield TextSpan(piece.file, piece.document, piece.offset, piece.text, 0, 0.0)
        for end, nats in zip(some.ends.tolist(), some.nats.tolist(), strict=True):
            data, tokens, total, start = data + piece.data[start:end], tokens + 1, total + nats, end
            if end == len(piece.data) or piece.data[end] & 0xC0 != 0x80:  # no continuation byte follows
                yield TextSpan(piece.file, piece.document, piece.offset + end - len(data), data.decode(), tokens, total)
                data, tokens, total = b"", 0, 0.0


def is_within_grapheme(before: str, after: str) -> bool:
    """Return whether the boundary between two texts is inside a grapheme.

    Source: Unicode Standard Annex 29, extended grapheme clusters, without the rules for Indic conjuncts.
    """
    last, first = before[-1], after[0]
    if first in _JOINERS or last == _JOINERS[1] or last + first == "\r\n":
        return True
    if "\U0001f1e6" <= first <= "\U0001f1ff":  # a flag is two regional indicators
        return (len(before) - len(before.rstrip("".join(map(chr, range(0x1F1E6, 0x1F200)))))) % 2 == 1
    is_modifier = "\U0001f3fb" <= first <= "\U0001f3ff" or "\U000e0020" <= first <= "\U000e007f"  # skin tones, tags
    is_jamo = "\u1160" <= first <= "\u11ff" or "\ud7b0" <= first <= "\ud7fb"  # vowels and finals of a syllable
    return is_modifier or is_jamo or unicodedata.category(first) in ("Mn", "Mc", "Me")

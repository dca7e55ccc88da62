"""Cutting long documents into pieces that are tokenized alone, without changing a single token.

A cut is made between the end of a word and white space, where the usual tokenizers (GPT-2's, cl100k's, Llama's) start
anew in any case, and is checked with the tokenizer at hand: the text around it gives the same tokens whole and in two
parts. Tokenizers that mark the beginning of a text (Llama 2's) get a few characters of context before the piece; the
tokens of the context are dropped again.

What can be cut nowhere, such as megabytes of spaces, is cut all the same once it is `MOST_CHARACTERS` long: a tokenizer
needs over a hundred bytes for each character of a word. There, and only there, tokens can be others than those of the
whole text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lm.errors import InputError
from lm.text.documents import Fragment
from lm.tokenizer.tokenizer import Tokenizer

PIECE_CHARACTERS = 1 << 16
MOST_CHARACTERS = 1 << 17

_WORD_END = re.compile(r"[^\W_](?=[ \n])")
_UP_TO_TEXT = re.compile(r"\s*\S")
_WINDOW = 64  # characters on each side of a cut between words that are tokenized to check it
_FAR = 1024  # and after a cut elsewhere
_LONGEST_SPACE = 4096  # characters of white space after a cut, which are searched through
_CONTEXT = 8
_TRIES = 16


@dataclass(frozen=True)
class Piece:
    """Part of a document that can be tokenized alone.

    Attributes:
        text: never empty.
        starts_document: whether it is the first of its document.
        context: text before it, to be tokenized with it.
        context_tokens: how many of the first tokens are the context's, to be dropped.
    """

    text: str
    starts_document: bool
    context: str = ""
    context_tokens: int = 0


@dataclass(frozen=True)
class _Cut:
    position: int
    context: str = ""
    context_tokens: int = 0


def pieces(
    fragments: Iterable[Fragment], tokenizer: Tokenizer | None, *, limit: int = PIECE_CHARACTERS
) -> Iterator[Piece]:
    """Cut documents into pieces of about `limit` characters.

    Args:
        fragments: documents, cut anywhere.
        tokenizer: whose tokens the cuts must not change; None to cut between words (for training a tokenizer).
        limit: the characters after which to cut. Every piece but a document's last has at least half as many. Text that
            cannot be cut within the limit, such as one endless word, is cut as soon as it can be, or after
            `MOST_CHARACTERS`.
    """
    text, starts, cut, reach = "", True, _Cut(0), limit
    for fragment in fragments:
        if fragment.starts_document:
            if text:
                yield Piece(text, starts, cut.context, cut.context_tokens)
            text, starts, cut, reach = "", True, _Cut(0), limit
        text += fragment.text
        while len(text) >= reach + _FAR:
            try:
                following = _find_cut(text, cut.context, reach, tokenizer)
            except InputError:  # the caller cannot tokenize it either, and knows which file it is
                following = _Cut(reach)
            if following is None and 2 * reach > MOST_CHARACTERS:
                following = _Cut(reach)
            if following is None:
                reach *= 2
                continue
            yield Piece(text[: following.position], starts, cut.context, cut.context_tokens)
            text, starts, cut, reach = text[following.position :], False, following, limit
    if text:
        yield Piece(text, starts, cut.context, cut.context_tokens)


def _find_cut(text: str, context: str, limit: int, tokenizer: Tokenizer | None) -> _Cut | None:
    """A place in the second half of `text[:limit]` where a cut changes nothing, as late as possible."""
    ends = [match.end() for match in _WORD_END.finditer(text, limit // 2, limit)]
    if tokenizer is None:
        return _Cut(ends[-1] if ends else limit)
    for position in reversed(ends[-_TRIES:]):
        near = text[max(0, position - _WINDOW) : position]
        if cut := _checked(near, text, position, _WINDOW, tokenizer):
            return cut
    # Without words (Chinese, code, noise) any place may do, but what starts a token there may lie far back.
    for position in range(limit, limit - _TRIES, -1):
        near = text[max(0, position - _WINDOW) : position]
        if _checked(near, text, position, _WINDOW, tokenizer) and (
            cut := _checked(context + text[:position], text, position, _FAR, tokenizer)
        ):
            return cut
    return None


def _checked(left: str, text: str, position: int, reach: int, tokenizer: Tokenizer) -> _Cut | None:
    """The cut at `position`, if `left` and the text that follows have the same tokens together as apart."""
    up_to_text = _UP_TO_TEXT.match(text, position, position + _LONGEST_SPACE)
    if not up_to_text or position <= 0:
        return None
    right = text[position : up_to_text.end() + reach]
    whole, left_tokens = tokenizer.encode(left + right), tokenizer.encode(left)
    for before in ("", left[-_CONTEXT:]):
        count = len(tokenizer.encode(before)) if before else 0
        if whole == left_tokens + tokenizer.encode(before + right)[count:]:
            return _Cut(position, before, count)
    return None

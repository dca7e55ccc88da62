"""Normalise text before tokenisation: LF line ends, no byte order mark, optionally no Project Gutenberg boilerplate.

In old Mac files, CR alone ends a line. In all others CRLF becomes LF, and any other CR is kept as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from lm.config.data import DataConfig

BYTE_ORDER_MARK = "\ufeff"

_START = re.compile(r"^\*\*\* ?START OF TH(?:E|IS) PROJECT GUTENBERG EBOOK.{0,500}?\*\*\*[^\S\n]*\n", re.M | re.S)
_END = re.compile(r"^\*\*\* ?END OF TH(?:E|IS) PROJECT GUTENBERG EBOOK", re.M)
_MAX_HEADER = 1 << 16
_MAX_MARKER = 1 << 10


def normalize_line_ends(text: str) -> str:
    """Replace CRLF, or CR if there is no LF, by LF in a whole text."""
    if "\r" not in text:
        return text
    return text.replace("\r\n", "\n") if "\n" in text else text.replace("\r", "\n")


def normalize_like_training(text: str, data: DataConfig) -> str:
    """Normalise a text, such as a prompt, as the training data of a run were."""
    return text if data.keep_line_ends else normalize_line_ends(text.removeprefix(BYTE_ORDER_MARK))


def uses_carriage_returns(blocks: Iterable[str]) -> bool:
    """Return whether lines end with CR alone; reads up to the first LF."""
    has_returns = False
    for block in blocks:
        if "\n" in block:
            return False
        has_returns = has_returns or "\r" in block
    return has_returns


def is_gutenberg(beginning: str) -> bool:
    """Return whether a file starts with a Project Gutenberg header; `beginning` has LF line ends."""
    return _START.search(beginning[:_MAX_HEADER]) is not None


class LineEndNormalizer:
    """Normalises line ends block by block."""

    def __init__(self, *, returns: bool) -> None:
        """Begin a text; `returns` says whether CR alone ends lines."""
        self._returns, self._pending, self._is_first = returns, "", True

    def feed(self, text: str, *, is_last: bool) -> str:
        """Return the normalised text that is complete with this block."""
        if self._is_first and text:
            self._is_first, text = False, text.removeprefix(BYTE_ORDER_MARK)
        text, self._pending = self._pending + text, ""
        if "\r" not in text:
            return text
        if self._returns:
            return text.replace("\r", "\n")
        if text.endswith("\r") and not is_last:
            text, self._pending = text[:-1], "\r"
        return text.replace("\r\n", "\n")


class GutenbergStripper:
    """Removes Project Gutenberg headers and licences block by block, of one book or several."""

    def __init__(self) -> None:
        self._pending, self._is_inside = "", False

    def feed(self, text: str, *, is_last: bool) -> str:
        """Return the book text that is complete with this block; its line ends are LF."""
        self._pending += text
        kept = []
        while marker := (_END if self._is_inside else _START).search(self._pending):
            if self._is_inside:
                kept.append(self._pending[: marker.start()])
            self._pending, self._is_inside = self._pending[marker.end() :], not self._is_inside
        certain = len(self._pending) if is_last else max(0, len(self._pending) - _MAX_MARKER)
        if self._is_inside:
            kept.append(self._pending[:certain])
        self._pending = self._pending[certain:]
        return "".join(kept)

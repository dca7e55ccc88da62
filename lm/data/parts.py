"""Parts of a corpus: each is tokenized by itself, by any process on any machine, and together they are the corpus.

Parts follow from the files alone, never from how many processes work on them, so that the tokens don't either.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from lm.data.corpus import Corpus
from lm.text.documents import Survey
from lm.text.files import Span, TextFile
from lm.text.grouping import grouped
from lm.text.spans import spans

PART_BYTES = 1 << 23
"""The least size of a part, but the last: seconds of work, which is what an interruption can cost."""

_MOST_PARTS = 4096
_ALL_HASHES = 1 << 64
_KEY_VERSION = 1  # raised when the same part becomes other files
_OF_EXAMPLES = 2  # the same, of examples alone


@dataclass(frozen=True)
class HeldOut:
    """Which documents of a corpus are held out.

    Attributes:
        bound: those whose hash lies below it.
        boundary: instead of that, those that begin here or later, in bytes of the text of all files.
        share: instead of both, this share of few examples, which are one part then; it has to see all their hashes.
    """

    bound: int
    boundary: int | None = None
    share: Fraction | None = None


@dataclass(frozen=True)
class Stretch:
    """A file or part of one, which begins and ends with documents, and which of these are held out.

    Attributes:
        file: the file.
        number: of the file in the corpus; files for validation are counted after the others.
        identity: a hash of the file, and how it is read.
        size: in bytes, decompressed; of row groups about.
        held_out: which documents; a boundary is counted from the beginning of the stretch.
        span: the part of the file; None for all of it.
    """

    file: TextFile
    number: int
    identity: str
    size: int
    held_out: HeldOut
    span: Span | None = None


@dataclass(frozen=True)
class Part:
    """Neighbouring stretches of a corpus.

    Attributes:
        stretches: in order.
        separator: the line that ends a document within a text file.
    """

    stretches: tuple[Stretch, ...]
    separator: str

    def key(self, tokenizer: str) -> str:
        """A hash of all that the tokens of the part depend on, given the hash of the tokenizer."""
        read = [
            [found.identity, found.number, *_settings(found.held_out), _bounds(found.span)] for found in self.stretches
        ]
        supervised = [found.file.supervised and _OF_EXAMPLES for found in self.stretches[:1]]
        described = json.dumps([_KEY_VERSION, tokenizer, self.separator, supervised, read])
        return hashlib.sha256(described.encode()).hexdigest()


def _settings(held_out: HeldOut) -> tuple[int, int | None, str]:
    return held_out.bound, held_out.boundary, str(held_out.share)


def _bounds(span: Span | None) -> list[int] | None:
    return None if span is None else [span.start, span.stop]


def parts_of(corpus: Corpus, held_out: HeldOut) -> list[Part]:
    """The parts of a corpus in order, files for validation last.

    Args:
        corpus: the corpus.
        held_out: what of `corpus.files` is held out.
    """
    every = [*corpus.files, *corpus.validation_files]
    total = sum(map(_size, every))
    size = max(PART_BYTES, total // _MOST_PARTS) if held_out.share is None else total + 1
    stretches = _stretches(corpus, held_out, size)
    groups = grouped(stretches, lambda stretch: stretch.size, limit=size)
    return [Part(tuple(group), corpus.config.separator) for group in groups]


def _stretches(corpus: Corpus, held_out: HeldOut, size: int) -> Iterator[Stretch]:
    position = 0
    for number, found in enumerate(corpus.files):
        if held_out.boundary is not None:
            here = HeldOut(held_out.bound, held_out.boundary - position)
            yield Stretch(found.file, number, found.identity, _size(found), here)
        else:
            yield from _divided(found, number, held_out, corpus.config.separator, size)
        position += found.bytes
    for number, found in enumerate(corpus.validation_files, len(corpus.files)):
        yield from _divided(found, number, HeldOut(_ALL_HASHES), corpus.config.separator, size)


def _size(found: Survey) -> int:
    """Bytes of a file, decompressed: at least those of its text."""
    return max(found.size, found.bytes)


def _divided(found: Survey, number: int, held_out: HeldOut, separator: str, size: int) -> Iterator[Stretch]:
    """The stretches of a file."""
    parts: Sequence[Span] | None = spans(found.file, separator, size=size)
    if parts is None:
        yield Stretch(found.file, number, found.identity, _size(found), held_out)
        return
    share = _size(found) / parts[-1].stop  # 1, unless spans count row groups
    for part in parts:
        yield Stretch(found.file, number, found.identity, round((part.stop - part.start) * share), held_out, part)

"""Aligned files: line by line a source and its translation, the target.

It comes as two files, of which line n of one belongs to line n of the other, or as one file of both: tab-separated, or
JSON Lines with two fields. Files may be compressed. Lines end with a line feed, and white space around a sentence is no
part of it: so it doesn't matter whether files have carriage returns, a byte order mark, or a line feed at their end.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

from lm.config import options
from lm.config.data import LANGUAGE
from lm.errors import InputError
from lm.text import documents, json_lines
from lm.text.compression import without_suffix
from lm.text.documents import Source
from lm.text.misalignment import first_shift

Observer = Callable[[bytes], None]

_BYTE_ORDER_MARK = "\ufeff"
_SHOWN = 40


class Pair(NamedTuple):
    """A source, its translation, and the line they are on, from 1."""

    source: str
    target: str
    line: int


@dataclass(frozen=True)
class Aligned:
    """Files that hold pairs.

    Attributes:
        source: the file of the sources; of both sides, if there is no other.
        target: the file of the targets.
        fields: what holds source and target in JSON Lines.
    """

    source: Source
    target: Source | None
    fields: tuple[str, str]

    @property
    def files(self) -> tuple[Source, ...]:
        """The files."""
        return (self.source,) if self.target is None else (self.source, self.target)

    @property
    def name(self) -> str:
        """What the user calls them."""
        return " and ".join(file.name for file in self.files)

    @property
    def is_json_lines(self) -> bool:
        """Whether it is JSON Lines: by its name or, of stdin, its first line."""
        return self.target is None and self.source.is_json_lines

    @property
    def languages(self) -> tuple[str | None, str | None]:
        """The languages that the names of files or fields tell."""
        if self.target is not None:
            return language_of_file(self.source.name), language_of_file(self.target.name)
        first, second = (name if re.fullmatch(LANGUAGE, name) else None for name in self.fields)
        return (first, second) if self.is_json_lines else (None, None)

    def pairs(self, *observers: Observer) -> Iterator[Pair]:
        """All pairs in order; blank ones too.

        Args:
            observers: one for each file, called with each block of its bytes, decompressed, as it is read.

        Raises:
            InputError: a file is no UTF-8 text, or a line holds no pair, or the two files differ in their lines.
        """
        watching = observers or (None,) * len(self.files)
        texts = [documents.decoded(file, observer) for file, observer in zip(self.files, watching, strict=True)]
        if self.target is not None:
            yield from self._two_files(*(_lines(text, file.name) for text, file in zip(texts, self.files, strict=True)))
        elif self.is_json_lines:
            yield from self._json_lines(texts[0])
        else:
            yield from self._tab_separated(_lines(texts[0], self.name))

    def _two_files(self, sources: Iterator[str], targets: Iterator[str]) -> Iterator[Pair]:
        for line, (source, target) in enumerate(itertools.zip_longest(sources, targets), 1):
            if source is None or target is None:
                _refuse_unequal(self)
            yield Pair(source.strip(), target.strip(), line)

    def _tab_separated(self, lines: Iterator[str]) -> Iterator[Pair]:
        for number, line in enumerate(lines, 1):
            source, tab, target = line.partition("\t")
            if (not tab and line.strip()) or "\t" in target:
                raise InputError(
                    f"{self.name}: line {number} has {line.count(chr(9))} tabs; each line is a source, one tab and "
                    "its target"
                )
            yield Pair(source.strip(), target.strip(), number)

    def _json_lines(self, blocks: Iterator[str]) -> Iterator[Pair]:
        example = '{"%s": …, "%s": …}' % self.fields  # noqa: UP031 (braces)
        for number, values in json_lines.objects(blocks, name=self.name, example=example):
            where = f"{self.name}: line {number}"
            for field, flag in zip(self.fields, ("--source-field", "--target-field"), strict=True):
                if field not in values:
                    hint = options.suggestion(field, values)
                    raise InputError(f"{where}: no field {field!r}{hint}; it has {json_lines.known(values)} ({flag})")
            source, target = (json_lines.text(values, field, where=where).strip() for field in self.fields)
            yield Pair(source, target, number)


def _lines(blocks: Iterator[str], name: str) -> Iterator[str]:
    """The lines of a file, without a byte order mark; nothing follows the last line feed."""
    lines = json_lines.lines(blocks, name=name)
    held = next(lines).removeprefix(_BYTE_ORDER_MARK)
    for line in lines:
        yield held
        held = line
    if held:
        yield held


def language_of_file(name: str) -> str | None:
    """The language that the end of a file's name tells: `en` of train.en, train.en.gz, and train.en.txt."""
    path = Path(without_suffix(name))
    if path.suffix.lower() in documents.SUFFIXES:
        path = path.with_suffix("")
    suffix = path.suffix.removeprefix(".")
    return suffix if re.fullmatch(LANGUAGE, suffix) else None


def _refuse_unequal(aligned: Aligned) -> NoReturn:
    """InputError that says where the lines of two files come apart."""
    texts = [[line.strip() for line in _lines(documents.decoded(file), file.name)] for file in aligned.files]
    lengths = [[len(line) for line in text] for text in texts]
    counts = " and ".join(f"{file.name} {len(text):,}" for file, text in zip(aligned.files, texts, strict=True))
    longer, shorter = sorted(lengths, key=len, reverse=True)
    together = first_shift(longer, shorter)
    if together == len(shorter):
        name = aligned.files[lengths.index(shorter)].name
        where = f"they belong together up to line {together:,}, where {name} ends"
    else:
        shown = " / ".join(_shortened(text[together]) for text in texts)
        where = f"they come apart at or near line {together + 1:,} ({shown})"
    raise InputError(f"{counts} lines: line n of one must be the translation of line n of the other; {where}")


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"

"""A corpus surveyed: which files, how much text, and which documents are held out for validation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from lm.config.data import DataConfig
from lm.config.tokenizer import TokenizerConfig
from lm.data.shards import SplitName
from lm.errors import InputError, UsageError
from lm.text import documents
from lm.text.documents import Fragment, Survey
from lm.text.files import TextFile, text_files
from lm.tokenizer.cache import tokenizer_of
from lm.tokenizer.pieces import Piece, pieces
from lm.tokenizer.tokenizer import Tokenizer

FEWEST_DOCUMENTS = 100
"""With fewer documents than this, a fraction is held out from the end of the text."""

_HASHED_CHARACTERS = 1 << 14


@dataclass(frozen=True)
class Corpus:
    """Files after one pass over them.

    Attributes:
        sources: the corpus.
        validation_sources: the validation split, where it has files of its own.
        fraction: the share of the corpus that is held out otherwise.
        separator: the line that ends a document within a file.
    """

    sources: tuple[Survey, ...]
    validation_sources: tuple[Survey, ...]
    fraction: Fraction
    separator: str

    @property
    def bytes(self) -> int:
        """UTF-8 bytes of all text, files for validation included."""
        return self.source_bytes + sum(found.bytes for found in self.validation_sources)

    @property
    def source_bytes(self) -> int:
        """UTF-8 bytes of the sources' text."""
        return sum(found.bytes for found in self.sources)

    @property
    def boundary(self) -> int | None:
        """Where validation begins, in bytes of text, if the end of the text is held out."""
        if not self.fraction or sum(found.documents for found in self.sources) >= FEWEST_DOCUMENTS:
            return None
        return int(self.source_bytes * (1 - self.fraction))


@dataclass(frozen=True)
class Routed:
    """A piece, the split it goes to, and the file it is from."""

    split: SplitName
    source: TextFile
    piece: Piece


def survey(sources: Sequence[TextFile], config: DataConfig) -> Corpus:
    """Read every file once. Files that are also named as validation are left out of the rest.

    Raises:
        InputError: a file is no UTF-8 text, or there is no text at all.
        UsageError: the validation fraction is not between 0 and 1.
    """
    fraction = held_out_fraction(config.validation)
    held_out = (
        text_files([config.validation], field=config.field, supervised=config.supervised) if fraction is None else []
    )
    held_out_paths = {source.path.resolve() for source in held_out}
    kept = [source for source in sources if source.path.resolve() not in held_out_paths]
    if sources and not kept:
        raise InputError(f"no text is left to train on: {config.validation} is all there is (--validation)")
    surveys = _survey_all(kept, config.separator)
    return Corpus(surveys, _survey_all(held_out, config.separator), fraction or Fraction(0), config.separator)


def _survey_all(sources: Sequence[TextFile], separator: str) -> tuple[Survey, ...]:
    surveys = tuple(documents.survey(source, separator) for source in sources)
    if sources and not any(found.bytes for found in surveys):
        raise InputError(f"{', '.join(source.name for source in sources[:3])}: the corpus is empty; there is no text")
    return surveys


def held_out_fraction(validation: str) -> Fraction | None:
    """The number that `--validation` gives; None if it names files.

    Raises:
        UsageError: it is not from 0 to below 1.
    """
    try:
        fraction = Fraction(validation)
    except (ValueError, ZeroDivisionError):
        return None
    if not 0 <= fraction < 1:
        raise UsageError(f"validation must be a fraction from 0 to below 1, or files, not {validation} (--validation)")
    return fraction


def routed(corpus: Corpus, tokenizer: Tokenizer) -> Iterator[Routed]:
    """All pieces of a corpus with the splits they go to; each document goes to one.

    With a fraction, a document is held out if a hash of its first 16,384 characters falls below it; or, where there
    are few documents, if it begins at or beyond the boundary, which ends the document that it falls into.
    """
    boundary = corpus.boundary
    position = 0
    for found in corpus.sources:
        fragments: Iterable[Fragment] = documents.fragments(found.file, corpus.separator)
        if boundary is not None:
            fragments = _divided(fragments, boundary - position)
        split: SplitName = "train"
        for piece in pieces(fragments, tokenizer):
            if piece.starts_document:
                held_out = position >= boundary if boundary is not None else _falls_below(corpus.fraction, piece.text)
                split = "validation" if held_out else "train"
            position += len(piece.text.encode())
            yield Routed(split, found.file, piece)
    for found in corpus.validation_sources:
        for piece in pieces(documents.fragments(found.file, corpus.separator), tokenizer):
            yield Routed("validation", found.file, piece)


def _divided(fragments: Iterable[Fragment], boundary: int) -> Iterator[Fragment]:
    """The fragments with a new document begun at a boundary (in bytes), or at the first character after it."""
    for fragment in fragments:
        data = fragment.text.encode()
        while 0 < boundary < len(data) and data[boundary] & 0xC0 == 0x80:  # inside a character
            boundary += 1
        if 0 < boundary < len(data):
            yield Fragment(data[:boundary].decode(), fragment.starts_document)
            yield Fragment(data[boundary:].decode(), starts_document=True)
        else:
            yield Fragment(fragment.text, fragment.starts_document or boundary == 0)
        boundary -= len(data)


def _falls_below(fraction: Fraction, text: str) -> bool:
    return scattered(text[:_HASHED_CHARACTERS]) < fraction * 2**64


def scattered(text: str) -> int:
    """A hash of a text, spread evenly over 0 … 2**64 - 1: what falls below a bound is held out."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def training_texts(corpus: Corpus) -> Iterator[str]:
    """The text of the sources in pieces cut between words, for training a tokenizer."""
    for found in corpus.sources:
        for piece in pieces(documents.fragments(found.file, corpus.separator), tokenizer=None):
            yield piece.text


def train_tokenizer(
    corpus: Corpus, config: TokenizerConfig, *, special_tokens: Sequence[str] = (), unknown: str | None = None
) -> Tokenizer:
    """Train a tokenizer on the sources of a corpus, or find the one trained on the same before.

    Raises:
        InputError: there is no text.
        UsageError: the settings contradict each other.
    """
    return tokenizer_of(
        lambda: training_texts(corpus),
        config,
        identity=[corpus.separator, *(found.identity for found in corpus.sources)],
        corpus_bytes=corpus.source_bytes,
        special_tokens=special_tokens,
        unknown=unknown,
    )

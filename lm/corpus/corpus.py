"""A corpus after one pass over its files: how much text there is, and the tokenizer trained on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

from lm import processes
from lm.config.data import DataConfig
from lm.config.tokenizer import END_OF_TEXT, MASK, TokenizerConfig
from lm.corpus.held_out import FEWEST_DOCUMENTS, held_out_fraction
from lm.errors import InputError
from lm.text import documents
from lm.text.documents import Survey
from lm.text.files import TextFile, text_files
from lm.tokenizer.cache import tokenizer_of
from lm.tokenizer.pieces import pieces
from lm.tokenizer.tokenizer import Tokenizer

_MUCH_BYTES = 1 << 26  # worth the start of processes


@dataclass(frozen=True)
class Corpus:
    """Files of text or of examples after one pass over them.

    Attributes:
        files: the corpus, without the files of the validation split.
        validation_files: the files of the validation split, where it has files of its own.
        config: what ends a document within a file, and what is held out.
    """

    files: tuple[Survey, ...]
    validation_files: tuple[Survey, ...]
    config: DataConfig

    @property
    def name(self) -> str:
        """The first few files, for messages."""
        return ", ".join(found.file.name for found in self.files[:3])

    @property
    def fraction(self) -> Fraction:
        """The share of the files that is held out; 0 where the validation split has files of its own."""
        return held_out_fraction(self.config.validation) or Fraction(0)

    @property
    def bytes(self) -> int:
        """UTF-8 bytes of all text, files for validation included."""
        return self.files_bytes + sum(found.bytes for found in self.validation_files)

    @property
    def files_bytes(self) -> int:
        """UTF-8 bytes of the text in `files`."""
        return sum(found.bytes for found in self.files)

    @property
    def has_few_documents(self) -> bool:
        """Whether there are fewer documents in `files` than hashes divide evenly."""
        return sum(found.documents for found in self.files) < FEWEST_DOCUMENTS


def survey(files: Sequence[TextFile], config: DataConfig, *, workers: int | None = None) -> Corpus:
    """Read every file once. Files that are also named as validation are left out of the rest.

    Args:
        files: the corpus.
        config: how it becomes tokens.
        workers: processes that read at the same time, at most, where there is much to read [default: as many as there
            are processors].

    Raises:
        InputError: a file is not UTF-8 text, or there is no text at all.
        UsageError: the validation fraction is not between 0 and 1.
    """
    held_out: list[TextFile] = []
    if held_out_fraction(config.validation) is None:
        held_out = text_files([config.validation], field=config.field, supervised=config.supervised)
    held_out_paths = {file.path.resolve() for file in held_out}
    kept = [file for file in files if file.path.resolve() not in held_out_paths]
    if files and not kept:
        raise InputError(f"no text is left to train on: {config.validation} is all there is", settings=["validation"])
    of_training = _survey_all(kept, config.separator, workers)
    return Corpus(of_training, _survey_all(held_out, config.separator, workers), config)


def _survey_all(files: Sequence[TextFile], separator: str, workers: int | None) -> tuple[Survey, ...]:
    is_little = sum(file.path.stat().st_size for file in files) < _MUCH_BYTES
    used = 1 if is_little else max(1, min(workers or processes.cores(), len(files)))
    found = processes.in_order(partial(documents.survey, separator=separator), files, processes=used)
    surveys = tuple(replace(one, file=file) for one, file in zip(found, files, strict=True))
    if files and not any(found.bytes for found in surveys):
        raise InputError(f"{', '.join(file.name for file in files[:3])}: the corpus is empty; there is no text")
    return surveys


def training_texts(corpus: Corpus) -> Iterator[str]:
    """The text of `corpus.files` in pieces cut between words, for training a tokenizer."""
    for found in corpus.files:
        for piece in pieces(documents.fragments(found.file, corpus.config.separator), tokenizer=None):
            yield piece.text


def train_tokenizer(
    corpus: Corpus,
    config: TokenizerConfig,
    *,
    special_tokens: Sequence[str] = (),
    unknown: str | None = None,
    has_mask: bool = False,
) -> Tokenizer:
    """Train a tokenizer on `corpus.files`, or find the one that was trained on the same text before.

    One for examples has a token that ends a text in any case, for that is what ends a completion; one for a masked
    model has that too, which it reads labels from, and a mask.

    Raises:
        InputError: there is no text.
        UsageError: the settings contradict each other.
    """
    needed = (END_OF_TEXT, MASK) if has_mask else (END_OF_TEXT,) if corpus.config.supervised else ()
    return tokenizer_of(
        lambda: training_texts(corpus),
        config,
        identity=[corpus.config.separator, *(found.identity for found in corpus.files)],
        corpus_bytes=corpus.files_bytes,
        special_tokens=special_tokens or needed,
        unknown=unknown,
    )

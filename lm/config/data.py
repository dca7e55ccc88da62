"""Which files are read, and how texts, and pairs of them, become tokens."""

from __future__ import annotations

import codecs
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from msgspec import Meta

from lm.config.settings import Config, Count, Fraction
from lm.config.tokenizer import END_OF_TEXT
from lm.errors import UsageError

LANGUAGE_PATTERN = r"[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*"
"""A pattern of language codes."""
IGNORE_INDEX = -100  # as a target: nothing is to be predicted here

DataKind = Literal["text", "examples", "conversations", "pairs"]
"""What records are; it follows from the columns of their files."""
Format = Literal["text", "jsonl", "json", "csv", "tsv", "parquet"]
_Language = Annotated[str, Meta(pattern=f"^{LANGUAGE_PATTERN}$")]


@dataclass(frozen=True)
class FilesConfig(Config):
    """Which files are read, and how: what holds of files, while `DataConfig` is about the text in them.

    Settings:
        format: Format of all files; default from the file name.
        encoding: Encoding of files not in UTF-8.
        include: Read only files that match, as '*.py'. Repeatable.
        exclude: Skip files and folders that match. Repeatable.
        skip_malformed: Skip malformed rows and unreadable files, and count them.
        header: CSV, TSV: the first row names the columns; default yes, TSV pairs no.
    """

    format: Format | None = None
    encoding: str = "utf-8"
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    skip_malformed: bool = False
    header: bool | None = None

    def __post_init__(self) -> None:
        try:
            is_of_text = codecs.lookup(self.encoding)._is_text_encoding  # Python has no other way to tell
        except (LookupError, ValueError):
            is_of_text = False
        if not is_of_text:
            raise UsageError(f"encoding: Python knows no {self.encoding!r}")


@dataclass(frozen=True)
class DataConfig(Config):
    """How a corpus becomes tokens.

    Settings:
        validation: Fraction to hold out, or held-out files.
        separator: Line that ends a document.
        text_column: Text column: name, names or number; default text, or the run's.
        label_column: Label column: labels are learned; default the run's.
    """

    validation: str = "0.1"
    separator: str = END_OF_TEXT
    text_column: str | None = None
    label_column: str | None = None

    def __post_init__(self) -> None:
        if self.label_column is not None and self.label_column == self.text_column:
            raise UsageError("text_column and label_column are the same")

    def for_other_files(self, **values: Any) -> DataConfig:
        """Return settings for files that the run was not trained on; those of its columns that were numbers are gone.

        With a text column and without a label column, labels are not read.
        """
        own = {name: getattr(self, name) for name in ("text_column", "label_column") if "text_column" not in values}
        columns = {"text_column": None, "label_column": None, **own}
        named = {name: None if str(column).isdecimal() else column for name, column in columns.items()}
        return replace(self, **{**named, **values})

    def without_labels(self) -> DataConfig:
        return replace(self, label_column=None)


@dataclass(frozen=True)
class ParallelTextConfig(Config):
    """How pairs of sentences, a source and its translation, become tokens.

    Settings:
        bidirectional: Train both directions in one model.
        source_language: Source language; default the suffix, as in train.en.
        target_language: Target language; default the suffix, as in train.de.
        source_column: Source column.
        target_column: Target column.
        separate_vocabularies: Train a tokenizer per language.
        max_length: Drop longer sentence pairs, in tokens.
        max_ratio: Drop sentence pairs with a larger length ratio.
        bpe_dropout: BPE-dropout.
        bpe_dropout_until: Fraction of the run with BPE-dropout.
    """

    bidirectional: bool = False
    source_language: _Language | None = None
    target_language: _Language | None = None
    source_column: str = "source"
    target_column: str = "target"
    separate_vocabularies: bool = False
    max_length: Count = 256
    max_ratio: Annotated[float, Meta(ge=1, le=1e30)] = 9.0
    bpe_dropout: Fraction = 0.0
    bpe_dropout_until: Annotated[Fraction, "parallel.bpe_dropout"] = 1.0

    def __post_init__(self) -> None:
        if self.bidirectional and self.separate_vocabularies:
            raise UsageError("bidirectional models have no separate_vocabularies")

    def for_other_files(self, **values: Any) -> ParallelTextConfig:
        """Return settings for pairs that the run was not trained on; columns that aren't given are the run's."""
        columns = {name: getattr(self, name) for name in PAIR_COLUMNS}
        return ParallelTextConfig(**{**columns, **values})


PAIR_COLUMNS = ("source_column", "target_column")
"""Fields of `ParallelTextConfig` that say how files are read; the others are for training."""

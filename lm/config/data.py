"""Which files are read, and how texts, and pairs of them, become tokens."""

from __future__ import annotations

import codecs
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from msgspec import Meta

from lm.config.settings import Config, Count, Fraction, Requires
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
    """Which files are read, and how: what holds of files, while `DataConfig` is about the text in them."""

    format: Annotated[Format | None, "Format of all files; default from the file name."] = None
    encoding: Annotated[str, "Encoding of files not in UTF-8."] = "utf-8"
    include: Annotated[tuple[str, ...], "Read only files that match, as '*.py'. Repeatable."] = ()
    exclude: Annotated[tuple[str, ...], "Skip files and folders that match. Repeatable."] = ()
    skip_malformed: Annotated[bool, "Skip malformed rows and unreadable files, and count them."] = False
    header: Annotated[bool | None, "CSV, TSV: the first row names the columns; default yes, TSV pairs no."] = None

    def __post_init__(self) -> None:
        try:
            is_of_text = codecs.lookup(self.encoding)._is_text_encoding  # Python has no other way to tell
        except (LookupError, ValueError):
            is_of_text = False
        if not is_of_text:
            raise UsageError(f"encoding: Python knows no {self.encoding!r}")


@dataclass(frozen=True)
class DataConfig(Config):
    """How a corpus becomes tokens."""

    validation: Annotated[str, "Fraction to hold out, or held-out files."] = "0.1"
    separator: Annotated[str, "Line that ends a document."] = END_OF_TEXT
    text_column: Annotated[str | None, "Text column: name, names or number; default text, or the run's."] = None
    label_column: Annotated[str | None, "Label column: labels are learned; default the run's."] = None

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
    """How pairs of sentences, a source and its translation, become tokens."""

    bidirectional: Annotated[bool, "Train both directions in one model."] = False
    source_language: Annotated[_Language | None, "Source language; default the suffix, as in train.en."] = None
    target_language: Annotated[_Language | None, "Target language; default the suffix, as in train.de."] = None
    source_column: Annotated[str, "Source column."] = "source"
    target_column: Annotated[str, "Target column."] = "target"
    separate_vocabularies: Annotated[bool, "Train a tokenizer per language."] = False
    max_length: Annotated[Count, "Drop longer sentence pairs, in tokens."] = 256
    max_ratio: Annotated[float, Meta(ge=1, le=1e30), "Drop sentence pairs with a larger length ratio."] = 9.0
    bpe_dropout: Annotated[Fraction, "BPE-dropout."] = 0.0
    bpe_dropout_until: Annotated[
        Fraction, "Fraction of the run with BPE-dropout.", Requires("parallel.bpe_dropout")
    ] = 1.0

    def __post_init__(self) -> None:
        if self.bidirectional and self.separate_vocabularies:
            raise UsageError("bidirectional models have no separate_vocabularies")

    def for_other_files(self, **values: Any) -> ParallelTextConfig:
        """Return settings for pairs that the run was not trained on; columns that aren't given are the run's."""
        columns = {name: getattr(self, name) for name in PAIR_COLUMNS}
        return ParallelTextConfig(**{**columns, **values})


PAIR_COLUMNS = ("source_column", "target_column")
"""Fields of `ParallelTextConfig` that say how files are read; the others are for training."""

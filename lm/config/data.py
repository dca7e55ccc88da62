"""Which files are read, and how texts, and pairs of them, become tokens."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from lm.config.options import CheckedConfig, did_you_mean, option
from lm.config.tokenizer import END_OF_TEXT
from lm.errors import UsageError

LANGUAGE_PATTERN = r"[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*"
"""A pattern of language codes."""
IGNORE_INDEX = -100  # as a target: nothing is to be predicted here


Format = Literal["text", "jsonl", "json", "csv", "tsv", "parquet"]


@dataclass(frozen=True)
class FilesConfig(CheckedConfig):
    """Which files are read, and how: what holds of files, while `DataConfig` is about the text in them."""

    format: Format | None = option(None, "Format of all files.", default_text="from file name")
    encoding: str = option("utf-8", "Encoding of files not in UTF-8.", unit="NAME")
    include: tuple[str, ...] = option((), "Read only matching files, as '*.py'.", unit="GLOB")
    exclude: tuple[str, ...] = option((), "Skip matching files and folders.", unit="GLOB")
    skip_unreadable: bool = option(False, "Skip files that are damaged or not in --encoding.")
    skip_malformed: bool = option(False, "Skip malformed rows, and report their numbers.")
    header: bool | None = option(None, "CSV, TSV: the first row names the columns.", default_text="yes; TSV pairs: no")

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            is_of_text = codecs.lookup(self.encoding)._is_text_encoding  # Python has no other way to tell
        except (LookupError, ValueError):
            is_of_text = False
        if not is_of_text:
            raise UsageError(
                f"unknown encoding {self.encoding!r}{did_you_mean(self.encoding.lower(), _ENCODINGS)}; Python's "
                f"names count, such as {', '.join(_ENCODINGS[:5])}",
                settings=["encoding"],
            )


_ENCODINGS = ("gb18030", "cp1252", "utf-16", "latin-1", "shift_jis", "euc-jp", "euc-kr", "big5", "cp1251", "koi8-r")


@dataclass(frozen=True)
class DataConfig(CheckedConfig):
    """How a corpus becomes tokens."""

    validation: str = option(
        "0.1",
        "Fraction to hold out, or held-out files.",
        may_name_files=True,
        unit="X|FILES",
    )
    separator: str = option(END_OF_TEXT, "Line that ends a document.", unit="LINE")
    text_column: str | None = option(
        None,
        "Text column: name or number.",
        unit="COLUMN",
        default_text="text, or the run's",
    )
    label_column: str | None = option(
        None,
        "Label column.",
        unit="COLUMN",
        default_text="label, or the run's",
        requires="data.supervised",
    )
    supervised: bool = option(False, "Rows of {prompt, completion}, {text, label} or {instruction, input, output}.")
    keep_line_ends: bool = option(False, "Keep carriage returns and byte order marks.")
    strip_gutenberg: bool = option(False, "Remove Project Gutenberg's header and footer.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.label_column is not None and self.label_column == self.text_column:
            raise UsageError("text and label are two columns", settings=["text_column", "label_column"])

    def for_other_files(self, **values: Any) -> DataConfig:  # noqa: ANN401 (the fields' values)
        """Return settings for files that the run was not trained on, as text; numbered columns are guessed."""
        named = {name: None for name in ("text_column", "label_column") if str(getattr(self, name)).isdecimal()}
        return replace(self, **{"supervised": False, **named, **values})


@dataclass(frozen=True)
class ParallelTextConfig(CheckedConfig):
    """How pairs of sentences, a source and its translation, become tokens."""

    bidirectional: bool = option(False, "Train both directions in one model.")
    source_language: str | None = option(None, "Source language.", unit="CODE", default_text="suffix, as in train.en")
    target_language: str | None = option(None, "Target language.", unit="CODE", default_text="suffix, as in train.de")
    source_column: str = option("source", "Source column.", unit="COLUMN")
    target_column: str = option("target", "Target column.", unit="COLUMN")
    separate_vocabularies: bool = option(False, "Train a tokenizer per language.", advanced=True)
    max_length: int = option(256, "Drop longer sentence pairs.", minimum=1, unit="TOKENS")
    max_ratio: float = option(
        9.0, "Drop sentence pairs with a larger length ratio.", minimum=1, unit="RATIO", advanced=True
    )
    bpe_dropout: float = option(0.0, "BPE-dropout.", minimum=0, maximum=1, unit="RATE", advanced=True)
    bpe_dropout_until: float = option(
        1.0,
        "Fraction of the run with BPE-dropout.",
        minimum=0,
        maximum=1,
        unit="FRACTION",
        advanced=True,
        requires="parallel.bpe_dropout",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bidirectional and self.separate_vocabularies:
            raise UsageError(
                "both directions share one vocabulary: leave one of the two out",
                settings=("separate_vocabularies", "bidirectional"),
            )
        for name in ("source_language", "target_language"):
            language = getattr(self, name)
            if language is not None and not re.fullmatch(LANGUAGE_PATTERN, language):
                raise UsageError(f"{name} is a code such as de or pt-BR, not {language!r}", settings=(name,))

    def for_other_files(self, **values: Any) -> ParallelTextConfig:  # noqa: ANN401 (the fields' values)
        """Return settings for pairs that the run was not trained on; columns that aren't given are the run's."""
        columns = {name: getattr(self, name) for name in PAIR_COLUMNS}
        return ParallelTextConfig(**{**columns, **values})


PAIR_COLUMNS = ("source_column", "target_column")
"""Fields of `ParallelTextConfig` that say how files are read; the others are for training."""
PAIR_TRAINING_FIELDS = tuple(field.name for field in fields(ParallelTextConfig) if field.name not in PAIR_COLUMNS)

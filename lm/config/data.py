"""Which files are read, and how texts, and pairs of them, become tokens."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
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

    format: Format | None = option(
        None, "Format of all files [default: from their names; stdin is text or JSON Lines]."
    )
    encoding: str = option("utf-8", "Character encoding of text files, such as gb18030, cp1252 or utf-16.")
    include: tuple[str, ...] = option(
        (), "Of folders and globs, read only files that match this glob, such as '*.py'. Can be repeated."
    )
    exclude: tuple[str, ...] = option(
        (), "Of folders and globs, leave out files and folders that match this glob. Can be repeated."
    )
    skip_unreadable: bool = option(
        False, "Leave out files that are damaged or no text in this encoding, and name them, instead of refusing all."
    )
    header: bool | None = option(
        None, "The first row of CSV and TSV has the names of the columns [default: yes, but of TSV pairs]."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            is_of_text = codecs.lookup(self.encoding)._is_text_encoding  # Python has no other way to tell
        except (LookupError, ValueError):
            is_of_text = False
        if not is_of_text:
            raise UsageError(
                f"no encoding is called {self.encoding!r}{did_you_mean(self.encoding.lower(), _ENCODINGS)}; Python's "
                f"names count, such as {', '.join(_ENCODINGS[:5])}",
                settings=["encoding"],
            )

    @property
    def is_utf8(self) -> bool:
        """Return whether files are UTF-8."""
        return codecs.lookup(self.encoding).name == "utf-8"


_ENCODINGS = ("gb18030", "cp1252", "utf-16", "latin-1", "shift_jis", "euc-jp", "euc-kr", "big5", "cp1251", "koi8-r")


@dataclass(frozen=True)
class DataConfig(CheckedConfig):
    """How a corpus becomes tokens."""

    validation: str = option(
        "0.1",
        "Held out for validation: a fraction, or files. A fraction is taken of the documents (duplicates "
        "stay together), or of the end of the text where there are fewer than 100 documents.",
        may_name_files=True,
    )
    separator: str = option(END_OF_TEXT, "A line that holds only this ends a document within a text file.")
    field: str | None = option(
        None,
        "Field or column of the text in JSON Lines, JSON arrays, CSV, TSV and Parquet, by name or, from 1, by number "
        "[default: text, or the only one with a usual name such as content, review or message].",
        aliases=("--text-column",),
    )
    label_field: str | None = option(
        None,
        "Field or column of the label of --supervised examples, as for the text [default: label, or the only one with "
        "a usual name such as category, class or sentiment].",
        aliases=("--label-column",),
    )
    supervised: bool = option(
        False,
        "Each row of JSON, CSV, TSV or Parquet is an example, {prompt, completion} or {text, label}: "
        "only the completion is learned, or the label, which follows the text on a line of its own. A masked model "
        "becomes a classifier of the labels; a decoder classifies too (lm classify) where completions are few and "
        "short.",
    )
    keep_line_ends: bool = option(
        False, "Keep carriage returns and a byte order mark; without this, line ends are line feeds alone."
    )
    strip_gutenberg: bool = option(
        False, "Leave out what Project Gutenberg puts before and after the text of its books."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.label_field is not None and self.label_field == self.field:
            raise UsageError("text and label are two fields", settings=["field", "label_field"])

    def for_other_files(self, **given: Any) -> DataConfig:  # noqa: ANN401 (the fields' values)
        """Return settings for files that the run was not trained on, as text; numbered columns are guessed."""
        named = {name: None for name in ("field", "label_field") if str(getattr(self, name)).isdecimal()}
        return replace(self, **{"supervised": False, **named, **given})


def upgrade_line_end_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return data settings of versions that kept line ends and always named the field."""
    if "keep_line_ends" in values:
        return dict(values)
    return {**values, "keep_line_ends": True, "field": None if values.get("field") == "text" else values.get("field")}


@dataclass(frozen=True)
class ParallelConfig(CheckedConfig):
    """How pairs of sentences, a source and its translation, become tokens."""

    bidirectional: bool = option(
        False, "Learn both directions in one model; a tag before the source, such as <2de>, says which is wanted."
    )
    source_language: str | None = option(None, "Language of the sources [default: from file names, as in train.en].")
    target_language: str | None = option(None, "Language of the targets [default: from file names, as in train.de].")
    source_field: str = option(
        "source", "Field or column of the source in JSON Lines, CSV, TSV and Parquet, by name or, from 1, by number."
    )
    target_field: str = option("target", "Field or column of the target, likewise.")
    separate_vocabularies: bool = option(False, "Train a tokenizer for each language, instead of one on both.")
    max_length: int = option(256, "Leave out pairs with more tokens than this on a side.", minimum=1)
    max_ratio: float = option(
        9.0, "Leave out pairs of which one side has more than this many times the tokens of the other.", minimum=1
    )
    bpe_dropout: float = option(
        0.0,
        "Probability of leaving out each merge of the BPE, so that words are seen in several pieces.",
        minimum=0,
        maximum=1,
    )
    bpe_dropout_until: float = option(1.0, "Share of the run after which BPE dropout ends.", minimum=0, maximum=1)

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

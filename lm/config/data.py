"""How texts, and pairs of them, become tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lm.config.options import Checked, option
from lm.config.tokenizer import END_OF_TEXT
from lm.errors import UsageError

LANGUAGE = r"[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*"
"""A code of a language."""
IGNORED = -100  # as a target: nothing is to be predicted here


@dataclass(frozen=True)
class DataConfig(Checked):
    """How a corpus becomes tokens."""

    validation: str = option(
        "0.1",
        "Held out for validation: a fraction, or files. A fraction is taken of the documents (duplicates "
        "stay together), or of the end of the text where there are fewer than 100 documents.",
        may_name_files=True,
    )
    separator: str = option(END_OF_TEXT, "A line that holds only this ends a document within a text file.")
    field: str = option(
        "text",
        "What holds the text in each line of JSON Lines files (.jsonl, .ndjson; stdin too, if its first line is so), "
        "or in each row of Parquet files (.parquet).",
    )
    supervised: bool = option(
        False,
        "Each line of the JSON Lines is an example, {prompt, completion} or {text, label}; only the completion is "
        "learned, or the label, which follows the text on a line of its own. A masked model becomes a "
        "classifier of the labels; a decoder classifies too (lm classify) where completions are few and short.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.supervised and self.field != DataConfig.field:
            raise UsageError(
                "field names the text of documents; the fields of supervised examples are fixed",
                settings=("field", "supervised"),
            )


@dataclass(frozen=True)
class ParallelConfig(Checked):
    """How pairs of sentences, a source and its translation, become tokens."""

    bidirectional: bool = option(
        False, "Learn both directions in one model; a tag before the source, such as <2de>, says which is wanted."
    )
    source_language: str | None = option(None, "Language of the sources [default: from file names, as in train.en].")
    target_language: str | None = option(None, "Language of the targets [default: from file names, as in train.de].")
    source_field: str = option("source", "What holds the source in each line of JSON Lines.")
    target_field: str = option("target", "What holds the target in each line of JSON Lines.")
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
            if language is not None and not re.fullmatch(LANGUAGE, language):
                raise UsageError(f"{name} is a code such as de or pt-BR, not {language!r}", settings=(name,))

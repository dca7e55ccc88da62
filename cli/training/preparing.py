"""From the files that a run learns from to tokenizers and a folder of tokens."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from cli.training import pairs, text
from cli.training.pairs import PairCorpus
from cli.training.request import TrainingFiles
from cli.training.text import TextCorpus
from lm.config.run import RunConfig
from lm.tokenizer.tokenizer import Tokenizer

TrainingCorpus = TextCorpus | PairCorpus
"""The files that a run learns from, read once for all questions about them."""


class Prepared(NamedTuple):
    """What training reads.

    Attributes:
        tokenizer: that made the tokens; of the targets, where sources have their own.
        source_tokenizer: of the sources, if they have their own.
        folder: of the tokens.
    """

    tokenizer: Tokenizer
    source_tokenizer: Tokenizer | None
    folder: Path


def corpus_of(files: TrainingFiles) -> TrainingCorpus:
    """The corpus in the files that a user names; nothing is read yet."""
    return PairCorpus(files.pairs) if files.pairs else TextCorpus(files.text)


def prepare(corpus: TrainingCorpus, config: RunConfig, tokenizer: Path | None) -> Prepared:
    """Find or make the tokenizers and the tokens of a corpus, and describe them on stderr.

    Args:
        corpus: to learn from.
        config: of the run.
        tokenizer: a tokenizer.json or a run, whose tokenizers are used; without it, they are trained.
    """
    if isinstance(corpus, PairCorpus):
        return Prepared(*pairs.prepare(corpus, config, tokenizer))
    made, folder = text.prepare(corpus, config, tokenizer)
    return Prepared(made, None, folder)

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


def corpus_of(files: TrainingFiles) -> TextCorpus | PairCorpus:
    """The corpus of some files, of which nothing has been read."""
    return PairCorpus(files.pairs) if files.pairs else TextCorpus(files.text)


def prepare(corpus: TextCorpus | PairCorpus, config: RunConfig, tokenizer: Path | None) -> Prepared:
    """Find or make the tokenizers and the tokens of a corpus, and describe them on stderr.

    Args:
        corpus: of text or of pairs.
        config: of the run.
        tokenizer: a tokenizer.json or a run, whose tokenizers are used; without it, they are trained.
    """
    if isinstance(corpus, PairCorpus):
        tokenizers, folder = pairs.prepare(corpus, config, tokenizer)
        return Prepared(*tokenizers, folder)
    made, folder = text.prepare(corpus, config, tokenizer)
    return Prepared(made, None, folder)

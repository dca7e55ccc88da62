"""From the files that a run learns from to tokenizers and a folder of tokens."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from cli.training import pairs, text
from cli.training.request import TrainingFiles
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


def prepare(files: TrainingFiles, config: RunConfig, tokenizer: Path | None) -> Prepared:
    """Find or make the tokenizers and the tokens of a corpus, and describe them on stderr.

    Args:
        files: the corpus.
        config: of the run.
        tokenizer: a tokenizer.json or a run, whose tokenizers are used; without it, they are trained.
    """
    if files.pairs:
        return Prepared(*pairs.prepare(files.pairs, config, tokenizer))
    made, folder = text.prepare(files.text, config, tokenizer)
    return Prepared(made, None, folder)

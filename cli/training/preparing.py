"""From the files that a run learns from to tokenizers and a folder of tokens."""

from __future__ import annotations

from pathlib import Path

from cli.flags.loading import load_tokenizer
from cli.training import pairs as pairs_of
from cli.training import text
from cli.training.pairs import PairCorpus
from cli.training.request import TrainingFiles
from cli.training.text import TextCorpus
from lm.config.run import RunConfig
from lm.training.corpus import TrainingCorpus


def corpus_of(files: TrainingFiles) -> TextCorpus | PairCorpus:
    """The corpus of some files, of which nothing has been read."""
    return PairCorpus(files.pairs) if files.pairs else TextCorpus(files.text)


def named_tokenizers(path: Path, *, pairs: bool) -> pairs_of.Tokenizers:
    """The tokenizer that a user names for a text, or those for the two sides of pairs."""
    return pairs_of.named_tokenizers(path) if pairs else (load_tokenizer(path), None)


def prepare(corpus: TextCorpus | PairCorpus, config: RunConfig, tokenizer: Path | None) -> TrainingCorpus:
    """Find or make the tokenizers and the tokens of a corpus, and describe them on stderr.

    Args:
        corpus: of text or of pairs.
        config: of the run.
        tokenizer: a tokenizer.json or a run, whose tokenizers are used; without it, they are trained.
    """
    if isinstance(corpus, PairCorpus):
        tokenizers, folder = pairs_of.prepare(corpus, config, tokenizer)
        return TrainingCorpus(folder, *tokenizers)
    made, folder = text.prepare(corpus, config, tokenizer)
    return TrainingCorpus(folder, made)

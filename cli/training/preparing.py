"""From the files that a run learns from to tokenizers and a folder of tokens."""

from __future__ import annotations

from pathlib import Path

from cli.training import pairs, text
from cli.training.request import TrainingFiles
from lm.config.run import RunConfig
from lm.training.corpus import TrainingCorpus


def prepare(files: TrainingFiles, config: RunConfig, tokenizer: Path | None) -> TrainingCorpus:
    """Find or make the tokenizers and the tokens of a corpus, and describe them on stderr.

    Args:
        files: the corpus.
        config: of the run.
        tokenizer: a tokenizer.json or a run, whose tokenizers are used; without it, they are trained.
    """
    if files.pairs:
        made, of_source, folder = pairs.prepare(files.pairs, config, tokenizer)
        return TrainingCorpus(folder, made, of_source)
    made, folder = text.prepare(files.text, config, tokenizer)
    return TrainingCorpus(folder, made)

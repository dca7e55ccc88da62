"""Parallel text, prepared once."""

from pathlib import Path
from typing import NamedTuple

import pytest

from lm.config.run_config import DataConfig, ParallelTextConfig, TokenizerConfig
from lm.corpus import survey
from lm.corpus.prepare import prepare_corpus
from lm.corpus.survey import train_tokenizers
from lm.text.parallel_text import find_sources
from lm.tokenizer import Tokenizer
from tests.lm.corpus.parallel_text import lines, write

COUNT, HELD = 200, 60
BOTH = ParallelTextConfig(bidirectional=True)


class Stored(NamedTuple):
    """Prepared pairs, and their tokenizer."""

    folder: Path
    tokenizer: Tokenizer


@pytest.fixture(scope="package")
def stored(tmp_path_factory) -> Stored:
    """Pairs of which some are duplicates, in a joint vocabulary with tags."""
    folder = tmp_path_factory.mktemp("pairs")
    sources, targets = lines(COUNT)
    source, target = write(folder, sources + sources[:20], targets + targets[:20])
    held = write(folder, *lines(HELD, seed=1), name="held")
    files = find_sources(source=[source], target=[target])
    validation = find_sources(source=[held[0]], target=[held[1]])
    corpus = survey.scan_corpus(files, DataConfig(), BOTH, held_out=validation)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LM_CACHE", str(folder / "cache"))
        tokenizer, _ = train_tokenizers(corpus, TokenizerConfig(vocab_size=500), BOTH)
        return Stored(prepare_corpus(corpus, tokenizer, parallel=BOTH).folder, tokenizer)

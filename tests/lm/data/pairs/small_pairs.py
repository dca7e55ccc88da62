"""Pairs for tests: surveyed, and read back after they were prepared."""

from __future__ import annotations

from pathlib import Path

from lm.config.data import DataConfig, ParallelConfig
from lm.data.manifest import SplitName
from lm.data.pairs import corpus as parallel
from lm.data.pairs.corpus import ParallelCorpus
from lm.data.pairs.manifest import PairManifest
from lm.data.pairs.store import SIDES, open_pairs
from lm.data.prepare import Prepared
from lm.text.parallel import parallel_texts
from tests.lm.data.pairs.parallel_text import write
from tests.lm.data.preparing import byte_tokenizer

PLAIN = ParallelConfig()
BYTES = byte_tokenizer()


def corpus(
    folder: Path, sources: list[str], targets: list[str], *, validation: str = "0", config: ParallelConfig = PLAIN
) -> ParallelCorpus:
    source, target = write(folder, sources, targets)
    files = parallel_texts(config, source=[source], target=[target])
    return parallel.survey(files, DataConfig(validation=validation), config)


def ids(prepared: Prepared[PairManifest], split: SplitName = "train") -> list[list[list[int]]]:
    """The tokens of sources and of targets, read back."""
    stored = open_pairs(prepared.folder)
    sides = []
    for side in SIDES:
        sentences = stored.sentences(split, side)
        rows = (sentences.table.take(sentences.words.row(number)) for number in range(len(sentences)))
        sides.append([row.values.tolist() for row in rows])
    return sides

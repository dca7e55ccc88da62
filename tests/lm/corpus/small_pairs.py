"""Pairs for tests: surveyed, and read back after they were prepared."""

import random
from pathlib import Path

import numpy as np

from lm.config.run_config import DataConfig
from lm.corpus import SplitName, open_split
from lm.corpus.survey import Corpus, scan_corpus
from lm.text.parallel_text import find_sources
from tests.lm.corpus.parallel_text import lines, write
from tests.lm.text.random_trees import random_heads


def corpus(folder: Path, sources: list[str], targets: list[str], *, validation: str = "0") -> Corpus:
    source, target = write(folder, sources, targets)
    files = find_sources(source=[source], target=[target])
    return scan_corpus(files, DataConfig(validation=validation))


def parsed_corpus(folder: Path, count: int, *, validation: str = "0.2", seed: int = 0) -> Corpus:
    """Sentences with dependency trees, and their translations; some words are apart by two spaces."""
    sources, targets = lines(count, seed=seed)
    sources = [source.replace(" ", "  ", 1) for source in sources]
    source, target = write(folder, sources, targets)
    chance = random.Random(seed)
    heads = folder / "train.heads"
    trees = [random_heads(len(sentence.split()), chance) for sentence in sources]
    heads.write_text("".join(" ".join(map(str, tree)) + "\n" for tree in trees))
    files = find_sources(source=[source], target=[target], heads=[str(heads)])
    return scan_corpus(files, DataConfig(validation=validation))


def ids(folder: Path, split: SplitName = "train") -> tuple[list[list[int]], list[list[int]]]:
    """The tokens of sources and of targets, read back."""
    stored = open_split(folder, split)
    sides = []
    for columns in (("source_tokens", "source_ends"), ("tokens", "ends")):
        rows = stored.take(np.arange(stored.documents), *columns)
        sides.append([rows.row(number).tolist() for number in range(len(rows))])
    return sides[0], sides[1]

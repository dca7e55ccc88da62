"""Pairs for tests: surveyed, and read back after they were prepared."""

import random
from pathlib import Path

from lm.config.data import DataConfig, ParallelTextConfig
from lm.corpus import parallel_corpus
from lm.corpus.manifest import PairManifest, SplitName
from lm.corpus.parallel_corpus import ParallelCorpus
from lm.corpus.prepared_folder import PreparedFolder
from lm.corpus.tokenized_pairs import SIDES, open_pairs
from lm.text.parallel_text import find_parallel_texts
from tests.lm.corpus.parallel_text import lines, write
from tests.lm.corpus.preparing import byte_tokenizer
from tests.lm.text.random_trees import random_heads

PLAIN = ParallelTextConfig()
BYTES = byte_tokenizer()


def corpus(
    folder: Path, sources: list[str], targets: list[str], *, validation: str = "0", config: ParallelTextConfig = PLAIN
) -> ParallelCorpus:
    source, target = write(folder, sources, targets)
    files = find_parallel_texts(config, source=[source], target=[target])
    return parallel_corpus.scan_parallel_corpus(files, DataConfig(validation=validation), config)


def parsed_corpus(folder: Path, count: int, *, validation: str = "0.2", seed: int = 0) -> ParallelCorpus:
    """Sentences with dependency trees, and their translations; some words are apart by two spaces."""
    sources, targets = lines(count, seed=seed)
    sources = [source.replace(" ", "  ", 1) for source in sources]
    source, target = write(folder, sources, targets)
    chance = random.Random(seed)
    heads = folder / "train.heads"
    trees = [random_heads(len(sentence.split()), chance) for sentence in sources]
    heads.write_text("".join(" ".join(map(str, tree)) + "\n" for tree in trees))
    files = find_parallel_texts(PLAIN, source=[source], target=[target], heads=[str(heads)])
    return parallel_corpus.scan_parallel_corpus(files, DataConfig(validation=validation), PLAIN)


def ids(prepared: PreparedFolder[PairManifest], split: SplitName = "train") -> list[list[list[int]]]:
    """The tokens of sources and of targets, read back."""
    stored = open_pairs(prepared.folder)
    sides = []
    for side in SIDES:
        sentences = stored.sentences(split, side)
        rows = (sentences.table.take(sentences.words.row(number)) for number in range(len(sentences)))
        sides.append([row.values.tolist() for row in rows])
    return sides

"""From parallel text to a folder of pairs, and training the tokenizers for it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from lm.config.data import ParallelConfig
from lm.config.tokenizer import TokenizerConfig
from lm.data.manifest import SourceRecord
from lm.data.pairs.corpus import PairSurvey, ParallelCorpus
from lm.data.pairs.manifest import MANIFEST, PairManifest, PairSplit
from lm.data.pairs.store import SIDES, SOURCE_TOKENIZER, SideName, open_pairs
from lm.data.pairs.writer import write_splits
from lm.data.prepare import Preparation, Prepared, key_of
from lm.errors import InputError, UsageError
from lm.text.files import Progress
from lm.tokenizer.cache import tokenizer_of
from lm.tokenizer.languages import spelled_tag
from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer


def train_tokenizers(
    corpus: ParallelCorpus, config: TokenizerConfig, parallel: ParallelConfig
) -> tuple[Tokenizer, Tokenizer | None]:
    """Train a tokenizer on both sides of a corpus, or one on each, or find those trained on the same text before.

    Args:
        corpus: the corpus.
        config: kind and size.
        parallel: whether vocabularies are separate, and whether both directions are learned, which takes language tags.

    Returns:
        The tokenizer of the targets, and that of the sources where it is another.

    Raises:
        InputError: there is no text.
        UsageError: the settings contradict each other.
    """
    tags = [spelled_tag(language) for language in corpus.languages if language] if parallel.bidirectional else []
    if not parallel.separate_vocabularies:
        return _train(corpus, config, SIDES, tags), None
    return _train(corpus, config, ("target",), tags), _train(corpus, config, ("source",), tags)


def _train(
    corpus: ParallelCorpus, config: TokenizerConfig, sides: Sequence[SideName], tags: Sequence[str]
) -> Tokenizer:
    def texts() -> Iterator[str]:
        for found in corpus.texts:
            for pair in found.text.pairs():
                yield from (getattr(pair, side) for side in sides)

    share = sum(sum(getattr(found, f"{side}_bytes") for side in sides) for found in corpus.texts)
    identity = [*sides, *(json.dumps(found.identity) for found in corpus.texts)]
    return tokenizer_of(texts, config, identity=identity, corpus_bytes=share, special_tokens=tags)


def prepare_pairs(
    corpus: ParallelCorpus,
    tokenizer: Tokenizer,
    config: ParallelConfig,
    *,
    source_tokenizer: Tokenizer | None = None,
    root: Path | None = None,
    progress: Progress | None = None,
) -> Prepared[PairManifest]:
    """Tokenize parallel text into a folder of the cache, or find it there.

    Pairs with a blank side are left out, and pairs with a side that is too long. Of the corpus, though not of files for
    validation, so are pairs with one side too many times as long as the other.

    Args:
        corpus: the corpus.
        tokenizer: of the targets; of both sides, if there is no other.
        config: the filters.
        source_tokenizer: of the sources, where they have their own.
        root: the cache [default: `cache_root()`].
        progress: called as text is tokenized; not at all if the pairs are there.

    Raises:
        InputError: a tokenizer has no token for a character, or nothing is left to train on.
        UsageError: a tokenizer has no token that ends a text.
    """
    tokenizers: dict[SideName, Tokenizer] = {"source": source_tokenizer or tokenizer, "target": tokenizer}
    if any(used.end_of_text is None for used in tokenizers.values()):
        raise UsageError("the tokenizer has no end-of-text token, so no sentence could end; use one that has")

    def write(folder: Path) -> PairManifest:
        splits = write_splits(corpus, tokenizers, config, folder, progress=progress)
        if not splits["train"].pairs:
            raise InputError(f"no pair is left to train on: {_left_out(splits['train'])}")
        tokenizer.save(folder / FILE_NAME)
        if source_tokenizer is not None:
            source_tokenizer.save(folder / SOURCE_TOKENIZER)
        return _manifest(key, corpus, config, splits)

    contents = [[found.identity for found in group] for group in (corpus.texts, corpus.validation_texts)]
    sums = [tokenizer.sha256, source_tokenizer.sha256 if source_tokenizer else None]
    settings = [str(corpus.fraction), config.max_length, float(config.max_ratio), corpus.languages]
    key = key_of("pairs", sums, settings, contents)
    preparation = Preparation(key, MANIFEST, lambda folder: open_pairs(folder).manifest, write)
    return preparation.find_or_make_in_cache("pairs", root=root)


def _left_out(split: PairSplit) -> str:
    return (
        f"{split.blank} have a blank side, {split.too_long} are too long (--max-length), {split.ratio} too unlike in "
        "length (--max-ratio)"
    )


def _manifest(key: str, corpus: ParallelCorpus, config: ParallelConfig, splits: dict[str, PairSplit]) -> PairManifest:
    return PairManifest(
        key=key,
        languages=corpus.languages,
        validation=corpus.validation,
        max_length=config.max_length,
        max_ratio=float(config.max_ratio),
        sources=_records(corpus.texts),
        validation_sources=_records(corpus.validation_texts),
        splits=splits,
        heads=corpus.has_heads,
    )


def _records(surveys: Sequence[PairSurvey]) -> tuple[SourceRecord, ...]:
    return tuple(record for found in surveys for record in found.records)

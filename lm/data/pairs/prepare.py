"""From parallel text to a folder of pairs, and only once for the same inputs; and the tokenizers on the way there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lm import files
from lm.config.data import ParallelConfig
from lm.config.run import FORMAT_VERSION
from lm.config.tokenizer import TokenizerConfig
from lm.data.folder import partial_folder, put_in_place, remove_abandoned
from lm.data.pairs import store
from lm.data.pairs.corpus import ParallelCorpus, Survey
from lm.data.pairs.store import SIDES, SOURCE_TOKENIZER, PairManifest, PairSplit, SideName
from lm.data.pairs.writer import Progress, write_splits
from lm.data.shards import SourceRecord
from lm.errors import InputError, UsageError
from lm.files import cache_root
from lm.tokenizer.cache import tokenizer_of
from lm.tokenizer.languages import spelled_tag
from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer


@dataclass(frozen=True)
class PreparedPairs:
    """A folder of pairs.

    Attributes:
        folder: where it is.
        manifest: what it holds, and what was left out.
        reused: whether it was there already.
    """

    folder: Path
    manifest: PairManifest
    reused: bool


def train_tokenizers(
    corpus: ParallelCorpus, config: TokenizerConfig, parallel: ParallelConfig
) -> tuple[Tokenizer, Tokenizer | None]:
    """Train a tokenizer on both sides of a corpus, or one on each, or find those trained on the same before.

    Args:
        corpus: the text.
        config: kind and size.
        parallel: whether vocabularies are separate; for both directions in one model, tags are special tokens.

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
        for found in corpus.surveys:
            for pair in found.aligned.pairs():
                yield from (getattr(pair, side) for side in sides)

    share = sum(sum(getattr(found, f"{side}_bytes") for side in sides) for found in corpus.surveys)
    identity = [*sides, *(json.dumps(found.identity) for found in corpus.surveys)]
    return tokenizer_of(texts, config, identity=identity, corpus_bytes=share, special_tokens=tags)


def prepare_pairs(
    corpus: ParallelCorpus,
    tokenizer: Tokenizer,
    config: ParallelConfig,
    *,
    source_tokenizer: Tokenizer | None = None,
    root: Path | None = None,
    progress: Progress | None = None,
) -> PreparedPairs:
    """Tokenize parallel text into a folder of the cache, or find it there.

    Pairs with a blank side are left out, and those of which a side is too long; of the corpus also those of which one
    side is too many times as long as the other, but not of files for validation.

    Args:
        corpus: the text, from `parallel.survey`.
        tokenizer: of the targets; of both sides, if there is no other.
        config: the filters.
        source_tokenizer: of the sources, where they have their own.
        root: the cache [default: `cache_root()`].
        progress: called as text is tokenized; not at all if the pairs are there.

    Raises:
        InputError: a tokenizer has no token for a character, or nothing is left to train on.
        UsageError: a tokenizer has no token that ends a text, or lacks a tag.
    """
    for used in (tokenizer, source_tokenizer or tokenizer):
        if used.end_of_text is None:
            raise UsageError("the tokenizer has no end-of-text token, so no sentence could end; use one that has")
    key = _key(corpus, tokenizer, source_tokenizer, config)
    folder = ((root or cache_root()) / "pairs" / key[:32]).absolute()
    remove_abandoned(folder.parent)
    if _is_there(folder):
        return PreparedPairs(folder, store.read_manifest(folder), reused=True)
    tokenizers: dict[SideName, Tokenizer] = {"source": source_tokenizer or tokenizer, "target": tokenizer}
    with partial_folder(folder) as partial:
        splits = write_splits(corpus, tokenizers, config, partial, progress=progress)
        if not splits["train"].pairs:
            raise InputError(f"no pair is left to train on: {_left_out(splits['train'])}")
        tokenizer.save(partial / FILE_NAME)
        if source_tokenizer is not None:
            source_tokenizer.save(partial / SOURCE_TOKENIZER)
        for file in partial.iterdir():
            files.sync(file)
        manifest = _manifest(corpus, config, key, splits)
        files.write_json(partial / store.MANIFEST, manifest.to_dict())
        put_in_place(partial, folder, is_there=lambda: _is_there(folder))
    return PreparedPairs(folder, manifest, reused=False)


def _is_there(folder: Path) -> bool:
    try:
        store.open_pairs(folder)
    except InputError:
        return False
    return True


def _left_out(split: PairSplit) -> str:
    return (
        f"{split.blank} have a blank side, {split.too_long} are too long (--max-length), {split.ratio} too unlike in "
        "length (--max-ratio)"
    )


def _key(
    corpus: ParallelCorpus, tokenizer: Tokenizer, source_tokenizer: Tokenizer | None, config: ParallelConfig
) -> str:
    """A hash of all that a folder depends on: contents, not names or times."""
    contents = [[found.identity for found in group] for group in (corpus.surveys, corpus.validation_surveys)]
    sums = [tokenizer.sha256, source_tokenizer.sha256 if source_tokenizer else None]
    settings = [str(corpus.fraction), config.max_length, float(config.max_ratio), corpus.languages]
    return hashlib.sha256(json.dumps([FORMAT_VERSION, "pairs", sums, settings, contents]).encode()).hexdigest()


def _manifest(corpus: ParallelCorpus, config: ParallelConfig, key: str, splits: dict[str, PairSplit]) -> PairManifest:
    def records(surveys: Sequence[Survey]) -> tuple[SourceRecord, ...]:
        return tuple(record for found in surveys for record in found.records)

    return PairManifest(
        key=key,
        languages=corpus.languages,
        validation=corpus.validation,
        max_length=config.max_length,
        max_ratio=float(config.max_ratio),
        sources=records(corpus.surveys),
        validation_sources=records(corpus.validation_surveys),
        splits=splits,
    )

"""From files of sources and their translations to a folder of prepared pairs, and what is said about it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from cli.console.messages import fact, note
from cli.console.progress import encode_progress
from cli.flags.loading import load_tokenizer
from cli.training.request import PairFiles
from lm.checkpoint import load_tokenizers
from lm.config.data import DataConfig, ParallelConfig
from lm.config.run import RunConfig
from lm.data.pairs.corpus import ParallelCorpus, survey
from lm.data.pairs.manifest import PairManifest
from lm.data.pairs.prepare import prepare_pairs, train_tokenizers
from lm.run_folder import find_checkpoint
from lm.text.files import text_size
from lm.text.parallel import ParallelText, parallel_texts
from lm.tokenizer.tokenizer import Tokenizer


class PairCorpus:
    """Files of sources and their translations; they are read once for all questions about them.

    Attributes:
        tokens: None, as no folder of prepared pairs can be named.
    """

    holds_pairs: ClassVar[bool] = True
    tokens: ClassVar[None] = None

    def __init__(self, files: PairFiles) -> None:
        """`files` are those that the user names; nothing is read yet."""
        self._named = files
        self._surveyed: ParallelCorpus | None = None

    def text_bytes(self, config: RunConfig) -> int:
        """UTF-8 bytes of both sides, without validation's own files: told by the sizes of files, or by reading them."""
        known = text_size(file for text in self._texts(config.parallel) for file in text.files)
        return sum(found.bytes for found in self.survey(config).texts) if known is None else known

    def survey(self, config: RunConfig) -> ParallelCorpus:
        """The files after one pass over them."""
        if self._surveyed is None:
            named = self._named
            held_out = parallel_texts(
                config.parallel,
                source=[named.validation_source] if named.validation_source else (),
                target=[named.validation_target] if named.validation_target else (),
            )
            texts = self._texts(config.parallel)
            self._surveyed = survey(texts, config.data, config.parallel, validation=held_out)
        return self._surveyed

    def data_config(self, config: DataConfig, *, typed: Mapping[str, Any]) -> DataConfig:  # noqa: ARG002
        """How the tokens are made: as the config says."""
        return config

    def _texts(self, config: ParallelConfig) -> list[ParallelText]:
        return parallel_texts(config, source=self._named.source, target=self._named.target, pairs=self._named.pairs)


def prepare(corpus: PairCorpus, config: RunConfig, tokenizer: Path | None) -> tuple[Tokenizer, Tokenizer | None, Path]:
    """The tokenizers (of targets, and of sources if they have their own) and the folder of prepared pairs.

    Args:
        corpus: the corpus.
        config: of the run.
        tokenizer: a tokenizer.json for both sides, or a run whose tokenizers serve; without it, they are trained.
    """
    surveyed = corpus.survey(config)
    made = train_tokenizers(surveyed, config.tokenizer, config.parallel) if tokenizer is None else _loaded(tokenizer)
    with encode_progress() as progress:
        prepared = prepare_pairs(surveyed, made[0], config.parallel, source_tokenizer=made[1], progress=progress)
    note(f"tokens  {prepared.folder}{' (made before)' if prepared.reused else ''}")
    _describe(prepared.manifest, made)
    return *made, prepared.folder


def _loaded(path: Path) -> tuple[Tokenizer, Tokenizer | None]:
    """The tokenizer in a file, or those of a run: of targets, and of sources if they have their own."""
    if path.is_file():
        return load_tokenizer(path), None
    return load_tokenizers(find_checkpoint(path))


def _describe(manifest: PairManifest, tokenizers: tuple[Tokenizer, Tokenizer | None]) -> None:
    """Say how many pairs there are, and how many were left out, and why."""
    train, held_out = (manifest.splits[name] for name in ("train", "validation"))
    target, source = tokenizers
    vocabulary = f"{target.vocab_size:,}" if source is None else f"{source.vocab_size:,} and {target.vocab_size:,}"
    fact("corpus", f"{train.pairs:,} pairs to train on, {held_out.pairs:,} held out, vocabulary {vocabulary}")
    reasons = {
        "with a blank side": train.blank + held_out.blank,
        "too long (--max-length)": train.too_long + held_out.too_long,
        "of unequal lengths (--max-ratio)": train.ratio + held_out.ratio,
    }
    if left_out := [f"{number:,} {reason}" for reason, number in reasons.items() if number]:
        fact("", f"left out: {', '.join(left_out)}")

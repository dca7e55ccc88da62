"""From files of sources and their translations to a folder of prepared pairs, described on stderr."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from cli.console.messages import fact, note
from cli.console.progress import encode_progress
from cli.flags.loading import load_tokenizer
from cli.preparing import MUCH_REPEATED
from cli.training.request import PairFiles
from lm.checkpoint import load_tokenizers
from lm.config.data import ParallelConfig
from lm.config.run import RunConfig
from lm.corpus.pair_manifest import PairManifest
from lm.corpus.parallel import ParallelCorpus, survey
from lm.corpus.prepare_pairs import prepare_pairs, train_tokenizers
from lm.run_folder import find_checkpoint
from lm.text.files import text_size
from lm.text.parallel import ParallelText, parallel_texts
from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer

Tokenizers = tuple[Tokenizer, Tokenizer | None]
"""Of targets, and of sources if they have their own."""


class PairCorpus:
    """The pairs that a run learns from; they are read once for all questions about them."""

    holds_pairs: ClassVar[bool] = True
    prepared: ClassVar[None] = None

    def __init__(self, files: PairFiles) -> None:
        """Read nothing before it is asked for."""
        self._named = files
        self._surveyed: ParallelCorpus | None = None

    def text_bytes(self, config: RunConfig) -> int:
        """UTF-8 bytes of both sides, without the validation split's own files: by the files' sizes, or by reading."""
        known = text_size(file for text in self._texts(config.parallel) for file in text.files)
        return sum(found.bytes for found in self.survey(config).texts) if known is None else known

    def survey(self, config: RunConfig) -> ParallelCorpus:
        """The files after one pass over them."""
        if self._surveyed is None:
            texts = self._texts(config.parallel)
            named = self._named
            held_out = parallel_texts(
                config.parallel,
                source=[named.validation_source] if named.validation_source else (),
                target=[named.validation_target] if named.validation_target else (),
                heads=[named.validation_heads] if named.validation_heads else (),
            )
            self._surveyed = survey(texts, config.data, config.parallel, validation=held_out)
        return self._surveyed

    def files(self, config: RunConfig) -> list[ParallelText]:
        """The texts of both sides."""
        return self._texts(config.parallel)

    def _texts(self, config: ParallelConfig) -> list[ParallelText]:
        named = self._named
        return parallel_texts(config, source=named.source, target=named.target, pairs=named.pairs, heads=named.heads)


def prepare(corpus: PairCorpus, config: RunConfig, tokenizer: Path | None) -> tuple[Tokenizers, Path]:
    """The tokenizers and the folder of prepared pairs.

    Args:
        corpus: the pairs.
        config: of the run.
        tokenizer: a tokenizer.json for both sides, or a run, whose tokenizers are used; without it, they are trained.
    """
    surveyed = corpus.survey(config)
    if tokenizer is None:
        made = train_tokenizers(surveyed, config.tokenizer, config.parallel)
    else:
        made = named_tokenizers(tokenizer)
    with encode_progress() as progress:
        prepared = prepare_pairs(surveyed, made[0], config.parallel, source_tokenizer=made[1], progress=progress)
    note(f"tokens  {prepared.folder}{' (made before)' if prepared.reused else ''}")
    _describe(prepared.manifest, made)
    _warn(surveyed)
    return made, prepared.folder


def named_tokenizers(path: Path) -> Tokenizers:
    """The tokenizers of a file, of a folder that has some, or of a run."""
    if path.is_file():
        return load_tokenizer(path), None
    return load_tokenizers(path if (path / FILE_NAME).is_file() else find_checkpoint(path))


def _warn(corpus: ParallelCorpus) -> None:
    """Warn of what makes the validation loss look better than it is, or teaches nothing but to copy."""
    if (fraction := corpus.seen_in_training) >= MUCH_REPEATED:
        fact(
            "warning",
            f"{fraction:.0%} of the held-out pairs are among those to train on: the validation loss will look better "
            "than it is (--validation-source)",
        )
    for name in corpus.copies:
        fact("warning", f"{name}: source and target are the same text, so the model learns to copy (--target)")


def _describe(manifest: PairManifest, tokenizers: Tokenizers) -> None:
    """How many pairs there are, and how many were left out and why."""
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

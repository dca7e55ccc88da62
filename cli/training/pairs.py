"""From files of sources and their translations to a folder of prepared pairs, and what is said about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from lm.config.data import ParallelConfig
from lm.config.run import RunConfig
from lm.errors import UsageError

if TYPE_CHECKING:
    from lm.data.pairs.corpus import ParallelCorpus
    from lm.data.pairs.manifest import PairManifest
    from lm.text.parallel import ParallelText
    from lm.tokenizer.tokenizer import Tokenizer

Source = Annotated[
    list[str] | None,
    typer.Option(
        "--source", metavar="FILE", help="For translation: sentences, one a line; with --target. Can be repeated."
    ),
]
Target = Annotated[
    list[str] | None,
    typer.Option("--target", metavar="FILE", help="Their translations, line by line."),
]
Pairs = Annotated[
    list[str] | None,
    typer.Option(
        "--pairs",
        metavar="FILE",
        help="Both in one file: source, tab, target on each line, or JSON Lines. Can be repeated.",
    ),
]
ValidationSource = Annotated[
    str | None,
    typer.Option(
        "--validation-source",
        metavar="FILE",
        help="Hold out these sentences, with --validation-target, instead of a share of the pairs.",
    ),
]
ValidationTarget = Annotated[
    str | None, typer.Option("--validation-target", metavar="FILE", help="Their translations, line by line.")
]


@dataclass
class ParallelFiles:
    """What the user names: files of sources and targets, files of both, and those of the validation split.

    They are read once for all questions about them.
    """

    holds_pairs: ClassVar[bool] = True
    prepared: ClassVar[None] = None

    source: Sequence[str] = ()
    target: Sequence[str] = ()
    pairs: Sequence[str] = ()
    validation_source: str | None = None
    validation_target: str | None = None
    _surveyed: ParallelCorpus | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if bool(self.source) != bool(self.target):
            raise UsageError("--source and --target go together (or both in one file: --pairs)")
        if (self.validation_source is None) != (self.validation_target is None):
            raise UsageError("--validation-source and --validation-target go together")

    def __bool__(self) -> bool:
        return bool(self.source or self.pairs)

    @property
    def first(self) -> str:
        """A name for all of them."""
        return [*self.source, *self.pairs][0]

    def text_bytes(self, config: RunConfig) -> int:
        """UTF-8 bytes of both sides, without the validation split's own files: by the files' sizes, or by reading."""
        from lm.text.files import text_size

        size = text_size(file for text in self._texts(config.parallel) for file in text.files)
        return sum(found.bytes for found in self.survey(config).texts) if size is None else size

    def survey(self, config: RunConfig) -> ParallelCorpus:
        """The files after one pass over them."""
        from lm.data.pairs.corpus import survey
        from lm.text.parallel import parallel_texts

        if self._surveyed is None:
            texts = self._texts(config.parallel)
            held_out = parallel_texts(
                config.parallel,
                source=[self.validation_source] if self.validation_source else (),
                target=[self.validation_target] if self.validation_target else (),
            )
            self._surveyed = survey(texts, config.data, config.parallel, validation=held_out)
        return self._surveyed

    def _texts(self, config: ParallelConfig) -> list[ParallelText]:
        from lm.text.parallel import parallel_texts

        return parallel_texts(config, source=self.source, target=self.target, pairs=self.pairs)


def prepare(
    files: ParallelFiles, config: RunConfig, tokenizer: Path | None
) -> tuple[Tokenizer, Tokenizer | None, Path]:
    """The tokenizers (of targets, and of sources if they have their own) and the folder of prepared pairs.

    Args:
        files: the corpus.
        config: of the run.
        tokenizer: a tokenizer.json for both sides, or a run whose tokenizers serve; without it, they are trained.
    """
    from cli.console.messages import note
    from cli.console.progress import encode_progress
    from lm.data.pairs.prepare import prepare_pairs, train_tokenizers

    corpus = files.survey(config)
    made = train_tokenizers(corpus, config.tokenizer, config.parallel) if tokenizer is None else _loaded(tokenizer)
    with encode_progress() as progress:
        prepared = prepare_pairs(corpus, made[0], config.parallel, source_tokenizer=made[1], progress=progress)
    note(f"tokens  {prepared.folder}{' (made before)' if prepared.reused else ''}")
    _say(prepared.manifest, made)
    return *made, prepared.folder


def _loaded(path: Path) -> tuple[Tokenizer, Tokenizer | None]:
    from cli.flags.loading import load_tokenizer
    from lm.checkpoint import load_tokenizers
    from lm.run_folder import find_checkpoint

    if path.is_file():
        return load_tokenizer(path), None
    return load_tokenizers(find_checkpoint(path))


def _say(manifest: PairManifest, tokenizers: tuple[Tokenizer, Tokenizer | None]) -> None:
    """How many pairs there are, and how many were left out, and why."""
    from cli.console.messages import fact

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

"""From files of sources and their translations to a folder of prepared pairs, and what is said about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lm.config.data import DataConfig, ParallelConfig
from lm.config.run import RunConfig
from lm.errors import UsageError

if TYPE_CHECKING:
    from lm.data.pairs.prepare import PreparedPairs
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


@dataclass(frozen=True)
class ParallelFiles:
    """What the user names: files of sources and targets, files of both, and those of the validation split."""

    source: Sequence[str] = ()
    target: Sequence[str] = ()
    pairs: Sequence[str] = ()
    validation_source: str | None = None
    validation_target: str | None = None

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

    def text_bytes(self, config: ParallelConfig) -> int:
        """UTF-8 bytes of both sides, validation's own files aside: told by the files' sizes, if these tell it."""
        from lm.data.pairs import corpus as parallel
        from lm.text.files import text_size
        from lm.text.parallel import parallel_texts

        found = parallel_texts(config, source=self.source, target=self.target, pairs=self.pairs)
        size = text_size(file for aligned in found for file in aligned.files)
        return parallel.survey(found, DataConfig(), config).bytes if size is None else size


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
    from lm.data.pairs import corpus as parallel
    from lm.data.pairs import prepare
    from lm.text.parallel import parallel_texts

    found = parallel_texts(config.parallel, source=files.source, target=files.target, pairs=files.pairs)
    held_out = parallel_texts(
        config.parallel,
        source=[files.validation_source] if files.validation_source else (),
        target=[files.validation_target] if files.validation_target else (),
    )
    corpus = parallel.survey(found, config.data, config.parallel, validation=held_out)
    if tokenizer is None:
        made = prepare.train_tokenizers(corpus, config.tokenizer, config.parallel)
    else:
        made = _loaded(tokenizer)
    with encode_progress() as progress:
        prepared = prepare.prepare_pairs(corpus, made[0], config.parallel, source_tokenizer=made[1], progress=progress)
    note(f"tokens  {prepared.folder}{' (made before)' if prepared.reused else ''}")
    _say(prepared, made)
    return *made, prepared.folder


def _loaded(path: Path) -> tuple[Tokenizer, Tokenizer | None]:
    from cli.flags.loading import load_tokenizer
    from lm.checkpoint import load_tokenizers
    from lm.run_folder import find_checkpoint

    if path.is_file():
        return load_tokenizer(path), None
    return load_tokenizers(find_checkpoint(path))


def _say(prepared: PreparedPairs, tokenizers: tuple[Tokenizer, Tokenizer | None]) -> None:
    """How many pairs there are, and how many were left out, and why."""
    from cli.console.messages import fact

    train, held_out = (prepared.manifest.splits[name] for name in ("train", "validation"))
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

"""From files of sources and their translations to a folder of prepared pairs, and what is said about it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cli.training.request import PairFiles
from lm.config.run import RunConfig

if TYPE_CHECKING:
    from lm.data.pairs.prepare import PreparedPairs
    from lm.tokenizer.tokenizer import Tokenizer


def prepare(files: PairFiles, config: RunConfig, tokenizer: Path | None) -> tuple[Tokenizer, Tokenizer | None, Path]:
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

"""From a corpus of text or of examples to a folder of tokens for training, and what is said about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm.config.data import DataConfig
from lm.config.options import options
from lm.config.run import RunConfig
from lm.errors import InputError, UsageError
from lm.run_folder import is_journal

if TYPE_CHECKING:
    from lm.text.files import TextFile
    from lm.tokenizer.tokenizer import Tokenizer


def prepare(corpus: Sequence[str], config: RunConfig, tokenizer: Path | None) -> tuple[Tokenizer, Path]:
    """The tokenizer and the folder of shards: those of `lm prepare`, or made now."""
    from cli.console.messages import fact, note
    from cli.console.numbers import count, size
    from cli.console.progress import encode_progress
    from cli.prepare import note_repetition, tokenizer_for
    from lm.data import shards
    from lm.data.windows.prepare import prepare_cached
    from lm.text.files import text_files
    from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer

    if is_prepared(corpus):
        folder = Path(corpus[0])
        path = tokenizer or folder / FILE_NAME
        manifest, made = shards.read_manifest(folder), Tokenizer.load(path)
        if made.sha256 != manifest.tokenizer:
            advice = "prepare the corpus again" if tokenizer is None else "leave out --tokenizer"
            raise InputError(f"{path}: not the tokenizer that made the tokens in {folder}; {advice}")
    else:
        sources = text_files(corpus, field=config.data.field, supervised=config.data.supervised)
        _refuse_runs(sources)
        made = tokenizer_for(sources, config, tokenizer)
        with encode_progress() as progress:
            prepared = prepare_cached(sources, made, config.data, progress=progress)
        folder, manifest = prepared.folder, prepared.manifest
        note(f"tokens  {folder}{' (made before)' if prepared.reused else ''}")
    train, held_out = manifest.splits["train"], manifest.splits["validation"]
    if manifest.supervised:
        parts = f"{train.documents:,} examples to train on, {held_out.documents:,} held out"
    else:
        parts = f"{count(train.tokens)} tokens to train on, {count(held_out.tokens)} held out"
        parts += f", {train.bytes / train.tokens:.2f} bytes a token"
    fact("corpus", f"{size(train.bytes + held_out.bytes)}, vocabulary {made.vocab_size:,}: {parts}")
    is_trained_here = tokenizer is None and not is_prepared(corpus)
    if is_trained_here and config.tokenizer.kind == "bpe" and made.vocab_size < config.tokenizer.vocab_size:
        fact("", f"(no more pairs occur often enough for a vocabulary of {config.tokenizer.vocab_size:,})")
    note_repetition(manifest)
    return made, folder


def data_config(corpus: Sequence[str], config: DataConfig, *, typed: Mapping[str, Any]) -> DataConfig:
    """How the tokens of a corpus are made: as the config says, but where they are made already, as they were.

    Args:
        corpus: as it was named.
        config: what was given in all.
        typed: what of it was given in flags.

    Raises:
        InputError: examples are asked for, and the tokens are of text.
        UsageError: a flag contradicts what the tokens were made with.
    """
    from lm.data import shards

    if not is_prepared(corpus):
        return config
    folder, made = corpus[0], shards.read_manifest(Path(corpus[0])).data
    if config.supervised and not made.supervised:
        raise InputError(f"{folder}: holds tokens of text, not examples; make it with lm prepare --supervised")
    for described in options(DataConfig):
        was = getattr(made, described.name)
        if described.name in typed and typed[described.name] != was:
            problem = f"the tokens in {folder} were made with {described.name} {was!r}, not {typed[described.name]!r}"
            raise UsageError(f"{problem}; prepare the text again, or leave it out ({described.flag})")
    return made


def _refuse_runs(sources: Sequence[TextFile]) -> None:
    """InputError if the journals of a run are among the files: they came with a folder."""
    for source in sources:
        if is_journal(source.path):
            run = Path(source.name).parent
            raise InputError(f"{run}: is a run, not a text; name texts, or go on with a run: lm train --resume {run}")


def is_prepared(corpus: Sequence[str]) -> bool:
    """Whether the corpus is a folder of tokens rather than text."""
    return len(corpus) == 1 and (Path(corpus[0]) / "manifest.json").is_file()

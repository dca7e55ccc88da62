"""From a corpus of text or of examples to a folder of tokens for training, described on stderr."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from cli.console.messages import fact, note
from cli.console.numbers import count, size
from cli.console.progress import encode_progress
from cli.flags.loading import load_tokenizer
from cli.preparing import note_repetition, trained_tokenizer
from lm.config.data import DataConfig
from lm.config.options import options
from lm.config.run import RunConfig
from lm.corpus.corpus import Corpus, survey
from lm.corpus.manifest import MANIFEST, Manifest
from lm.corpus.prepare import prepare_corpus
from lm.corpus.shards import read_manifest
from lm.data.kinds import verify
from lm.errors import InputError, UsageError
from lm.run_folder import is_journal
from lm.text.files import TextFile, text_files, text_size
from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer


class TextCorpus:
    """What the user names to train on: files of text or of examples, or a folder of tokens made of them before.

    Files are read once for all questions about them.

    Attributes:
        names: as the user gives them.
        prepared: the folder, if it is one of tokens.
    """

    holds_pairs: ClassVar[bool] = False

    def __init__(self, names: Sequence[str]) -> None:
        """Read nothing before it is asked for."""
        self.names = tuple(names)
        is_prepared = len(names) == 1 and (Path(names[0]) / MANIFEST).is_file()
        self.prepared = Path(names[0]) if is_prepared else None
        self._surveyed: Corpus | None = None

    def text_bytes(self, config: RunConfig) -> int:
        """UTF-8 bytes of text: as files were counted when they were prepared, by their sizes, or by reading them."""
        if self.prepared:
            return sum(split.bytes for split in read_manifest(self.prepared).splits.values())
        size = text_size(self.files(config))
        return self.survey(config.data).bytes if size is None else size

    def survey(self, config: DataConfig) -> Corpus:
        """The files after one pass over them; asked again, another fraction may be held out of what was read then."""
        if self._surveyed is None:
            files = self._files(config)
            _refuse_runs(files)
            self._surveyed = survey(files, config)
        return dataclasses.replace(self._surveyed, config=config)

    def data_config(self, config: DataConfig, *, typed: Mapping[str, Any]) -> DataConfig:
        """How the tokens are made: as the config says, but where they are made already, as they were.

        Args:
            config: what was given in all.
            typed: what of it was given in flags.

        Raises:
            InputError: examples are asked for, and the tokens are of text.
            UsageError: a flag contradicts what the tokens were made with.
        """
        if not self.prepared:
            return config
        folder, made = self.names[0], read_manifest(self.prepared).data
        if config.supervised and not made.supervised:
            raise InputError(f"{folder}: holds tokens of text, not examples; make it with lm prepare --supervised")
        for described in options(DataConfig):
            name, was = described.name, getattr(made, described.name)
            if name in typed and typed[name] != was:
                problem = f"the tokens in {folder} were made with {name} {was!r}, not {typed[name]!r}"
                raise UsageError(f"{problem}; prepare the text again, or leave it out ({described.flag})")
        return made

    def files(self, config: RunConfig) -> list[TextFile]:
        """The files that the names stand for."""
        return self._files(config.data)

    def _files(self, config: DataConfig) -> list[TextFile]:
        return text_files(self.names, field=config.field, supervised=config.supervised)


def prepare(corpus: TextCorpus, config: RunConfig, tokenizer: Path | None) -> tuple[Tokenizer, Path]:
    """The tokenizer and the folder of tokens: those of `lm prepare`, or made now; says what there is to train on."""
    found = _made_before if corpus.prepared else _made_now
    made, folder, manifest = found(corpus, config, tokenizer)
    _describe(manifest, made)
    is_trained_here = tokenizer is None and not corpus.prepared
    if is_trained_here and config.tokenizer.kind == "bpe" and made.vocab_size < config.tokenizer.vocab_size:
        fact("", f"(no more pairs occur often enough for a vocabulary of {config.tokenizer.vocab_size:,})")
    note_repetition(manifest)
    return made, folder


def _made_before(corpus: TextCorpus, _: RunConfig, tokenizer: Path | None) -> tuple[Tokenizer, Path, Manifest]:
    """The tokens in a folder that the user names, with the tokenizer that made them."""
    assert corpus.prepared
    folder = corpus.prepared
    manifest = read_manifest(folder)
    made = load_tokenizer(tokenizer or folder)
    if made.sha256 != manifest.tokenizer:
        advice = "prepare the corpus again"
        if tokenizer is not None:
            advice = f"prepare the corpus with it: lm prepare CORPUS --tokenizer {tokenizer}"
        problem = f"not the tokenizer that made the tokens in {folder}"
        raise InputError(f"{tokenizer or folder / FILE_NAME}: {problem}; {advice}")
    verify(folder, advice="prepare the corpus again")
    return made, folder, manifest


def _made_now(corpus: TextCorpus, config: RunConfig, tokenizer: Path | None) -> tuple[Tokenizer, Path, Manifest]:
    """Tokens in the cache, made of the files by a tokenizer that the user names, or by one trained on them."""
    given = None if tokenizer is None else load_tokenizer(tokenizer)
    surveyed = corpus.survey(config.data)
    made = given or trained_tokenizer(surveyed, config.tokenizer, has_mask=config.model.is_masked)
    with encode_progress() as progress:
        prepared = prepare_corpus(surveyed, made, progress=progress, with_labels=config.model.is_masked)
    note(f"tokens  {prepared.folder}{' (made before)' if prepared.reused else ''}")
    return made, prepared.folder, prepared.manifest


def _describe(manifest: Manifest, tokenizer: Tokenizer) -> None:
    """How much there is to train on, and how much is held out."""
    train, held_out = manifest.splits["train"], manifest.splits["validation"]
    if manifest.supervised:
        parts = f"{train.documents:,} examples to train on, {held_out.documents:,} held out"
    else:
        parts = f"{count(train.tokens)} tokens to train on, {count(held_out.tokens)} held out"
        parts += f", {train.bytes / train.tokens:.2f} bytes a token"
    fact("corpus", f"{size(train.bytes + held_out.bytes)}, vocabulary {tokenizer.vocab_size:,}: {parts}")


def _refuse_runs(files: Sequence[TextFile]) -> None:
    """Raise InputError if the journals of a run are among the files: they came with a folder."""
    for file in files:
        if is_journal(file.path):
            run = Path(file.name).parent
            raise InputError(f"{run}: is a run, not a text; name texts, or go on with a run: lm train --resume {run}")

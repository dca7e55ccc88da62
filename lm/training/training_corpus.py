"""Training corpora: the files of a specification, and the prepared data and tokenizers made from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lm.checkpoint import load_tokenizers
from lm.config.data import DataConfig, DataKind, FilesConfig
from lm.config.model import ModelConfig, check_heads_given
from lm.config.run_config import RunConfig
from lm.config.run_spec import DataFiles, RunSpec
from lm.config.settings import list_settings
from lm.corpus import store
from lm.corpus.encode import Tokenizers
from lm.corpus.prepare import prepare_corpus
from lm.corpus.store import Manifest
from lm.corpus.survey import (
    Corpus,
    scan_corpus,
    scan_parallel_corpus,
    train_tokenizers,
)
from lm.data.batch import TrainingData, batch_rows
from lm.data.pairs import PairLayout, Pairs
from lm.data.rows import Rows, find_label_completions, load_labels
from lm.data.windows import Masking, Windows
from lm.errors import InputError, UsageError
from lm.run_folder import find_checkpoint, find_tokenizer, is_log, is_pointer
from lm.text.find import find_text_files, total_text_bytes
from lm.text.parallel_text import ParallelText, find_parallel_texts
from lm.text.text_file import TextFile
from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer
from lm.tokenizer.training import SAMPLE_BYTES

ProgressCallback = Callable[[], AbstractContextManager[Callable[[int, int | None], None] | None]]
"""Opens a progress callback, which is called with tokenised bytes and total bytes (None if not known)."""
_AGAIN = "prepare the corpus again"


@dataclass(frozen=True)
class TrainingCorpus:
    """A prepared corpus with its tokenizers.

    Attributes:
        tokenizer: of the text; of the targets, if sources have their own.
        source_tokenizer: of the sources, if they have their own.
        spare_tokens: embedding rows of the model beyond the vocabulary, as many published models have.
    """

    folder: Path
    tokenizer: Tokenizer
    source_tokenizer: Tokenizer | None = None
    spare_tokens: int = 0

    @property
    def vocab_size(self) -> int:
        """Vocabulary size of the model, including spare tokens."""
        return self.tokenizer.vocab_size + self.spare_tokens

    @property
    def kind(self) -> DataKind:
        return Manifest.read(self.folder).kind

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the examples; raises the errors of `load_labels`."""
        return load_labels(self.folder)

    @cached_property
    def label_completions(self) -> tuple[str, ...]:
        """Completions of the examples, if they are labels."""
        return find_label_completions(self.folder)

    @property
    def has_merges(self) -> bool:
        """Whether the tokenizers of both sides have merges, as BPE dropout needs."""
        tokenizers = (self.tokenizer, self.source_tokenizer or self.tokenizer)
        return all(tokenizer.merge_rules is not None for tokenizer in tokenizers)

    @property
    def longest_conversation(self) -> int:
        """Tokens of the longest conversation; 0 for other data."""
        if self.kind != "conversations":
            return 0
        return max(int(store.open_split(self.folder, name).lengths.max(initial=0)) for name in store.SPLITS)


@dataclass(frozen=True)
class CorpusPrepared:
    """Event: the corpus has been tokenised.

    Attributes:
        reused: whether they were found in the cache; None if prepared data were given.
        notes: about files that were skipped or converted, and about the tokenizer.
    """

    corpus: TrainingCorpus
    manifest: Manifest
    reused: bool | None
    notes: tuple[str, ...] = ()


class CorpusFiles:
    """Files of text, examples or sentence pairs, or a folder of prepared tokens; files are read once.

    Attributes:
        prepared: the folder of prepared tokens, or None.
    """

    def __init__(self, files: DataFiles) -> None:
        """Name the files of a corpus, without reading them."""
        self._files, self.holds_pairs = files, files.are_pairs
        is_prepared = len(files.text) == 1 and store.is_store(Path(files.text[0]))
        self.prepared = Path(files.text[0]) if is_prepared else None
        self._survey: Corpus | None = None

    def detect_kind(self, spec: RunSpec) -> DataKind:
        """Return what the prepared tokens, or the records of the first file, are."""
        if self.prepared:
            return Manifest.read(self.prepared).kind
        if self.holds_pairs:
            return "pairs"
        data, reading = DataConfig(**spec.settings["data"]), FilesConfig(**spec.settings["files"])
        return self._find(data, reading)[0].kind

    def text_bytes(self, config: RunConfig) -> int:
        """Return the bytes of UTF-8 text, of both sides of pairs: from the manifest, file sizes, or by reading."""
        if self.prepared:
            return sum(split.bytes for split in Manifest.read(self.prepared).splits.values())
        texts = self._pairs(config) if self.holds_pairs else self._texts(config)
        size = total_text_bytes(file for text in texts for file in text.files)
        if size is not None:
            return size
        surveyed = self.survey(config)
        return surveyed.files_bytes if self.holds_pairs else surveyed.bytes

    def survey(self, config: RunConfig) -> Corpus:
        """Return the result of reading the files, which is cached; only the held-out fraction depends on `config`."""
        if self._survey is None and self.holds_pairs:
            named, held_out = self._files, []
            if named.validation_source and named.validation_target:
                sides = {"source": [named.validation_source], "target": [named.validation_target]}
                heads = [named.validation_heads] if named.validation_heads else ()
                held_out = find_parallel_texts(config.parallel, config.files, **sides, heads=heads)
            self._survey = scan_parallel_corpus(
                self._pairs(config), config.data, config.parallel, validation=held_out, reading=config.files
            )
        elif self._survey is None:
            self._survey = scan_corpus(self._texts(config), config.data)
        assert self._survey is not None
        return self._survey if self.holds_pairs else dataclasses.replace(self._survey, config=config.data)

    def _texts(self, config: RunConfig) -> Sequence[TextFile]:
        return self._find(config.data, config.files)

    def _find(self, data: DataConfig, reading: FilesConfig) -> Sequence[TextFile]:
        """Return the files of text; InputError if the logs of a run are among them."""
        files = find_text_files(self._files.text, data, reading)
        if runs := [file for file in files if is_log(file.path)]:
            raise InputError(f"{Path(runs[0].name).parent}: is a run, not a text")
        return files

    def _pairs(self, config: RunConfig) -> Sequence[ParallelText]:
        named = self._files
        return find_parallel_texts(
            config.parallel,
            config.files,
            source=named.source,
            target=named.target,
            pairs=named.pairs,
            heads=named.heads,
        )

    def data_config(self, config: DataConfig, *, typed: Mapping[str, Any]) -> DataConfig:
        """Return the data settings: of the config, or of prepared tokens those they were made with.

        Args:
            typed: settings given for this run alone.

        Raises:
            UsageError: given settings contradict those of the prepared tokens.
        """
        if not self.prepared:
            return config
        made_with = Manifest.read(self.prepared).config
        for option in list_settings("data", DataConfig):
            if typed.get(option.name, was := getattr(made_with, option.name)) != was:
                raise UsageError(f"the tokens in {self.prepared} were made with {option.name} {was!r}; {_AGAIN}")
        return made_with

    def prepare(
        self, config: RunConfig, tokenizer: Path | None, progress: ProgressCallback
    ) -> Generator[CorpusPrepared, None, TrainingCorpus]:
        """Find or create tokenizers and tokens.

        Args:
            tokenizer: a tokenizer.json, or a run whose tokenizers are used [default: train them].
            progress: of training a tokenizer and of tokenisation.
        """
        if self.prepared:
            manifest, loaded = Manifest.read(self.prepared), Tokenizer.load(find_tokenizer(tokenizer or self.prepared))
            if loaded.sha256 != manifest.tokenizer:
                raise InputError(
                    f"{tokenizer or self.prepared / FILE_NAME}: not the tokenizer of {self.prepared}; {_AGAIN}"
                )
            verify_data(self.prepared, key=manifest.key)
            corpus = TrainingCorpus(self.prepared, loaded)
            yield CorpusPrepared(corpus, manifest, reused=None)
            return corpus
        named = None if tokenizer is None else load_named_tokenizers(tokenizer, pairs=self.holds_pairs)
        surveyed, notes = self.survey(config), tuple[str, ...]()
        if named is None and config.tokenizer.kind == "bpe" and surveyed.files_bytes > SAMPLE_BYTES:
            notes = (*notes, f"the tokenizer was trained on a sample of {SAMPLE_BYTES / 1e6:.0f} MB")
        with progress() as report:
            parallel, has_mask = config.parallel if self.holds_pairs else None, config.model.is_masked
            target, source = named or train_tokenizers(surveyed, config.tokenizer, parallel, has_mask=has_mask)
            if surveyed.kind == "conversations":
                if config.model.is_masked:
                    raise UsageError("a masked model cannot reply, so it learns no conversations")
                if target.chat_template is None:
                    target = target.with_chat_template()
                    notes = (*notes, "the tokens of the chat template are added to the tokenizer") if named else notes
            prepared = prepare_corpus(surveyed, target, source_tokenizer=source, parallel=parallel, progress=report)
        corpus = TrainingCorpus(prepared.folder, target, source)
        yield CorpusPrepared(corpus, prepared.manifest, prepared.reused, (*notes, *surveyed.notes))
        return corpus


def load_named_tokenizers(path: Path, *, pairs: bool) -> Tokenizers:
    """Load the tokenizer of a file, folder or run; for pairs, those of both sides (one of a file is used for both)."""
    if not pairs or (path.is_file() and not is_pointer(path)):
        return Tokenizer.load(find_tokenizer(path)), None
    return load_tokenizers(path if (path / FILE_NAME).is_file() else find_checkpoint(path))


def no_progress() -> AbstractContextManager[None]:
    """Return a progress that reports nothing."""
    return nullcontext()


def open_data(folder: Path, config: RunConfig) -> TrainingData:
    """Open prepared data as batches for a run.

    Raises:
        InputError: the folder holds no prepared data, or too little.
        UsageError: the model cannot be trained on this kind of data.
    """
    manifest, model, training = Manifest.read(folder), config.model, config.training
    check_model_fits_data(model, pairs=manifest.kind == "pairs")
    if manifest.kind == "pairs":
        check_heads_given(model, are_given=manifest.has_dependency_heads)
        return Pairs(
            folder,
            config.parallel,
            batch_tokens=training.batch_tokens,
            rows=training.batch_size if training.batch_tokens is None else None,
            seed=training.seed,
            context=model.position_limit,
            layout=PairLayout(model.decoder_only, learns_source=training.source_loss > 0),
        )
    train, validation = (store.Split(folder, manifest, name) for name in store.SPLITS)
    context, rows, seed = model.context_length, batch_rows(config), training.seed
    if manifest.kind != "text":
        labels = model.labels if model.is_masked and manifest.kind == "examples" else ()
        return Rows(train, validation, context=context, rows=rows, seed=seed, labels=labels)
    masking = None
    if model.is_masked:
        masking = Masking(Tokenizer.load(folder / FILE_NAME), fraction=training.masking_rate)
    return Windows(train, validation, context=context, rows=rows, seed=seed, masking=masking)


def check_model_fits_data(config: ModelConfig, *, pairs: bool) -> None:
    """Raise UsageError unless the model can be trained on pairs, or on other data."""
    if pairs and not config.translates:
        raise UsageError("pairs need an encoder-decoder, or a decoder_only model of both sides")
    if config.translates and not pairs:
        raise UsageError("the model translates, so it needs sentence pairs")


def verify_data(folder: Path, *, key: str) -> None:
    """Raise InputError unless a folder has the prepared data of a key, with their checksums."""
    if not folder.is_dir():
        raise InputError(f"{folder}: the tokens of this run are gone; name its corpus again")
    manifest = Manifest.read(folder)
    if manifest.key != key:
        raise InputError(f"{folder}: not the tokens that this run was started on")
    store.verify_checksums(folder, manifest.sha256)

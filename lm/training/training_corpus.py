"""Training corpora: the files of a specification, and the prepared data and tokenizers made from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from lm.checkpoint import load_tokenizers
from lm.config.data import DataConfig, DataKind, FilesConfig
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.config.run_spec import DataFiles, RunSpec
from lm.config.settings import list_settings
from lm.corpus import store
from lm.corpus.prepare import prepare_corpus
from lm.corpus.store import MANIFEST, Manifest
from lm.corpus.survey import (
    Corpus,
    load_or_train_pair_tokenizers,
    load_or_train_tokenizer,
    scan_corpus,
    scan_parallel_corpus,
)
from lm.data.labels import LabelCounts, count_labels, find_label_completions, load_labels
from lm.data.pair_data import PairData
from lm.data.rows import ConversationData, ExampleData, LabelledData
from lm.data.training_data import TrainingData
from lm.data.windows import MaskedWindowData, WindowData
from lm.errors import InputError, UsageError
from lm.run_folder import find_checkpoint, find_tokenizer, is_log, is_pointer
from lm.text.find import find_text_files, total_text_bytes
from lm.text.parallel_text import ParallelText, find_parallel_texts
from lm.text.text_file import TextFile
from lm.tokenizer.chat_template import CHAT_TOKENS
from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer
from lm.tokenizer.training import SAMPLE_BYTES

Tokenizers = tuple[Tokenizer, Tokenizer | None]
"""Tokenizer of the targets, and of the sources if they have their own."""
ProgressCallback = Callable[[], AbstractContextManager[Callable[[int, int | None], None] | None]]
"""Opens a progress callback, which is called with tokenised bytes and total bytes (None if not known)."""


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

    def check_merges(self) -> None:
        """Raise UsageError unless BPE dropout is possible on both sides."""
        if not self.has_merges:
            side = "tokenizer" if self.source_tokenizer is None else "tokenizer of one side"
            problem = f"BPE dropout leaves out merges, and the {side} has none: leave it out"
            raise UsageError(problem)


@dataclass(frozen=True)
class TokenizerSampling:
    """Event: a tokenizer is about to be trained on a sample of a large corpus."""

    bytes: int
    corpus_bytes: int


@dataclass(frozen=True)
class CorpusPrepared:
    """Event: the corpus has been tokenised.

    Attributes:
        reused: whether they were found in the cache; None if prepared data were given.
        trained: requested vocabulary size, if a tokenizer was trained.
        labels: number of examples per label, for labelled examples.
        notes: about files that were skipped or converted.
    """

    corpus: TrainingCorpus
    manifest: Manifest
    reused: bool | None
    trained: int | None = None
    labels: LabelCounts | None = None
    notes: tuple[str, ...] = ()


PreparationEvents = Generator[TokenizerSampling | CorpusPrepared, None, TrainingCorpus]


_TOKENS_ADDED = (
    f"the tokenizer has no chat template: {', '.join(CHAT_TOKENS)} are added, and their embeddings begin with the "
    "mean of the others"
)


class TextCorpus:
    """Files of text or examples, or a folder of prepared tokens; files are read once.

    Attributes:
        names: as given by the user.
        prepared: the folder of prepared tokens, or None.
    """

    holds_pairs: ClassVar[bool] = False

    def __init__(self, files: DataFiles) -> None:
        self.names = files.text
        is_prepared = len(self.names) == 1 and (Path(self.names[0]) / MANIFEST).is_file()
        self.prepared = Path(self.names[0]) if is_prepared else None
        self._survey: Corpus | None = None

    def detect_kind(self, spec: RunSpec) -> DataKind:
        """Return what the prepared tokens, or the records of the first file, are."""
        if self.prepared:
            return Manifest.read(self.prepared).kind
        data, reading = DataConfig(**spec.settings["data"]), FilesConfig(**spec.settings["files"])
        return self._find_files(data, reading)[0].kind

    def text_bytes(self, config: RunConfig) -> int:
        """Return the bytes of UTF-8 text: from the manifest, from file sizes, or by reading."""
        if self.prepared:
            return sum(split.bytes for split in Manifest.read(self.prepared).splits.values())
        size = total_text_bytes(self.files(config))
        return self.survey(config).bytes if size is None else size

    def survey(self, config: RunConfig) -> Corpus:
        """Return the result of reading the files, which is cached; only the held-out fraction depends on `config`."""
        if self._survey is None:
            self._survey = scan_corpus(self.files(config), config.data)
        return dataclasses.replace(self._survey, config=config.data)

    def data_config(self, config: DataConfig, *, typed: Mapping[str, Any]) -> DataConfig:
        """Return the data settings: of the config, or of prepared tokens those they were made with.

        Args:
            typed: settings given for this run alone.

        Raises:
            UsageError: given settings contradict those of the prepared tokens.
        """
        if not self.prepared:
            return config
        folder, prepared_data = self.names[0], Manifest.read(self.prepared).config
        for option in list_settings("data", DataConfig):
            name, was = option.name, getattr(prepared_data, option.name)
            if name in typed and typed[name] != was:
                problem = f"the tokens in {folder} were made with {name} {was!r}, not {typed[name]!r}"
                raise UsageError(f"{problem}; prepare the text again, or leave it out")
        return prepared_data

    def files(self, config: RunConfig) -> list[TextFile]:
        return self._find_files(config.data, config.files)

    def _find_files(self, data: DataConfig, reading: FilesConfig) -> list[TextFile]:
        """Return the files; InputError if the logs of a run are among them."""
        files = find_text_files(self.names, data, reading)
        for file in files:
            if is_log(file.path):
                raise InputError(f"{Path(file.name).parent}: is a run, not a text; name texts, or resume the run")
        return files

    def prepare(self, config: RunConfig, tokenizer: Path | None, progress: ProgressCallback) -> PreparationEvents:
        """Find or create tokenizer and tokens.

        Args:
            tokenizer: a tokenizer.json, or a run whose tokenizer is used [default: train one].
            progress: of training a tokenizer and of tokenisation.
        """
        if self.prepared:
            corpus, manifest = self._load_prepared(self.prepared, tokenizer)
            yield CorpusPrepared(corpus, manifest, reused=None, labels=_count_labels(corpus, config))
            return corpus
        loaded = None if tokenizer is None else Tokenizer.load(find_tokenizer(tokenizer))
        surveyed, is_trained = self.survey(config), loaded is None
        notes = [*surveyed.notes]
        if is_trained and config.tokenizer.kind == "bpe" and surveyed.files_bytes > SAMPLE_BYTES:
            yield TokenizerSampling(SAMPLE_BYTES, surveyed.files_bytes)
        with progress() as report:
            trained = loaded or load_or_train_tokenizer(surveyed, config.tokenizer, has_mask=config.model.is_masked)
            if surveyed.kind == "conversations":
                if config.model.is_masked:
                    raise UsageError("a masked model cannot reply, so it learns no conversations")
                if trained.chat_template is None:
                    if loaded is not None:
                        notes.append(_TOKENS_ADDED)
                    trained = trained.with_chat_template()
            prepared = prepare_corpus(surveyed, trained, progress=report)
        vocab_size = config.tokenizer.vocab_size if is_trained and config.tokenizer.kind == "bpe" else None
        corpus = TrainingCorpus(prepared.folder, trained)
        yield CorpusPrepared(
            corpus,
            prepared.manifest,
            reused=prepared.reused,
            trained=vocab_size,
            labels=_count_labels(corpus, config),
            notes=tuple(notes),
        )
        return corpus

    def _load_prepared(self, folder: Path, tokenizer: Path | None) -> tuple[TrainingCorpus, Manifest]:
        """Load prepared tokens and their tokenizer; InputError if another tokenizer is named."""
        manifest, loaded = Manifest.read(folder), Tokenizer.load(find_tokenizer(tokenizer or folder))
        if loaded.sha256 != manifest.tokenizer:
            advice = "prepare the corpus again"
            if tokenizer is not None:
                advice = f"prepare the corpus with {tokenizer}"
            problem = f"not the tokenizer that made the tokens in {folder}"
            raise InputError(f"{tokenizer or folder / FILE_NAME}: {problem}; {advice}")
        verify_data(folder, advice="prepare the corpus again")
        return TrainingCorpus(folder, loaded), manifest


class PairCorpus:
    """Files of a parallel corpus; they are read once."""

    holds_pairs: ClassVar[bool] = True
    prepared: ClassVar[None] = None

    def __init__(self, files: DataFiles) -> None:
        self._files = files
        self._survey: Corpus | None = None

    def detect_kind(self, spec: RunSpec) -> DataKind:  # noqa: ARG002 (as that of TextCorpus)
        return "pairs"

    def text_bytes(self, config: RunConfig) -> int:
        """Return the UTF-8 bytes of both sides, without separate validation files: from sizes, or by reading."""
        known = total_text_bytes(file for text in self.files(config) for file in text.files)
        return self.survey(config).files_bytes if known is None else known

    def survey(self, config: RunConfig) -> Corpus:
        """Return the result of reading the files, which is cached."""
        if self._survey is None:
            texts = self.files(config)
            named = self._files
            held_out = find_parallel_texts(
                config.parallel,
                config.files,
                source=[named.validation_source] if named.validation_source else (),
                target=[named.validation_target] if named.validation_target else (),
                heads=[named.validation_heads] if named.validation_heads else (),
            )
            self._survey = scan_parallel_corpus(
                texts, config.data, config.parallel, validation=held_out, reading=config.files
            )
        return self._survey

    def files(self, config: RunConfig) -> list[ParallelText]:
        named = self._files
        return find_parallel_texts(
            config.parallel,
            config.files,
            source=named.source,
            target=named.target,
            pairs=named.pairs,
            heads=named.heads,
        )

    def prepare(self, config: RunConfig, tokenizer: Path | None, progress: ProgressCallback) -> PreparationEvents:
        """Find or create tokenizers and prepared pairs; see `TextCorpus.prepare`.

        A tokenizer.json is used for both sides.
        """
        surveyed = self.survey(config)
        with progress() as report:
            if tokenizer is None:
                tokenizers = load_or_train_pair_tokenizers(surveyed, config.tokenizer, config.parallel)
            else:
                tokenizers = _load_pair_tokenizers(tokenizer)
            prepared = prepare_corpus(
                surveyed, tokenizers[0], source_tokenizer=tokenizers[1], parallel=config.parallel, progress=report
            )
        corpus = TrainingCorpus(prepared.folder, *tokenizers)
        yield CorpusPrepared(corpus, prepared.manifest, reused=prepared.reused, notes=tuple(surveyed.notes))
        return corpus


def open_corpus(files: DataFiles) -> TextCorpus | PairCorpus:
    """Return the corpus of some files, without reading them."""
    return PairCorpus(files) if files.are_pairs else TextCorpus(files)


def load_named_tokenizers(path: Path, *, pairs: bool) -> Tokenizers:
    """Load the tokenizer of a file, folder or run; for pairs, those of both sides."""
    return _load_pair_tokenizers(path) if pairs else (Tokenizer.load(find_tokenizer(path)), None)


def _load_pair_tokenizers(path: Path) -> Tokenizers:
    """Load the tokenizers of both sides from a file, folder or run."""
    if path.is_file() and not is_pointer(path):
        return Tokenizer.load(find_tokenizer(path)), None
    return load_tokenizers(path if (path / FILE_NAME).is_file() else find_checkpoint(path))


def _count_labels(corpus: TrainingCorpus, config: RunConfig) -> LabelCounts | None:
    """Count the examples per label, if the run learns labels."""
    is_labelled = corpus.kind == "examples" and (config.model.is_masked or corpus.label_completions)
    return count_labels(corpus.folder) if is_labelled else None


def no_progress() -> AbstractContextManager[None]:
    """Return a progress that reports nothing."""
    return nullcontext()


DATA_CLASSES: dict[str, tuple[type[TrainingData], type[TrainingData] | None]] = {
    "text": (WindowData, MaskedWindowData),
    "examples": (ExampleData, LabelledData),
    "conversations": (ConversationData, None),
    "pairs": (PairData, None),
}
"""Training data classes by the kind in the manifest: for causal and translation models, and for masked models."""


def open_data(folder: Path, config: RunConfig) -> TrainingData:
    """Open prepared data as batches for a run.

    Raises:
        InputError: the folder holds no prepared data, or too little.
        UsageError: the model cannot be trained on this kind of data.
    """
    data, masked = DATA_CLASSES[Manifest.read(folder).kind]
    check_model_fits_data(config.model, pairs=data.holds_pairs)
    return (masked or data if config.model.is_masked else data).open(folder, config)


def check_model_fits_data(config: ModelConfig, *, pairs: bool) -> None:
    """Raise UsageError unless the model can be trained on pairs, or on other data."""
    if pairs and not config.translates:
        raise UsageError(
            "pairs need an encoder-decoder, as the preset translation has, or a decoder-only model of both sides",
        )
    if config.translates and not pairs:
        kind = "an encoder-decoder" if config.is_encoder_decoder else "a decoder for translation"
        raise UsageError(f"the model is {kind}, which needs pairs of texts")


def data_key(folder: Path) -> str:
    """Return the hash of what prepared data were made from; InputError if the folder holds none."""
    return Manifest.read(folder).key


def verify_data(folder: Path, *, advice: str) -> None:
    """Raise InputError with `advice` if prepared data don't match their checksums."""
    store.verify_checksums(folder, Manifest.read(folder).sha256, advice=advice)


def source_files(folder: Path) -> list[str]:
    """Return the files that prepared data were made from; InputError if the folder holds none."""
    return [record.path for record in Manifest.read(folder).sources]

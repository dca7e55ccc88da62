"""What a run learns from: the files of a specification, the prepared data and tokenizers made of them, and batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from lm.checkpoint import load_tokenizers
from lm.config.data import DataConfig
from lm.config.model import ModelConfig
from lm.config.options import list_options
from lm.config.run import RunConfig
from lm.config.run_spec import DataFiles
from lm.corpus import prepared_folder
from lm.corpus.corpus import Corpus, scan_corpus, train_tokenizer
from lm.corpus.manifest import MANIFEST, Manifest, PairManifest, PartitionManifest, PreparedManifest
from lm.corpus.parallel_corpus import ParallelCorpus
from lm.corpus.parallel_corpus import scan_parallel_corpus as survey_pairs
from lm.corpus.prepare_corpus import prepare_corpus
from lm.corpus.prepare_pairs import prepare_pairs, train_tokenizers
from lm.corpus.shards import read_manifest
from lm.data.examples import ExampleData
from lm.data.labels import LabelCounts, LabelledData, label_completions, label_counts, labels_of
from lm.data.pairs import PairData
from lm.data.training_data import TrainingData
from lm.data.windows import MaskedWindowData, WindowData
from lm.errors import Advice, InputError, UsageError
from lm.run_folder import find_checkpoint, find_tokenizer, is_journal
from lm.text.files import TextFile, TextFiles, find_text_files, total_text_bytes
from lm.text.parallel import ParallelText, find_parallel_texts
from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer
from lm.tokenizer.training import SAMPLE_BYTES

Tokenizers = tuple[Tokenizer, Tokenizer | None]
"""Of targets, and of sources if they have their own."""
ProgressCallback = Callable[[], AbstractContextManager[Callable[[int, int | None], None] | None]]
"""Opens something that is told how many bytes are tokenized, and of how many, if that is known."""


@dataclass(frozen=True)
class TrainingCorpus:
    """A corpus that is ready to be trained on.

    Attributes:
        folder: the prepared data.
        tokenizer: what made the tokens; those of the targets, where sources have a tokenizer of their own.
        source_tokenizer: what made the tokens of the sources, if that is another one.
        spare_tokens: ids that the model has beyond the tokenizer's, as many published ones that a run can start from.
    """

    folder: Path
    tokenizer: Tokenizer
    source_tokenizer: Tokenizer | None = None
    spare_tokens: int = 0

    @property
    def vocab_size(self) -> int:
        """How many tokens a model knows that learns from this, spare ones included."""
        return self.tokenizer.vocab_size + self.spare_tokens

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of its examples; errors as of `labels_of`."""
        return labels_of(self.folder)

    @cached_property
    def label_completions(self) -> tuple[str, ...]:
        """The completions of its examples, if they are labels; see `label_completions`."""
        return label_completions(self.folder)

    @property
    def has_merges(self) -> bool:
        """Whether BPE dropout has merges to leave out on both sides."""
        tokenizers = (self.tokenizer, self.source_tokenizer or self.tokenizer)
        return all(tokenizer.merge_rules is not None for tokenizer in tokenizers)

    def check_merges(self) -> None:
        """UsageError unless BPE dropout has merges to leave out on both sides."""
        if not self.has_merges:
            side = "tokenizer" if self.source_tokenizer is None else "tokenizer of one side"
            problem = f"BPE dropout leaves out merges, and the {side} has none: leave it out"
            raise UsageError(problem, settings=("bpe_dropout",))


@dataclass(frozen=True)
class TokenizerSampled:
    """A tokenizer is about to be trained on a sample of a large corpus.

    Attributes:
        bytes: of the sample.
        corpus_bytes: of all of the corpus.
    """

    bytes: int
    corpus_bytes: int


@dataclass(frozen=True)
class CorpusPrepared:
    """The corpus of a run is tokenized.

    Attributes:
        corpus: the data and their tokenizers.
        manifest: of the data.
        reused: whether they were there before; None where they were named as the corpus.
        trained: the vocabulary size that was asked for where a tokenizer was trained on the corpus, else None.
        seen_in_training: the fraction of the held-out pairs that are among those to train on.
        copies: names of sources that are the same text as their targets.
        labels: how many examples have each label, if they have labels.
        notes: what was left out of folders, and made of files, that a person might not expect.
    """

    corpus: TrainingCorpus
    manifest: Manifest | PairManifest
    reused: bool | None
    trained: int | None = None
    seen_in_training: float = 0.0
    copies: tuple[str, ...] = ()
    labels: LabelCounts | None = None
    notes: tuple[Advice, ...] = ()


Preparation = Generator[TokenizerSampled | CorpusPrepared, None, TrainingCorpus]


class TextCorpus:
    """What a run learns from: files of text or of examples, or a folder of tokens made of them before.

    Files are read once for all questions about them.

    Attributes:
        names: as the user gives them.
        prepared: the folder, if it is one of tokens.
    """

    holds_pairs: ClassVar[bool] = False

    def __init__(self, files: DataFiles) -> None:
        """Read nothing before it is asked for."""
        self.names = files.text
        is_prepared = len(self.names) == 1 and (Path(self.names[0]) / MANIFEST).is_file()
        self.prepared = Path(self.names[0]) if is_prepared else None
        self._surveyed: Corpus | None = None
        self._notes: list[Advice] = []

    def text_bytes(self, config: RunConfig) -> int:
        """UTF-8 bytes of text: as files were counted when they were prepared, by their sizes, or by reading them."""
        if self.prepared:
            return sum(split.bytes for split in read_manifest(self.prepared).splits.values())
        size = total_text_bytes(self.files(config))
        return self.survey(config).bytes if size is None else size

    def survey(self, config: RunConfig) -> Corpus:
        """The files after one pass over them; asked again, another fraction may be held out of what was read then."""
        if self._surveyed is None:
            files = self.files(config)
            _refuse_runs(files)
            self._surveyed, self._notes = scan_corpus(files, config.data), files.notes
        return dataclasses.replace(self._surveyed, config=config.data)

    def data_config(self, config: DataConfig, *, typed: Mapping[str, Any]) -> DataConfig:
        """How the tokens are made: as the config says, but where they are made already, as they were.

        Args:
            config: what was given in all.
            typed: what of it was given for this run alone.

        Raises:
            InputError: examples are asked for, and the tokens are of text.
            UsageError: what was given contradicts what the tokens were made with.
        """
        if not self.prepared:
            return config
        folder, made = self.names[0], read_manifest(self.prepared).data
        if config.supervised and not made.supervised:
            raise InputError(
                f"{folder}: holds tokens of text, not examples; prepare them as examples", settings=("supervised",)
            )
        for described in list_options(DataConfig):
            name, was = described.name, getattr(made, described.name)
            if name in typed and typed[name] != was:
                problem = f"the tokens in {folder} were made with {name} {was!r}, not {typed[name]!r}"
                raise UsageError(f"{problem}; prepare the text again, or leave it out", settings=(name,))
        return made

    def files(self, config: RunConfig) -> TextFiles:
        """The files that the names stand for."""
        return find_text_files(self.names, config.data, config.files)

    def prepare(self, config: RunConfig, tokenizer: Path | None, progress: ProgressCallback) -> Preparation:
        """Find or make the tokenizer and the tokens.

        Args:
            config: of the run.
            tokenizer: a tokenizer.json or a run, whose tokenizer is used; without it, one is trained.
            progress: is told how far tokenizing is.
        """
        if self.prepared:
            corpus, manifest = self._prepared_before(self.prepared, tokenizer)
            yield CorpusPrepared(corpus, manifest, reused=None, labels=_labels(corpus, config))
            return corpus
        given = None if tokenizer is None else Tokenizer.load(find_tokenizer(tokenizer))
        surveyed, is_trained = self.survey(config), given is None
        if is_trained and config.tokenizer.kind == "bpe" and surveyed.files_bytes > SAMPLE_BYTES:
            yield TokenizerSampled(SAMPLE_BYTES, surveyed.files_bytes)
        made = given or train_tokenizer(surveyed, config.tokenizer, has_mask=config.model.is_masked)
        with progress() as told:
            prepared = prepare_corpus(surveyed, made, progress=told, with_labels=config.model.is_masked)
        notes = (*self._notes, *surveyed.notes)
        wanted = config.tokenizer.vocab_size if is_trained and config.tokenizer.kind == "bpe" else None
        corpus = TrainingCorpus(prepared.folder, made)
        yield CorpusPrepared(
            corpus,
            prepared.manifest,
            reused=prepared.reused,
            trained=wanted,
            labels=_labels(corpus, config),
            notes=notes,
        )
        return corpus

    def _prepared_before(self, folder: Path, tokenizer: Path | None) -> tuple[TrainingCorpus, Manifest]:
        """The tokens in a folder, with the tokenizer that made them; InputError if it is another one than is named."""
        manifest, made = read_manifest(folder), Tokenizer.load(find_tokenizer(tokenizer or folder))
        if made.sha256 != manifest.tokenizer:
            advice = "prepare the corpus again"
            if tokenizer is not None:
                advice = f"prepare the corpus with {tokenizer}"
            problem = f"not the tokenizer that made the tokens in {folder}"
            raise InputError(f"{tokenizer or folder / FILE_NAME}: {problem}; {advice}")
        verify(folder, advice="prepare the corpus again")
        return TrainingCorpus(folder, made), manifest


class PairCorpus:
    """The sentence pairs that a run learns from; they are read once for all questions about them."""

    holds_pairs: ClassVar[bool] = True
    prepared: ClassVar[None] = None

    def __init__(self, files: DataFiles) -> None:
        """Read nothing before it is asked for."""
        self._named = files
        self._surveyed: ParallelCorpus | None = None

    def text_bytes(self, config: RunConfig) -> int:
        """UTF-8 bytes of both sides, without the validation split's own files: by the files' sizes, or by reading."""
        known = total_text_bytes(file for text in self.files(config) for file in text.files)
        return sum(found.bytes for found in self.survey(config).texts) if known is None else known

    def survey(self, config: RunConfig) -> ParallelCorpus:
        """The files after one pass over them."""
        if self._surveyed is None:
            texts = self.files(config)
            named = self._named
            held_out = find_parallel_texts(
                config.parallel,
                config.files,
                source=[named.validation_source] if named.validation_source else (),
                target=[named.validation_target] if named.validation_target else (),
                heads=[named.validation_heads] if named.validation_heads else (),
            )
            self._surveyed = survey_pairs(
                texts, config.data, config.parallel, validation=held_out, reading=config.files
            )
        return self._surveyed

    def files(self, config: RunConfig) -> list[ParallelText]:
        """The sources and targets."""
        named = self._named
        return find_parallel_texts(
            config.parallel,
            config.files,
            source=named.source,
            target=named.target,
            pairs=named.pairs,
            heads=named.heads,
        )

    def prepare(self, config: RunConfig, tokenizer: Path | None, progress: ProgressCallback) -> Preparation:
        """Find or make the tokenizers and the prepared pairs; arguments as of `TextCorpus.prepare`.

        A tokenizer.json is for both sides.
        """
        surveyed = self.survey(config)
        if tokenizer is None:
            made = train_tokenizers(surveyed, config.tokenizer, config.parallel)
        else:
            made = pair_tokenizers(tokenizer)
        with progress() as told:
            prepared = prepare_pairs(surveyed, made[0], config.parallel, source_tokenizer=made[1], progress=told)
        corpus = TrainingCorpus(prepared.folder, *made)
        yield CorpusPrepared(
            corpus,
            prepared.manifest,
            reused=prepared.reused,
            seen_in_training=surveyed.seen_in_training,
            copies=tuple(surveyed.copies),
        )
        return corpus


def corpus_of(files: DataFiles) -> TextCorpus | PairCorpus:
    """The corpus of some files, of which nothing has been read."""
    return PairCorpus(files) if files.are_pairs else TextCorpus(files)


def tokenizers_of(path: Path, *, pairs: bool) -> Tokenizers:
    """The tokenizer that a person names for a text, or those for the two sides of pairs."""
    return pair_tokenizers(path) if pairs else (Tokenizer.load(find_tokenizer(path)), None)


def pair_tokenizers(path: Path) -> Tokenizers:
    """The tokenizers of a file, of a folder that has some, or of a run."""
    if path.is_file():
        return Tokenizer.load(find_tokenizer(path)), None
    return load_tokenizers(path if (path / FILE_NAME).is_file() else find_checkpoint(path))


def _labels(corpus: TrainingCorpus, config: RunConfig) -> LabelCounts | None:
    """How many examples have each label, if a run learns labels."""
    if not config.data.supervised or not (config.model.is_masked or corpus.label_completions):
        return None
    return label_counts(corpus.folder)


def without_progress() -> AbstractContextManager[None]:
    """Opens nothing that would be told of progress."""
    return nullcontext()


def _refuse_runs(files: list[TextFile]) -> None:
    """Raise InputError if the journals of a run are among the files: they came with a folder."""
    for file in files:
        if is_journal(file.path):
            run = Path(file.name).parent
            raise InputError(f"{run}: is a run, not a text; name texts, or resume the run", settings=(f"resume={run}",))


KINDS: dict[str, tuple[type[TrainingData], type[TrainingData] | None]] = {
    "text": (WindowData, MaskedWindowData),
    "examples": (ExampleData, LabelledData),
    "pairs": (PairData, None),
}
"""By the kind that a manifest says: the data of a model that continues texts or translates, and of a masked one."""


def open_data(folder: Path, config: RunConfig) -> TrainingData:
    """The data in a folder, batched as a run wants it.

    Args:
        folder: of prepared data of any kind.
        config: of the run; its model must be one for such data.

    Raises:
        InputError: the folder holds no prepared data, or too little of it.
        UsageError: the model is not one for this data.
    """
    kind = PreparedManifest.read(folder).kind
    if kind not in KINDS:
        raise InputError(f"{folder}: holds {PartitionManifest.noun}; join all of them first")
    data, masked = KINDS[kind]
    check_model(config.model, pairs=data.holds_pairs)
    return (masked or data if config.model.is_masked else data).open(folder, config)


def check_model(config: ModelConfig, *, pairs: bool) -> None:
    """UsageError unless a model of this kind can be trained on pairs, or on anything else."""
    if pairs and not config.translates:
        raise UsageError(
            "pairs need an encoder-decoder, as the preset translation has, or one stack that reads both sides",
            settings=["n_encoder_layers", "preset=translation", "decoder_only"],
        )
    if config.translates and not pairs:
        kind = "an encoder-decoder" if config.is_encoder_decoder else "a decoder for translation"
        raise UsageError(f"the model is {kind}, which needs pairs of texts", settings=["source", "target"])


def data_key(folder: Path) -> str:
    """A hash of what the data in a folder was made from; InputError if it holds none."""
    return PreparedManifest.read(folder).key


def verify(folder: Path, *, advice: str, settings: Sequence[str] = ()) -> None:
    """InputError with `advice` and `settings` to change if the data in a folder are damaged, by their checksums."""
    prepared_folder.verify_checksums(folder, PreparedManifest.read(folder).sha256, advice=advice, settings=settings)


def data_files(folder: Path) -> list[str]:
    """The files that the data in a folder was made from, as the user named them; InputError if it holds none."""
    return [record.path for record in PreparedManifest.read(folder).sources]

"""Training corpora: the files of a specification, and the prepared data and tokenizers made from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lm import corpus
from lm.checkpoint import load_tokenizers
from lm.config.model import ModelConfig, check_heads_given
from lm.config.run_config import DataKind, RunConfig
from lm.config.run_spec import DataFiles
from lm.corpus import Manifest
from lm.corpus.encode import Tokenizers
from lm.corpus.prepare import prepare_corpus
from lm.corpus.survey import Corpus, scan_corpus, train_tokenizers
from lm.data import TrainingData, batch_rows
from lm.data.pairs import PairLayout, Pairs
from lm.data.windows import Masking, Rows, Windows, find_label_completions, load_labels
from lm.errors import InputError, UsageError
from lm.run_folder import find_checkpoint
from lm.text.parallel_text import Source, find_sources
from lm.tokenizer import FILE_NAME, Tokenizer

ProgressCallback = Callable[[], AbstractContextManager[Callable[[int, int | None], None] | None]]
"""Opens a progress callback, which is called with tokenised bytes and total bytes (None if not known)."""


@dataclass(frozen=True)
class TrainingCorpus:
    """A prepared corpus with its tokenizers; the event that it has been tokenised.

    Attributes:
        tokenizer: of the text; of the targets, if sources have their own.
        source_tokenizer: of the sources, if they have their own.
        spare_tokens: embedding rows of the model beyond the vocabulary, as many published models have.
        reused: whether the tokens were found in the cache, or given.
        notes: about files that were skipped or converted.
    """

    folder: Path
    tokenizer: Tokenizer
    source_tokenizer: Tokenizer | None = None
    spare_tokens: int = 0
    reused: bool = False
    notes: Sequence[str] = ()

    @cached_property
    def manifest(self) -> Manifest:
        return Manifest.read(self.folder)

    @property
    def kind(self) -> DataKind:
        return self.manifest.kind

    @property
    def vocab_size(self) -> int:
        """Vocabulary size of the model, including spare tokens."""
        return self.tokenizer.vocab_size + self.spare_tokens

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
        return max(int(corpus.open_split(self.folder, name).lengths.max(initial=0)) for name in corpus.SPLITS)


class CorpusFiles:
    """The files of a corpus, or a folder of prepared tokens.

    Attributes:
        prepared: the folder of prepared tokens, or None.
        kind: what the prepared tokens, or the records of the first file, are.
    """

    def __init__(self, files: DataFiles, config: RunConfig) -> None:
        """Find the files, and read the first row of the first one; InputError if one is missing."""
        stores = [name for name in files.text if corpus.is_store(Path(name))]
        if stores and len(files.names) > 1:
            raise UsageError(f"{stores[0]}: prepared tokens are a corpus of their own: name nothing else")
        self.prepared = Path(stores[0]) if stores else None
        self._config, self._sources, self._held_out = config, list[Source](), list[Source]()
        if self.prepared:
            self.kind = Manifest.read(self.prepared).kind
        else:
            sides: dict[str, Sequence[str]] = {"source": files.source, "target": files.target, "heads": files.heads}
            self._sources = find_sources(files.text, config.data, config.files, **sides)
            self.kind = self._sources[0].kind
            held_out = (files.validation_source, files.validation_target, files.validation_heads)
            sides = {side: [name] for side, name in zip(sides, held_out, strict=True) if name}
            self._held_out = find_sources((), None, config.files, **sides)

    @property
    def text_bytes(self) -> int:
        """Bytes of UTF-8 text, of both sides of pairs."""
        if self.prepared:
            return sum(split.bytes + split.source_bytes for split in Manifest.read(self.prepared).splits.values())
        return self.survey.files_bytes

    @cached_property
    def survey(self) -> Corpus:
        """The result of reading the files once."""
        return scan_corpus(self._sources, self._config.data, self._config.parallel, held_out=self._held_out)

    def prepare(self, config: RunConfig, tokenizer: Path | None, progress: ProgressCallback) -> TrainingCorpus:
        """Find or create tokenizers and tokens.

        Args:
            tokenizer: a tokenizer.json, or a run whose tokenizers are used [default: train them]; prepared tokens have
                their own.
            progress: of training a tokenizer and of tokenisation.
        """
        if self.prepared:
            manifest = Manifest.read(self.prepared)
            verify_data(self.prepared, key=manifest.key)
            return TrainingCorpus(self.prepared, *corpus.open_tokenizers(self.prepared, manifest), reused=True)
        surveyed, parallel = dataclasses.replace(self.survey, config=config.data), config.parallel
        with progress() as report:
            if tokenizer is not None:
                target, source = _load_named_tokenizers(tokenizer, pairs=self.kind == "pairs")
            else:
                has_mask = config.model.is_masked
                target, source = train_tokenizers(surveyed, config.tokenizer, parallel, has_mask=has_mask)
            if self.kind == "conversations":
                if config.model.is_masked:
                    raise UsageError("a masked model cannot reply, so it learns no conversations")
                target = target.with_chat_template() if target.chat_template is None else target
            made = prepare_corpus(surveyed, target, source_tokenizer=source, parallel=parallel, progress=report)
        return TrainingCorpus(made.folder, target, source, reused=made.reused, notes=surveyed.notes)


def _load_named_tokenizers(path: Path, *, pairs: bool) -> Tokenizers:
    """Load the tokenizer of a file, folder or run; for pairs, those of both sides (one of a file is used for both)."""
    if path.is_file():
        return Tokenizer.load(path), None
    target, source = load_tokenizers(path if (path / FILE_NAME).is_file() else find_checkpoint(path))
    return target, source if pairs else None


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
            layout=PairLayout(model.decoder_only),
        )
    train, validation = (corpus.Split(folder, manifest, name) for name in corpus.SPLITS)
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
    if pairs != config.translates:
        raise UsageError("a model that translates needs sentence pairs, and they need such a model")


def verify_data(folder: Path, *, key: str) -> None:
    """Raise InputError unless a folder has the prepared data of a key, with their checksums."""
    if not folder.is_dir() or (manifest := Manifest.read(folder)).key != key:
        raise InputError(f"{folder}: not the tokens that this run was started on; name its corpus again")
    corpus.verify_checksums(folder, manifest.sha256)

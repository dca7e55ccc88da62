"""The front door for Python: load a run and use it, or train one. The commands go through the same objects.

`import lm` offers these names without importing torch before one of them is used; docs/python.md shows them at work.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Unpack

import torch
from torch import Tensor

from lm.checkpoint import LoadedModel
from lm.checkpoint import merge as write_merged
from lm.config.decoding import ClassificationConfig
from lm.config.evaluation import AttentionUnit, PerplexityConfig
from lm.config.export import ExportConfig, ExportDtype, ExportSystem
from lm.config.hardware import Device, DType, HardwareConfig, read_threads_variable
from lm.config.keywords import (
    FileOptions,
    PathLike,
    RunOptions,
    SamplingOptions,
    TranslationOptions,
    build_files_config,
    build_sampling_config,
    build_translation_config,
    run_spec,
)
from lm.config.model import ModelConfig
from lm.data.labels import completions_of
from lm.decoding.classifying import Classified, Classifier, CompletionClassifier, classifier_of
from lm.decoding.filling import Filled, Filler
from lm.decoding.generator import Generator
from lm.decoding.sampling import Finish, Token
from lm.decoding.translation import Translated, Translator
from lm.decoding.translation_input import TranslationModel
from lm.distributed import launched
from lm.engine.dtype import load_to_decode
from lm.errors import UsageError
from lm.evaluation.attention import compute_attention
from lm.evaluation.attention_maps import AttentionMap
from lm.evaluation.classification import ClassificationScores, evaluate_classifier
from lm.evaluation.completion_scoring import score_completions
from lm.evaluation.contamination import ContaminationCheck
from lm.evaluation.forced_decoding import PairEncoder, score_pairs_streaming
from lm.evaluation.held_out import open_held_out_pairs, open_held_out_text
from lm.evaluation.perplexity import FileScore, Tally
from lm.evaluation.scorer import TextScorer
from lm.interop import exporting
from lm.interop.hugging_face import importing
from lm.interop.hugging_face.peft import import_adapters
from lm.model.transformer import DecoderOnly, EncoderDecoder, EncoderOnly
from lm.run_folder import find_checkpoint, load_config, load_state
from lm.text.files import TextFiles, find_text_files, select_readable
from lm.text.normalization import normalize_like_training
from lm.tokenizer.tokenizer import Tokenizer
from lm.training.history import improved
from lm.training.ranks import train_in_processes
from lm.training.trainer import Event, Trainer


def load(run: PathLike, *, device: Device = "auto", dtype: DType = "auto", threads: int | None = None) -> Model:
    """Load the best checkpoint of a run, or the checkpoint that is named.

    Args:
        run: folder of a run or of one of its checkpoints.
        device: where to run [default: a GPU if there is one].
        dtype: of the matrices [default: what `lm compile RUN` found fastest, else float32].
        threads: of the CPU [default: LM_THREADS, else one per core].

    Raises:
        InputError: there is no such run, or it is damaged.
        UsageError: the device or dtype is not there.
    """
    threads = read_threads_variable() if threads is None else threads
    return Model(load_to_decode(Path(run), HardwareConfig(device, dtype, threads)))


class Model:
    """A trained model with its tokenizers: it continues texts, translates, fills blanks or classifies.

    Keywords are the flags of the commands, with the same defaults. What a model of its kind cannot do is a UsageError.
    """

    def __init__(self, loaded: LoadedModel, *, improved: bool | None = None) -> None:
        """A model that was loaded.

        Args:
            loaded: the model.
            improved: whether training has made it better than it began; None where that is not known.
        """
        self.loaded, self.improved = loaded, improved

    def __repr__(self) -> str:
        """Where it is from, its size, purpose and device."""
        return f"<lm.Model {repr(self.loaded)[1:]}"

    @property
    def config(self) -> ModelConfig:
        """The shape of the model."""
        return self.loaded.model.config

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; of a model that translates that of the targets."""
        return self.loaded.tokenizer

    @property
    def module(self) -> DecoderOnly | EncoderOnly | EncoderDecoder:
        """The model itself, a `torch.nn.Module` in eval mode."""
        return self.loaded.model

    def generate(self, prompt: str = "", **options: Unpack[SamplingOptions]) -> str:
        """What follows a prompt, without it.

            model.generate("Once", max_tokens=50, temperature=0.8)

        Raises:
            InputError: the tokenizer has no token for a character of the prompt.
            UsageError: there is nothing to begin from, or the settings rule out every token.
        """
        (sample,) = self._generator(options).samples(normalize_like_training(prompt, self.loaded.config.data))
        return sample.text

    def stream(
        self, prompt: str | Sequence[int] = "", *, n: int = 1, **options: Unpack[SamplingOptions]
    ) -> Iterator[Token | Finish]:
        """Draw `n` samples of what follows a prompt, or ids, token by token; errors are those of `generate`.

        Yields:
            A Token for each token of a sample, with the text that is certain from then on, and a Finish at its end.
        """
        if isinstance(prompt, str):
            prompt = normalize_like_training(prompt, self.loaded.config.data)
        return self._generator(options).generate(prompt, n=n)

    def _generator(self, options: SamplingOptions) -> Generator:
        follows_examples = self.loaded.config.data.supervised
        return Generator(
            self._decoder, self.tokenizer, build_sampling_config(options), follows_examples=follows_examples
        )

    @torch.inference_mode()
    def logits(self, ids: Sequence[int]) -> Tensor:
        """(ids, vocabulary) float32 logits of the token that follows each of some ids.

        Raises:
            UsageError: there are no ids, more than the context holds, or one is not in the vocabulary.
        """
        model, size = self._decoder, self.config.vocab_size
        if not 1 <= len(ids) <= self.config.context_length:
            raise UsageError(f"logits are of 1 to {self.config.context_length} ids, which the context holds")
        if wrong := [token for token in ids if not 0 <= token < size]:
            raise UsageError(f"token {wrong[0]} is not in the vocabulary (ids go from 0 to {size - 1})")
        tokens = torch.tensor([[*ids]], device=next(model.parameters()).device)
        return model.logits(model.hidden(tokens))[0].float()

    def translate(
        self,
        line: str,
        *,
        to: str | None = None,
        heads: Sequence[int] | None = None,
        **options: Unpack[TranslationOptions],
    ) -> str:
        """The best translation of a line; see `translations`, where `heads` are those of each line."""
        (translated,) = self.translations([line], to=to, heads=None if heads is None else [heads], **options)
        return translated.translations[0].text

    def translations(
        self,
        lines: Iterable[str],
        *,
        to: str | None = None,
        heads: Iterable[Sequence[int]] | None = None,
        **options: Unpack[TranslationOptions],
    ) -> Iterator[Translated]:
        """Translate lines, in order, several side by side; each with its best translations and their scores.

        Args:
            lines: sentences.
            to: the language, for models that translate into several.
            heads: for a model that reads dependency trees, the head of each word of each line, from 1; 0 for the root.
            options: the flags of `lm translate`, with underscores.
        """
        config = build_translation_config(options)
        return Translator([TranslationModel.of(self.loaded)], config, to=to).translate(lines, heads=heads)

    def fill(self, text: str, *, k: int = 5) -> Filled:
        """The `k` likeliest tokens for each blank of a text (`[MASK]`), by a masked model.

        Raises:
            InputError: the tokenizer has no token for a character.
            UsageError: the text is longer than the context.
        """
        (filled,) = Filler(self._masked, self.tokenizer).fill([text], k=k)
        return filled

    def classify(
        self, texts: Iterable[str], *, labels: PathLike | None = None, batch_size: int = 16
    ) -> Iterator[Classified]:
        """The label of each text, and the probabilities of all labels.

        Args:
            texts: of a decoder that learned prompts and completions, the prompts.
            labels: a file of examples with all labels that a decoder chooses among [default: those that its run has
                recorded].
            batch_size: texts, of a decoder texts times labels, that are read together.

        Raises:
            UsageError: the model is no classifier, or a decoder whose labels are not known.
        """
        return self._classifier(labels, batch_size).classify(texts)

    def evaluate(self, *files: PathLike, labels: PathLike | None = None, batch_size: int = 16) -> ClassificationScores:
        """How well a classifier labels examples, as `lm evaluate RUN FILE` reports it.

        Args:
            files: of examples with labels, as supervised training reads them.
            labels: see `classify`.
            batch_size: see `classify`.

        Raises:
            InputError: a file is missing, or a row of it is no example.
            UsageError: as of `classify`.
        """
        named = find_text_files(
            [os.fspath(file) for file in files], self.loaded.config.data.for_other_files(supervised=True)
        )
        return evaluate_classifier(
            self._classifier(labels, batch_size), (example for file in named for example in file.examples())
        )

    def perplexity(
        self,
        *files: PathLike,
        context: int | None = None,
        stride: int | None = None,
        batch_size: int = 16,
        every: int = 1,
        **options: Unpack[FileOptions],
    ) -> Tally:
        """How well the model predicts text: sums over all tokens of all files, and the figures that follow from them.

        Of a masked model it is the pseudo-perplexity: each token is masked in turn. Files that were training text of
        the run are warned about.

        Args:
            files: of text, folders or globs; documents are separated as for training [default: the split that the run
                held out: of text, of examples or, for a model that translates, of pairs].
            context: tokens in a window [default: the model's context].
            stride: tokens from one window to the next [default: half of the context].
            batch_size: windows scored together; changes the speed, not the result.
            every: of a masked model, score only every Nth token of a document: an estimate in an Nth of the time.
            options: which files count and how they are read, as the flags of `lm perplexity`, with underscores.

        Raises:
            InputError: a file is missing or no text.
            UsageError: a setting is out of its limits.
        """
        config = PerplexityConfig(context, stride, batch_size, every)
        reading, rows = build_files_config(options)
        data = self.loaded.config.data
        if self.config.translates and not files:
            return self._score_held_out_pairs()
        model = self._masked if self.config.is_masked else self._decoder
        named = [os.fspath(file) for file in files]
        if named:
            texts = select_readable(find_text_files(named, data.for_other_files(**rows), reading))
        else:
            texts = TextFiles([open_held_out_text(self.loaded)])
        scorer = TextScorer.of(model, self.tokenizer, config, separator=data.separator)
        if data.supervised and not files and isinstance(model, DecoderOnly):
            *_, last = score_completions(
                model, self.tokenizer, texts[0].examples(), context=scorer.context, batch_size=batch_size,
                name=texts[0].name,
            )  # fmt: skip
            return last.tally
        scores: list[FileScore] = []
        training_text = ContaminationCheck(self.loaded)
        for stretch in scorer.score_segments(texts, scores=scores):
            training_text.add_passage(stretch)
        for warning in training_text.warnings([text.name for text in texts]):
            warnings.warn(warning, stacklevel=2)
        return Tally.total(score.tally for score in scores)

    def _score_held_out_pairs(self) -> Tally:
        pairs, language = open_held_out_pairs(self.loaded)
        tag = TranslationModel.of(self.loaded).tag_to(None, file_language=language)
        encoder = PairEncoder(self.tokenizer, self.loaded.source_tokenizer, tag=tag)
        assert not isinstance(self.loaded.model, EncoderOnly)
        *_, last = score_pairs_streaming(self.loaded.model, encoder, pairs.pairs(), name=pairs.name)
        return last.tally

    def attention(
        self,
        text: str,
        target: str | None = None,
        *,
        unit: AttentionUnit = "words",
        to: str | None = None,
        heads: Sequence[int] | None = None,
    ) -> AttentionMap:
        """Where the model looks in a text, or where the words of a translation look in it; see `compute_attention`."""
        return compute_attention(self.loaded, text, target, unit=unit, to=to, heads=heads).map

    @property
    def _decoder(self) -> DecoderOnly:
        if self.config.translates or not isinstance(self.loaded.model, DecoderOnly):
            raise UsageError(
                f"{self.loaded.folder}: this run {self.config.purpose}; it does not continue or score texts"
            )
        return self.loaded.model

    @property
    def _masked(self) -> EncoderOnly:
        model = self.loaded.model
        if not isinstance(model, EncoderOnly) or model.config.labels:
            raise UsageError(f"{self.loaded.folder}: this run {self.config.purpose}; it does not fill blanks")
        return model

    def _classifier(self, labels: PathLike | None, batch_size: int) -> Classifier | CompletionClassifier:
        config = ClassificationConfig(batch_size=batch_size)
        completions = () if labels is None else completions_of(os.fspath(labels))
        return classifier_of(self.loaded, completions, batch_size=config.batch_size)


def train(
    *corpus: PathLike, on_event: Callable[[Event], None] = lambda _: None, **options: Unpack[RunOptions]
) -> Model:
    """Train a model on text, or on sentence pairs, to its end, as `lm train` does; returns the best checkpoint.

    It is loaded on the device and with the threads that the run was given.

        lm.train("my.txt", budget="10m")
        lm.train("letters.txt", from_run="runs/novel", lora=8, steps=200)
        lm.train(source="train.en", target="train.de", epochs=20, processes=2)
        lm.train(resume="runs/novel", steps=5000)

    An exception in `on_event`, or Ctrl-C, saves the run and ends it; `resume` continues it. To iterate over the events
    instead, and leave the loop at any time: `with lm.Trainer(lm.run_spec("my.txt", budget="10m")) as trainer`.
    `improved` of the model says whether training from another run's weights, or a run's extension, has made it better.

    Args:
        corpus: files of text, globs, folders, or a folder of prepared tokens.
        on_event: called with each event of preparation and training; where several processes are started, with those of
            training alone, in a thread.
        options: the flags of `lm train`, with underscores; see `lm.config.keywords.RunOptions`.

    Raises:
        InputError: a file is missing or no text, or the folder holds something already.
        UsageError: a keyword or value is wrong, or values contradict each other.
        TrainingError: the loss is no longer a number, or memory ran out.
    """
    spec = run_spec(*corpus, **options)
    hardware = {name: value for name, value in spec.settings["hardware"].items() if name != "dtype"}
    if spec.processes > 1 and launched.size() == 1:
        return _load_trained(train_in_processes(spec, on_event=on_event), **hardware)
    with Trainer(spec) as trainer:
        for event in trainer:
            on_event(event)
    assert trainer.run is not None
    return _load_trained(trainer.run.folder, **hardware)


def _load_trained(run: Path, *, device: Device = "auto", threads: int | None = None) -> Model:
    """The model of a run that was trained."""
    model, last = load(run, device=device, threads=threads), find_checkpoint(run, which="last")
    model.improved = improved(load_config(last), load_state(last))
    return model


def export(
    run: PathLike, out: PathLike, to: ExportSystem = "huggingface", number_type: ExportDtype | None = None
) -> None:
    """Write a run as another system loads it; docs/interchange.md.

    Args:
        run: folder of a run, whose best checkpoint is taken, or of a checkpoint.
        out: folder to be made; for gguf a file.
        to: "huggingface" (transformers), "gguf" (llama.cpp) or "ctranslate2".
        number_type: of the matrices, where it can be chosen; as for `--type` of `lm export`.

    Raises:
        InputError: the run is damaged, there is something at `out`, or the package for `to` is not installed.
        UsageError: the system has nothing like the model; the message names the fields that decide.
    """
    config = ExportConfig(to=to) if number_type is None else ExportConfig(to=to, type=number_type)
    exporting.export_run(Path(run), Path(out), config)


def merge(run: PathLike, out: PathLike) -> None:
    """Write a plain run of one that has low-rank adapters, added to the weights that they belong to.

    Raises:
        InputError: the run is damaged, or the weights that it adapts are gone or have changed.
        UsageError: it has no adapters.
    """
    write_merged(Path(run), Path(out))


def import_model(
    folder: PathLike,
    out: PathLike,
    *,
    base: PathLike | None = None,
    device: Device = "auto",
    dtype: DType = "auto",
    threads: int | None = None,
) -> Model:
    """Make a run of a model that was trained elsewhere, and load it; docs/interchange.md.

    Args:
        folder: in the layout of Hugging Face's transformers, with weights in .safetensors.
        out: folder of the run, to be made.
        base: of a folder of low-rank adapters (PEFT), the run of the model that they are for.
        device: as for `load`.
        dtype: as for `load`.
        threads: as for `load`.

    Raises:
        InputError: the folder is damaged, or its model is one that ours cannot be.
    """
    if base is None:
        importing.import_model(Path(folder), Path(out))
    else:
        import_adapters(Path(folder), Path(base), Path(out))
    return load(out, device=device, dtype=dtype, threads=threads)

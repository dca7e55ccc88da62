"""The front door for Python: load a run and use it, or train one. The commands go through the same objects.

`import lm` offers these names without importing torch before one of them is used; docs/python.md shows them at work.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lm.checkpoint import LoadedModel, load_model
from lm.checkpoint import merge as write_merged
from lm.config.decoding import SamplingConfig, TranslationConfig
from lm.config.evaluation import AttentionUnit, PerplexityConfig
from lm.config.export import ExportConfig, NumberType, System
from lm.config.hardware import HardwareConfig
from lm.config.model import ModelConfig, check_heads_given
from lm.config.presets import DEFAULT_PRESET, DEFAULT_TRANSLATION_PRESET, configure
from lm.config.run import RunConfig
from lm.config.toml import check_section
from lm.corpus.corpus import survey, train_tokenizer
from lm.corpus.parallel import survey as survey_pairs
from lm.corpus.prepare import prepare_corpus
from lm.corpus.prepare_pairs import prepare_pairs, train_tokenizers
from lm.data.kinds import check_model
from lm.decoding.classifying import Classified, Classifier
from lm.decoding.filling import Filled, Filler
from lm.decoding.generate import Finish, Token
from lm.decoding.generator import Generator
from lm.decoding.translation import Translated, Translator
from lm.decoding.translation_input import TranslationModel
from lm.errors import UsageError
from lm.evaluation.attention import of_model
from lm.evaluation.attention_maps import AttentionMap
from lm.evaluation.perplexity import FileScore, Tally
from lm.evaluation.scorer import Scorer
from lm.hardware import inference_hardware
from lm.interop import exporting
from lm.interop.hugging_face import importing
from lm.interop.hugging_face.adapters import import_adapters
from lm.model.transformer import DecoderOnly, EncoderDecoder, EncoderOnly
from lm.run_folder import refuse_existing
from lm.text.files import text_files
from lm.text.parallel import parallel_texts
from lm.tokenizer.tokenizer import Tokenizer
from lm.training.begin import start
from lm.training.corpus import TrainingCorpus
from lm.training.events import Event
from lm.training.loop import train as events

Place = str | os.PathLike[str]
"""A file or folder."""
Values = Mapping[str, Any]
"""Settings by name."""

_SAMPLING, _TRANSLATION = SamplingConfig(), TranslationConfig()
_WINDOWS, _HARDWARE = PerplexityConfig(), HardwareConfig()
_NOTHING: Values = {}


def load(run: Place, hardware: HardwareConfig = _HARDWARE) -> Model:
    """Load the best checkpoint of a run, or the checkpoint that is named.

    Args:
        run: folder of a run or of one of its checkpoints.
        hardware: device, arithmetic and threads [default: a GPU if there is one; float32].

    Raises:
        InputError: there is no such run, or it is damaged.
    """
    return Model(load_model(Path(run), inference_hardware(hardware)))


class Model:
    """A trained model with its tokenizers: it continues texts, translates, fills blanks or classifies.

    What it does is set by the configurations whose fields are the flags of the commands, with the same defaults. What
    a model of its kind cannot do raises UsageError.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        """A model that was loaded."""
        self.loaded = loaded

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

    def generate(self, prompt: str = "", sampling: SamplingConfig = _SAMPLING) -> str:
        """What follows a prompt, without it.

        Raises:
            InputError: the tokenizer has no token for a character of the prompt.
            UsageError: there is nothing to begin from, or the settings rule out every token.
        """
        (sample,) = Generator(self._decoder, self.tokenizer, sampling).samples(prompt)
        return sample.text

    def stream(self, prompt: str = "", sampling: SamplingConfig = _SAMPLING, *, n: int = 1) -> Iterator[Token | Finish]:
        """Draw samples token by token; errors are those of `generate`.

        Yields:
            A Token for each token of a sample, with the text that is certain from then on, and a Finish at its end.
        """
        return Generator(self._decoder, self.tokenizer, sampling).generate(prompt, n=n)

    def translate(
        self,
        line: str,
        config: TranslationConfig = _TRANSLATION,
        *,
        to: str | None = None,
        heads: Sequence[int] | None = None,
    ) -> str:
        """The best translation of a line; see `translations`, where `heads` are those of each line."""
        (translated,) = self.translations([line], config, to=to, heads=None if heads is None else [heads])
        return translated.translations[0].text

    def translations(
        self,
        lines: Iterable[str],
        config: TranslationConfig = _TRANSLATION,
        *,
        to: str | None = None,
        heads: Iterable[Sequence[int]] | None = None,
    ) -> Iterator[Translated]:
        """Translate lines, in order, several side by side; each with its best translations and their scores.

        Args:
            lines: sentences.
            config: how they are translated.
            to: the language, for models that translate into several.
            heads: for a model that reads dependency trees, the head of each word of each line, from 1; 0 for the root.
        """
        return Translator([TranslationModel.of(self.loaded)], config, to=to).translate(lines, heads=heads)

    def fill(self, text: str, *, k: int = 5) -> Filled:
        """The `k` likeliest tokens for each blank of a text (`[MASK]`), by a masked model.

        Raises:
            InputError: the tokenizer has no token for a character.
            UsageError: the text is longer than the context.
        """
        (filled,) = Filler(self._masked(has_labels=False), self.tokenizer).fill([text], k=k)
        return filled

    def classify(self, texts: Iterable[str]) -> Iterator[Classified]:
        """The label of each text, and the probabilities of all labels, by a classifier."""
        return Classifier(self._masked(has_labels=True), self.tokenizer).classify(texts)

    def perplexity(self, *files: Place, windows: PerplexityConfig = _WINDOWS) -> Tally:
        """How well the model predicts text: sums over all tokens of all files, and the figures that follow from them.

        Of a masked model it is the pseudo-perplexity: each token is masked in turn.

        Args:
            files: of text, folders or globs; documents are separated as for training.
            windows: how long they are, and how far they overlap.

        Raises:
            InputError: a file is missing or no text.
        """
        data = self.loaded.config.data
        model = self._masked(has_labels=False) if self.config.is_masked else self._decoder
        scorer = Scorer.of(model, self.tokenizer, windows, separator=data.separator)
        texts = text_files([os.fspath(file) for file in files], field=data.field)
        return Tally.total(event.tally for event in scorer.measure(texts) if isinstance(event, FileScore))

    def attention(
        self,
        text: str,
        target: str | None = None,
        *,
        unit: AttentionUnit = "words",
        to: str | None = None,
        heads: Sequence[int] | None = None,
    ) -> AttentionMap:
        """Where the model looks in a text, or where the words of a translation look in it; see `of_model`."""
        return of_model(self.loaded, text, target, unit=unit, to=to, heads=heads).map

    @property
    def _decoder(self) -> DecoderOnly:
        if self.config.translates or not isinstance(self.loaded.model, DecoderOnly):
            raise UsageError(
                f"{self.loaded.folder}: this run {self.config.purpose}; it does not continue or score texts"
            )
        return self.loaded.model

    def _masked(self, *, has_labels: bool) -> EncoderOnly:
        model, wanted = self.loaded.model, "classify texts" if has_labels else "fill blanks"
        if not isinstance(model, EncoderOnly) or bool(model.config.labels) != has_labels:
            raise UsageError(f"{self.loaded.folder}: this run {self.config.purpose}; it does not {wanted}")
        return model


def train(
    *corpus: Place,
    out: Place,
    source: Sequence[Place] = (),
    target: Sequence[Place] = (),
    heads: Sequence[Place] = (),
    preset: str | None = None,
    tokenizer: Values = _NOTHING,
    data: Values = _NOTHING,
    parallel: Values = _NOTHING,
    model: Values = _NOTHING,
    training: Values = _NOTHING,
    hardware: Values = _NOTHING,
) -> Iterator[Event]:
    """Train a new model on texts, or on sentences and their translations; the run is that of `lm train`.

    All is checked and prepared at once; the first step is taken when the first event is asked for. To stop early, stop
    asking: what was saved stays, and `lm train --resume` goes on from there.

    Args:
        corpus: files of text, folders or globs.
        out: folder of the run, to be made.
        source: files of sentences, one a line, in place of a corpus.
        target: files of their translations, line by line.
        heads: for a model with `syntax`, files of the heads of the words of the sources, line by line.
        preset: what to start from [default: as `lm train`].
        tokenizer: settings that differ from the preset's, by name, as in the section of this name of a settings file.
        data: the same, of how texts become tokens.
        parallel: the same, of how pairs become tokens.
        model: the same, of the model.
        training: the same, of training; `steps`, `epochs` or `tokens` say for how long.
        hardware: the same, of what to run on.

    Yields:
        The events of `lm.training.loop.train`: steps, evaluations, samples.

    Raises:
        InputError: a file is missing or no text, or the folder holds something already.
        UsageError: a setting is wrong, or settings contradict each other.
    """
    sections = {
        "tokenizer": tokenizer, "data": data, "parallel": parallel, "model": model, "training": training,
        "hardware": hardware,
    }  # fmt: skip
    if bool(corpus) == bool(source) or bool(source) != bool(target):
        raise UsageError("name what to learn from: either files of text, or `source` and `target`")
    for name, values in sections.items():
        check_section(name, values)
    config = configure(preset or (DEFAULT_TRANSLATION_PRESET if source else DEFAULT_PRESET), sections)
    if config.training.budget is not None:
        raise UsageError("a budget is for `lm train` at the terminal; give steps, epochs or tokens")
    refuse_existing(Path(out))
    check_model(config.model, pairs=bool(source))
    check_heads_given(config.model, are_given=bool(heads))
    prepared = _prepared_pairs(config, source, target, heads) if source else _prepared_text(config, corpus)
    if parallel.get("bpe_dropout"):
        prepared.check_merges()
    return events(start(Path(out), config, prepared))


def export(run: Place, out: Place, to: System = "huggingface", number_type: NumberType | None = None) -> None:
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
    exporting.export(Path(run), Path(out), ExportConfig(to=to, type=number_type))


def merge(run: Place, out: Place) -> None:
    """Write a plain run of one that has low-rank adapters, added to the weights that they belong to.

    Raises:
        InputError: the run is damaged, or the weights that it adapts are gone or have changed.
        UsageError: it has no adapters.
    """
    write_merged(Path(run), Path(out))


def import_model(
    folder: Place, out: Place, hardware: HardwareConfig = _HARDWARE, *, base: Place | None = None
) -> Model:
    """Make a run of a model that was trained elsewhere, and load it; docs/interchange.md.

    Args:
        folder: in the layout of Hugging Face's transformers, with weights in .safetensors.
        out: folder of the run, to be made.
        hardware: as for `load`.
        base: of a folder of low-rank adapters (PEFT), the run of the model that they are for.

    Raises:
        InputError: the folder is damaged, or its model is one that ours cannot be.
    """
    if base is None:
        importing.import_model(Path(folder), Path(out))
    else:
        import_adapters(Path(folder), Path(base), Path(out))
    return load(out, hardware)


def _prepared_text(config: RunConfig, corpus: Sequence[Place]) -> TrainingCorpus:
    """Texts as tokens, made now or found in the cache."""
    files = text_files([os.fspath(file) for file in corpus], field=config.data.field, supervised=config.data.supervised)
    surveyed = survey(files, config.data)
    tokenizer = train_tokenizer(surveyed, config.tokenizer, has_mask=config.model.is_masked)
    prepared = prepare_corpus(surveyed, tokenizer, with_labels=config.model.is_masked)
    return TrainingCorpus(prepared.folder, tokenizer)


def _prepared_pairs(
    config: RunConfig, source: Sequence[Place], target: Sequence[Place], heads: Sequence[Place]
) -> TrainingCorpus:
    """Sentences and their translations as tokens, made now or found in the cache."""
    names = [[os.fspath(file) for file in files] for files in (source, target, heads)]
    texts = parallel_texts(config.parallel, source=names[0], target=names[1], heads=names[2])
    surveyed = survey_pairs(texts, config.data, config.parallel)
    tokenizer, of_sources = train_tokenizers(surveyed, config.tokenizer, config.parallel)
    prepared = prepare_pairs(surveyed, tokenizer, config.parallel, source_tokenizer=of_sources)
    return TrainingCorpus(prepared.folder, tokenizer, of_sources)

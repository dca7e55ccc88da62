"""The Python API: load a run and use it, or train one; the commands use the same objects.

`import lm` offers these names without importing torch before one is used; see docs/how-to/python.md.
"""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from lm import interop
from lm.benchmark import measure_and_record_dtype
from lm.checkpoint import LoadedModel
from lm.config import settings
from lm.config.inference import (
    ClassificationConfig,
    ExportConfig,
    ExportFormat,
    FillConfig,
    PerplexityConfig,
    SamplingConfig,
    TranslationConfig,
)
from lm.config.model import ModelConfig
from lm.config.run_config import DataConfig, Device, DType, FilesConfig, HardwareConfig
from lm.config.run_spec import PathLike, RunSpec, run_spec  # noqa: F401 (a name of lm)
from lm.data.windows import read_completions
from lm.decoding.batching import Finish, Token
from lm.decoding.chat import Chat
from lm.decoding.classifier import ClassifiedText, Classifier, FilledText, build_classifier, fill_masks
from lm.decoding.generator import Generator
from lm.decoding.translation import TranslatedLine, TranslationModel, Translator
from lm.engine import load_for_decoding
from lm.errors import InputError, LMError, UsageError  # noqa: F401 (a name of lm)
from lm.evaluation.attention import AttentionMap, compute_attention
from lm.evaluation.metrics import ClassificationScores, evaluate_classifier
from lm.evaluation.perplexity import ContaminationCheck, PerplexityResult, open_texts
from lm.evaluation.scoring import Scorer
from lm.hardware import select_device
from lm.interop import hugging_face
from lm.interop.hugging_face import import_from_hub, is_hub_name
from lm.interop.peft import import_adapters
from lm.model import average_predictions
from lm.text import parse_messages
from lm.training import launcher_env
from lm.training.derived_runs import write_merged_run
from lm.training.multiprocess import StopSignals
from lm.training.run_log import Evaluation, Sample, Saved, Step  # noqa: F401 (names of lm)
from lm.training.trainer import Event, Started, train_events

C = TypeVar("C")


def load(
    run: PathLike, *, device: Device | None = None, dtype: DType | None = None, threads: int | None = None
) -> Model:
    """Load the best checkpoint of a run, or a named checkpoint.

    Args:
        run: folder of a run or of one of its checkpoints; or a model of the Hugging Face Hub, as `hf:ORG/NAME`. Several
            runs, as "a,b", are an ensemble.
        device: where to run [default: LM_DEVICE, else a GPU if there is one].
        dtype: of the matrices [default: LM_DTYPE, else what `lm compile RUN` recorded, else float32].
        threads: CPU threads [default: LM_THREADS, else one per core].

    Raises:
        InputError: the run is missing or damaged.
        UsageError: the device or dtype is not available.
    """
    given = {"device": device, "dtype": dtype, "threads": threads}
    hardware = settings.build_from(HardwareConfig, given, environment=os.environ)
    if is_hub_name(run):
        run = import_from_hub(str(run), on_import=partial(measure_and_record_dtype, config=hardware))
    return Model(load_for_decoding(Path(run), hardware))


class Model:
    """A trained model with its tokenizers: generates, translates, fills blanks or classifies.

    Keywords are the flags of the commands, with the same defaults. Methods for another kind of model raise UsageError.

    Attributes:
        config: the shape of the model.
        tokenizer: for a translation model that of the targets.
        module: the `torch.nn.Module`, in eval mode.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        """Wrap a loaded model."""
        self.loaded, self.tokenizer, self.module = loaded, loaded.tokenizer, loaded.model
        self.config: ModelConfig = self.module.config

    def __repr__(self) -> str:
        return f"<lm.Model of {self.loaded.folder}: {self.loaded.config.purpose}>"

    def generate(self, prompt: str | Sequence[int] = "", **options: Any) -> str:
        """Return a completion of a prompt, or of IDs, without the prompt.

            model.generate("Once", max_tokens=50, temperature=0.8)

        Raises:
            InputError: a character of the prompt has no token.
            UsageError: the prompt is empty and there is no start token, or the settings ban every token.
        """
        (sample,) = self._generator(options).samples(prompt)
        return sample.text

    def chat(self, messages: str | Sequence[Mapping[str, str]], **options: Any) -> str:
        """Return the reply to a message, or to a conversation that ends with a message of the user.

            model.chat([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi!"}])

        A chat of several turns is an `lm.decoding.chat.Chat`, which keeps the KV cache.

        Raises:
            InputError: the messages are no conversation, or the chat template refuses them.
            UsageError: they don't fit into the context.
        """
        parsed = parse_messages([{"role": "user", "content": messages}] if isinstance(messages, str) else messages)
        if parsed[-1].role != "user":
            raise InputError("messages: the last one is of the assistant, so there is nothing to reply to")
        chat = Chat(self._generator(options), messages=parsed[:-1])
        return "".join(event.text for event in chat.reply(parsed[-1].text)).strip()

    def stream(self, prompt: str | Sequence[int] = "", *, n: int = 1, **options: Any) -> Iterator[Token | Finish]:
        """Sample `n` completions of a prompt, or of IDs, token by token; errors as of `generate`.

        Yields:
            A Token for each token, with the text that is complete with it, and a Finish at the end of each sample.
        """
        return self._generator(options).generate(prompt, n=n)

    def _generator(self, options: Mapping[str, Any]) -> Generator:
        config = settings.build_from(SamplingConfig, options)
        follows = self.loaded.config.is_supervised
        return Generator(self._model("continues texts"), self.tokenizer, config, follows_examples=follows)

    @torch.no_grad()
    def logits(self, ids: Sequence[int]) -> Tensor:
        """Return (ids, vocabulary) float32 logits of the token after each ID; of an ensemble log-probabilities."""
        model = self._model("continues texts")
        tokens = torch.tensor([self._generator({}).encode(ids)], device=next(model.parameters()).device)
        return average_predictions([member(tokens)[0] for member in model.members]).float()

    def translate(self, line: str, **options: Any) -> str:
        """Return the best translation of a line; options as of `translations`."""
        (translated,) = self.translations(line, **options)
        return translated.translations[0].text

    def translations(
        self,
        lines: str | Iterable[str],
        *,
        to: str | None = None,
        heads: Iterable[Sequence[int]] | None = None,
        **options: Any,
    ) -> Iterator[TranslatedLine]:
        """Translate lines in batches, in order; yields the best translations of each with their scores.

        Args:
            lines: sentences.
            to: the target language, for models with several.
            heads: for a model that reads dependency trees, the head of each word of each line, from 1; 0 for the root.
            options: the flags of `lm translate`, with underscores.
        """
        config, model = settings.build_from(TranslationConfig, options), TranslationModel.from_loaded(self.loaded)
        lines = [lines] if isinstance(lines, str) else lines
        return Translator(model, config, to=to).translate(lines, dependency_heads=heads)

    def fill(self, text: str, **options: Any) -> FilledText:
        """Return the `top_k` most probable tokens for each blank (`[MASK]`) of a text, by a masked model.

        Raises:
            InputError: a character has no token.
            UsageError: the text exceeds the context.
        """
        k = settings.build_from(FillConfig, options).top_k
        (filled,) = fill_masks(self._model("fills blanks"), self.tokenizer, [text], k=k)
        return filled

    def classify(
        self, texts: str | Iterable[str], *, labels: PathLike | None = None, **options: Any
    ) -> Iterator[ClassifiedText]:
        """Yield the label of each text, with the probabilities of all labels.

        Args:
            texts: for a decoder trained on examples, the prompts.
            labels: for a decoder, a file of examples with all labels [default: those recorded in its run].
            options: batch_size: texts, for a decoder texts times labels, per batch.

        Raises:
            UsageError: the model is not a classifier, or a decoder with unknown labels.
        """
        config = settings.build_from(ClassificationConfig, options)
        return self._classifier(labels, config).classify([texts] if isinstance(texts, str) else texts)

    def evaluate(self, *files: PathLike, labels: PathLike | None = None, **options: Any) -> ClassificationScores:
        """Score a classifier on labelled examples, as `lm evaluate RUN FILE`.

        Files that were training text of the run are warned about.

        Args:
            files: of labelled examples [default: those that the run held out].
            labels: see `classify`.
            options: see `classify`; and which files to read and how, as of `perplexity`.

        Raises:
            InputError: a file is missing, or a row is not an example.
            UsageError: as of `classify`.
        """
        config, reading, data = _read_options("classification", ClassificationConfig, options)
        classifier, check = self._classifier(labels, config), ContaminationCheck(self.loaded)
        texts = open_texts(self.loaded, [os.fspath(file) for file in files], reading, data, kind="examples")
        scores = evaluate_classifier(classifier, check.watch_records(texts.files))
        _warn(check.warnings(texts.names))
        return scores

    def perplexity(
        self,
        *files: PathLike,
        source: PathLike | None = None,
        target: PathLike | None = None,
        to: str | None = None,
        **options: Any,
    ) -> PerplexityResult:
        """Score text; returns totals over all tokens of all files, with perplexity and bits/byte.

        Of examples, if the run was trained on some, completions are scored; of conversations, replies. For a masked
        model it is the pseudo-perplexity. Warns of files that were training text of the run.

        Args:
            files: text files, folders or globs, split into documents as in training [default: the held-out split of the
                run: text, examples or sentence pairs].
            source: for a translation model, a file of sources, one per line, beside one of targets.
            target: see `source`.
            to: the target language, for models with several.
            options: the flags and settings of `lm perplexity`, with underscores: context, stride, batch_size,
                and which files to read and how.

        Raises:
            InputError: a file is missing or not text.
            UsageError: a setting is out of range.
        """
        config, reading, data = _read_options("perplexity", PerplexityConfig, options)
        named, *sides = ([os.fspath(file) for file in of if file is not None] for of in (files, [source], [target]))
        texts = open_texts(self.loaded, named, reading, data, language=to, source=sides[0], target=sides[1])
        check, result = ContaminationCheck(self.loaded), PerplexityResult()
        for scored in check.watch(Scorer(self.loaded, config).score(texts)):
            result.add(scored)
        _warn(check.warnings(texts.names))
        return result

    def attention(
        self,
        text: str,
        target: str | None = None,
        *,
        heads: Sequence[int] | None = None,
        **options: Any,
    ) -> AttentionMap:
        """Return the attention map of a text, or of a translation; see `compute_attention`."""
        return compute_attention(self.loaded, text, target, dependency_heads=heads, **options)

    def _model(self, purpose: str) -> Any:
        if self.config.purpose != purpose:
            raise UsageError(f"{self.loaded.folder}: this run {self.config.purpose}; it is not one that {purpose}")
        return self.loaded.model

    def _classifier(self, labels: PathLike | None, config: ClassificationConfig) -> Classifier:
        reading = self.loaded.config.data.for_other_files()
        known = () if labels is None else read_completions(os.fspath(labels), reading)
        return build_classifier(self.loaded, known, batch_size=config.batch_size)


def _read_options(section: str, config: type[C], options: Mapping[str, Any]) -> tuple[C, FilesConfig, dict[str, Any]]:
    """Return a config, which files to read, and the settings of `DataConfig` that say how."""
    sections = {section: config, "files": FilesConfig, "data": DataConfig}
    values, _ = settings.merge(sections, [settings.Layer("python", options)])
    return config(**values[section]), FilesConfig(**values["files"]), values["data"]


def _warn(warnings_: Iterable[str]) -> None:
    for warning in warnings_:
        warnings.warn(warning, stacklevel=3)


def train(*corpus: PathLike, on_event: Callable[[Event], None] = lambda _: None, **options: Any) -> Model:
    """Train a model on text or sentence pairs to its end, as `lm train`; returns the best checkpoint, loaded.

        lm.train("my.txt", budget="10m")
        lm.train("letters.txt", from_run="runs/novel", lora=8, steps=200)
        lm.train(source="train.en", target="train.de", epochs=20)
        lm.train(resume="runs/novel", steps=5000)

    Threads, torch's random state and matmul precision are set for the process, not put back at the end. An exception in
    `on_event`, or Ctrl-C, saves the run and ends it; `resume` continues it. To iterate over the events
    instead: `lm.train_events(lm.run_spec("my.txt", budget="10m"))`.

    Args:
        corpus: text files, globs, folders, or a folder of prepared tokens.
        on_event: called with each event of preparation and training.
        options: the flags of `lm train`, with underscores.

    Raises:
        InputError: a file is missing or not text, or the folder is not empty.
        UsageError: a keyword or value is wrong, or values contradict each other.
        TrainingError: the loss is NaN.
    """
    spec = run_spec(*corpus, **options)
    hardware = {**spec.settings["hardware"], "dtype": "auto"}  # it decodes in the fastest
    folder, signals = Path(), StopSignals()
    with ExitStack() as stack:
        for event in stack.enter_context(closing(train_events(spec, stop=signals.received))):
            if isinstance(event, Started):
                folder = event.run.folder
                stack.enter_context(signals.handling())
            on_event(event)
    if signals.number:
        signal.raise_signal(signals.number)
    if launcher_env.world_size() == 1:  # several ranks would measure beside each other
        measure_and_record_dtype(folder, HardwareConfig(**hardware))
    return load(folder, **hardware)


def export(run: PathLike, out: PathLike, to: ExportFormat = "huggingface", **options: Any) -> None:
    """Export a run to another system; docs/how-to/exchange.md.

    Args:
        run: folder of a run, whose best checkpoint is exported, or of a checkpoint.
        out: folder to create; for gguf a file.
        to: "huggingface" (transformers), "peft", "gguf" (llama.cpp) or "ctranslate2".
        options: type: dtype of the matrices, if it can be chosen.

    Raises:
        InputError: the run is damaged, `out` exists, or the package for `to` is not installed.
        UsageError: the system has no such model; the message names the fields that decide.
    """
    interop.export_run(Path(run), Path(out), settings.build_from(ExportConfig, {"to": to, **options}))


def merge(run: PathLike, out: PathLike) -> None:
    """Merge low-rank adapters into their base weights, and write a plain run.

    Raises:
        InputError: the run is damaged, or its base weights are gone or have changed.
        UsageError: it has no adapters.
    """
    write_merged_run(Path(run), Path(out))


def import_model(folder: PathLike, out: PathLike, *, base: PathLike | None = None, **hardware: Any) -> Model:
    """Import a model trained elsewhere as a run, and load it; docs/how-to/exchange.md.

    Args:
        folder: in transformers' layout, with .safetensors.
        out: folder of the run, to be created.
        base: for a folder of PEFT adapters, the run of their base model.
        hardware: device, dtype and threads, as for `load`.

    Raises:
        InputError: the folder is damaged, or its model is not supported.
        UsageError: as of `load`.
    """
    config = settings.build_from(HardwareConfig, hardware, environment=os.environ)
    select_device(config)
    if base is not None:
        import_adapters(Path(folder), Path(base), Path(out))
    else:
        hugging_face.import_model(Path(folder), Path(out))
        measure_and_record_dtype(Path(out), config)
    return load(out, **hardware)

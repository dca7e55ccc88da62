"""The front door for Python: load a run and use it, or train one. The commands go through the same objects.

`import lm` offers these names without importing torch before one of them is used; docs/python.md shows them at work.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from lm.checkpoint import LoadedModel, load_model
from lm.config.decoding import SamplingConfig, TranslationConfig
from lm.config.evaluation import AttentionUnit, PerplexityConfig
from lm.config.hardware import HardwareConfig
from lm.config.model import ModelConfig
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
from lm.model.transformer import DecoderOnly, EncoderDecoder
from lm.text.files import text_files
from lm.tokenizer.tokenizer import Tokenizer

Place = str | os.PathLike[str]
"""A file or folder."""

_SAMPLING, _TRANSLATION = SamplingConfig(), TranslationConfig()
_WINDOWS, _HARDWARE = PerplexityConfig(), HardwareConfig()


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
    """A trained model with its tokenizers: a decoder-only model continues texts, an encoder-decoder translates.

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
        """The tokenizer; of an encoder-decoder that of the targets."""
        return self.loaded.tokenizer

    @property
    def module(self) -> DecoderOnly | EncoderDecoder:
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

    def translate(self, line: str, config: TranslationConfig = _TRANSLATION, *, to: str | None = None) -> str:
        """The best translation of a line; `to` names the language, for models that translate into several."""
        (translated,) = self.translations([line], config, to=to)
        return translated.translations[0].text

    def translations(
        self, lines: Iterable[str], config: TranslationConfig = _TRANSLATION, *, to: str | None = None
    ) -> Iterator[Translated]:
        """Translate lines, in order, several side by side; each with its best translations and their scores."""
        return Translator([TranslationModel.of(self.loaded)], config, to=to).translate(lines)

    def perplexity(self, *files: Place, windows: PerplexityConfig = _WINDOWS) -> Tally:
        """How well the model predicts text: sums over all tokens of all files, and the figures that follow from them.

        Args:
            files: of text, folders or globs; documents are separated as for training.
            windows: how long they are, and how far they overlap.

        Raises:
            InputError: a file is missing or no text.
        """
        data = self.loaded.config.data
        scorer = Scorer.of(self._decoder, self.tokenizer, windows, separator=data.separator)
        texts = text_files([os.fspath(file) for file in files], field=data.field)
        return Tally.total(event.tally for event in scorer.measure(texts) if isinstance(event, FileScore))

    def attention(
        self, text: str, target: str | None = None, *, unit: AttentionUnit = "words", to: str | None = None
    ) -> AttentionMap:
        """Where the model looks in a text, or where the words of a translation look in it; see `of_model`."""
        return of_model(self.loaded, text, target, unit=unit, to=to).map

    @property
    def _decoder(self) -> DecoderOnly:
        if not isinstance(self.loaded.model, DecoderOnly):
            raise UsageError(f"{self.loaded.folder}: this run translates; it does not continue or score texts")
        return self.loaded.model

"""The front door for Python: load a run and use it, or train one. The commands go through the same objects.

`import lm` offers these names without importing torch before one of them is used; docs/python.md shows them at work.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

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
from lm.evaluation.attention import attention_of
from lm.evaluation.attention_maps import AttentionMap
from lm.evaluation.perplexity import FileScore, Tally
from lm.evaluation.scorer import Scorer
from lm.hardware import inference_hardware
from lm.model.transformer import DecoderOnly, EncoderDecoder
from lm.text import files
from lm.tokenizer.tokenizer import Tokenizer


def load(run: str | os.PathLike[str], hardware: HardwareConfig = HardwareConfig()) -> Model:
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

    What it is asked for is described by the same settings as the flags of the commands, with the same defaults.
    """

    def __init__(self, loaded: LoadedModel) -> None:
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

"""What goes into a translation: the model with its tokenizers, and lines as ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from lm.checkpoint import LoadedModel
from lm.decoding.generate import end_ids
from lm.errors import UsageError
from lm.model.transformer import EncoderDecoder
from lm.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class TranslationModel:
    """An encoder-decoder, in eval mode, and the tokenizers of its two sides."""

    model: EncoderDecoder
    tokenizer: Tokenizer
    source_tokenizer: Tokenizer

    @classmethod
    def of(cls, loaded: LoadedModel) -> Self:
        """The model of a run.

        Raises:
            UsageError: it is no encoder-decoder.
        """
        if not isinstance(loaded.model, EncoderDecoder):
            raise UsageError(f"{loaded.folder}: this run continues texts; only one with an encoder translates")
        return cls(loaded.model, loaded.tokenizer, loaded.source_tokenizer or loaded.tokenizer)

    @property
    def limit(self) -> int | None:
        """Positions that the model has, if they end."""
        return self.model.config.position_limit


@dataclass(frozen=True, slots=True)
class Line:
    """A line as ids.

    Attributes:
        number: its place, from 0.
        text: as it was given.
        sources: what each model reads of it.
        prefix: how its translation begins.
        left_out: ids that a model has no positions for.
    """

    number: int
    text: str
    sources: tuple[list[int], ...]
    prefix: list[int]
    left_out: int

    @property
    def is_blank(self) -> bool:
        """Whether it has nothing but white space."""
        return not self.text.strip()

    @property
    def length(self) -> int:
        """Ids in its longest source."""
        return max(map(len, self.sources))


def line_of(
    number: int, text: str, sources: Sequence[tuple[TranslationModel, list[int], list[int]]], prefix: list[int]
) -> Line:
    """Tag, text and end for each model, as much of the text as it has positions for."""
    whole, left_out = [], 0
    for model, tag, ids in sources:
        end = list(end_ids(model.source_tokenizer))
        room = len(ids) if model.limit is None else max(0, model.limit - len(tag) - len(end))
        left_out = max(left_out, len(ids) - room)
        whole.append([*tag, *ids[:room], *end])
    return Line(number, text, tuple(whole), prefix, left_out)


def padded(sources: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """(sources, length) ids, and (sources,) how many of each are real."""
    lengths = torch.tensor([len(source) for source in sources])
    padded = torch.zeros(len(sources), int(lengths.max()), dtype=torch.long)
    for row, source in zip(padded, sources, strict=True):
        row[: len(source)] = torch.tensor(source)
    return padded, lengths

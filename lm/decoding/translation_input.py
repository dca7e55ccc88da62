"""What goes into a translation: the model with its tokenizers, and lines as ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from lm.checkpoint import LoadedModel
from lm.data.ragged import Ragged
from lm.errors import UsageError
from lm.model.transformer import EncoderDecoder
from lm.tokenizer.framing import Frame
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
            purpose = loaded.model.config.purpose
            raise UsageError(f"{loaded.folder}: this run {purpose}; only one with an encoder translates")
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
    number: int, text: str, sources: Sequence[tuple[TranslationModel, Frame, Sequence[int]]], prefix: list[int]
) -> Line:
    """A line as each model reads it: within its frame, and as much of it as the model has positions for.

    Args:
        number: of the line, from 0.
        text: of the line.
        sources: for each model the frame, and the ids of the line.
        prefix: ids with which the translation begins.
    """
    framed, left_out = [], 0
    for model, frame, ids in sources:
        room = len(ids) if model.limit is None else max(0, model.limit - len(frame))
        left_out = max(left_out, len(ids) - room)
        framed.append(frame.around(ids[:room]).tolist())
    return Line(number, text, tuple(framed), prefix, left_out)


def padded(sources: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """(sources, length) ids, and (sources,) how many of each are real."""
    rows = Ragged.of(sources)
    return torch.from_numpy(rows.padded(0)), torch.from_numpy(rows.lengths())

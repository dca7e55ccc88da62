"""Inputs of translation: a model with its tokenizers, and encoded lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm.checkpoint import LoadedModel
from lm.corpus.encode import TreeReader, wrap_sources
from lm.corpus.ragged import RaggedArray
from lm.errors import UsageError
from lm.model.transformer import DecoderOnly, EncoderDecoder, EncoderOnly
from lm.text.dependency_trees import DependencyHeads
from lm.tokenizer.special_tokens import LanguageTag, SpecialTokenFrame, choose_language_tag
from lm.tokenizer.tokenizer import Tokenizer

LONGEST_SOURCE = 4096
"""The most source IDs of a model without a position limit, unless it was trained on longer ones.

Models translate longer sources than they were trained on badly, and attention is quadratic in the length.
"""


@dataclass(frozen=True)
class TranslationModel:
    """A model that translates, in eval mode.

    Attributes:
        tokenizer: of the targets.
        source_tokenizer: of the sources.
        has_tags: whether a source starts with a language tag, if the tokenizer has any.
        max_length: longest side of a training pair, in tokens.
    """

    model: DecoderOnly | EncoderDecoder
    tokenizer: Tokenizer
    source_tokenizer: Tokenizer
    has_tags: bool = True
    max_length: int = 0

    @classmethod
    def from_loaded(cls, loaded: LoadedModel) -> Self:
        """The model of a run.

        Raises:
            UsageError: it was not trained on sentence pairs.
        """
        if isinstance(loaded.model, EncoderOnly) or not loaded.model.config.translates:
            purpose = loaded.config.purpose
            raise UsageError(f"{loaded.folder}: this run {purpose}; only a run trained on sentence pairs translates")
        source_tokenizer = loaded.source_tokenizer or loaded.tokenizer
        config = loaded.config
        return cls(
            loaded.model, loaded.tokenizer, source_tokenizer, config.has_language_tags, config.parallel.max_length
        )

    def tag_to(self, language: str | None, *, file_language: str | None = None) -> LanguageTag | None:
        """The tag of a target language; see `lm.tokenizer.special_tokens.choose_language_tag`."""
        return choose_language_tag(self.source_tokenizer, language, file_language=file_language, has_tags=self.has_tags)

    def encode(self, lines: Sequence[str], heads: Sequence[DependencyHeads | None]) -> list[Ids]:
        """Encode each line, with tree positions if the model uses them."""
        encoded = self.source_tokenizer.encode_batch(lines)
        if self.model.config.syntax == "none":
            return encoded
        reader = TreeReader(self.source_tokenizer)
        return [
            reader.read(text, ids, sentence_heads or ())
            for text, ids, sentence_heads in zip(lines, encoded, heads, strict=True)
        ]

    @property
    def source_limit(self) -> int:
        """The most source IDs that the model reads.

        If source and target are one sequence, half of the positions are left for the target.
        """
        limit = self.model.config.position_limit
        if limit is None:
            return max(LONGEST_SOURCE, 2 * self.max_length)
        return limit // 2 if self.model.config.decoder_only else limit

    def max_target_length(self, source: SourceIds) -> int | None:
        """The most target IDs after a source; None if there is no limit."""
        limit = self.model.config.position_limit
        return limit - len(source) if limit is not None and self.model.config.decoder_only else limit

    def add_frame(self, ids: Ids, frame: SpecialTokenFrame) -> tuple[SourceIds, int]:
        """Return a source in its frame, truncated to what the model reads, and the number of IDs left out."""
        limit = max(0, self.source_limit - len(frame))
        left_out, ids = max(0, len(ids) - limit), np.asarray(ids[:limit])
        if ids.ndim == 1:
            return [*frame.before, *ids.tolist(), *frame.after], left_out
        return wrap_sources(RaggedArray.from_rows([ids]), frame).values.tolist(), left_out


SourceIds = list[int] | list[list[int]]
Ids = NDArray[Any]


@dataclass(frozen=True, slots=True)
class SourceLine:
    """An encoded line.

    Attributes:
        number: index, from 0.
        sources: for each model the IDs, or IDs with tree positions (see `lm.corpus.encode`).
        prefix: IDs that the translation starts with.
        left_out: IDs at its end that were truncated.
        heads: dependency heads of its words, if given.
        repeat: how many equal lines with the same prefix came before, in sampling.
    """

    number: int
    text: str
    sources: tuple[SourceIds, ...]
    prefix: list[int]
    left_out: int
    heads: DependencyHeads | None = None
    repeat: int = 0

    @property
    def length(self) -> int:
        """IDs of its longest source."""
        return max(map(len, self.sources))


def pad_sources(sources: Sequence[SourceIds]) -> tuple[Tensor, Tensor]:
    """Return (sources, length) IDs, or (sources, length, 4) with trees, and (sources,) lengths."""
    rows = RaggedArray.from_rows(sources)
    return torch.from_numpy(rows.to_padded(0)), torch.from_numpy(rows.lengths())

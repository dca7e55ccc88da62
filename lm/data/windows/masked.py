"""A corpus as windows of tokens of which some are masked, for masked language models."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import numpy as np

from lm.config.run import RunConfig
from lm.data.batch import Batch, batch_rows
from lm.data.shards import Tokens, open_split
from lm.data.windows.batches import WindowData
from lm.data.windows.masking import Masking, keys_of
from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer

_VALIDATION_SEED = 0
"""What is masked of the validation split is the same whenever it is evaluated, and for every seed of a run."""


class MaskedWindowData(WindowData):
    """Windows as of `WindowData`, with masks that depend on (seed, sample) alone: other ones in each epoch."""

    def __init__(
        self, train: Tokens, validation: Tokens, *, context: int, rows: int, seed: int, masking: Masking
    ) -> None:
        """Batches as of `WindowData`, whose tokens `masking` hides."""
        super().__init__(train, validation, context=context, rows=rows, seed=seed)
        self._seed, self._masking = seed, masking

    @classmethod
    def open(cls, folder: Path, config: RunConfig) -> Self:
        """The tokens in a folder, in windows as long as the context of a run; UsageError if they have no mask."""
        training = config.training
        tokenizer = Tokenizer.load(folder / FILE_NAME)
        return cls(
            open_split(folder, "train"),
            open_split(folder, "validation"),
            context=config.model.context_length,
            rows=batch_rows(config),
            seed=training.seed,
            masking=Masking.of(tokenizer, share=training.masked_share, whole_words=training.whole_words),
        )

    def batch(self, consumed: int, *, share: float = 1.0) -> Batch:
        """The windows that follow `consumed` ones, masked; `share` of a batch."""
        windows = self._order.batch(self._train, consumed, math.ceil(share * self._rows))
        samples = np.arange(consumed, consumed + len(windows), dtype=np.uint64)
        return self._masking.batch(windows[:, :-1], keys=keys_of(self._seed, samples))

    def validation(self) -> Iterator[Batch]:
        """Disjoint windows over the validation split, in order, masked as always."""
        first = 0
        for windows in self._validation_windows():
            samples = np.arange(first, first + len(windows), dtype=np.uint64)
            yield self._masking.batch(windows[:, :-1], keys=keys_of(_VALIDATION_SEED, samples))
            first += len(windows)

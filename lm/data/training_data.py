"""The interface of training data: batches, sizes and warnings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lm.data.batch import Batch
from lm.text.dependency_trees import DependencyHeads
from lm.tokenizer.special_tokens import LanguageTag


class ReferenceTranslation(NamedTuple):
    """A sentence to translate, with its reference translation.

    Attributes:
        tag: language tag of the target, for bidirectional models.
        heads: of the source's words, for models with dependency trees.
    """

    source: str
    target: str
    tag: LanguageTag | None = None
    heads: DependencyHeads | None = None


class LabelledPrompt(NamedTuple):
    """A text with a known label.

    Attributes:
        ids: (tokens,) of the text, without the start token.
    """

    ids: NDArray[np.int64]
    label: int


class TrainingData(ABC):
    """Data that a model is trained on; the order is a pure function of (data, seed, samples consumed).

    Attributes:
        holds_pairs: whether it is for translation models.
        holds_conversations: whether the assistant's tokens of conversations are learned.
        samples: windows, examples or pairs per epoch.
        tokens: predicted tokens per epoch.
        steps_per_epoch: mean number of batches per epoch.
        validation_bytes: UTF-8 bytes of the text of validation targets.
        tag: default target language of bidirectional models.
    """

    holds_pairs = False
    holds_conversations = False
    samples: int
    tokens: int
    steps_per_epoch: float
    validation_bytes: int
    tag: LanguageTag | None = None

    @abstractmethod
    def batch(self, consumed: int, *, fraction: float = 1.0) -> Batch:
        """Return the batch after `consumed` samples, or a fraction of its rows, rounded up."""

    @abstractmethod
    def validation(self) -> Iterator[Batch]:
        """Yield the validation split, each target once."""

    def set_total_steps(self, steps: int) -> None:  # noqa: B027 (most data do not depend on it)
        """Set the total number of steps, which decides for instance when BPE dropout ends.

        It may be called again when the end of a run is moved; before the first call such things last for the whole run.
        """

    def warnings(self) -> list[str]:
        """Return what of the data does not fit into the context."""
        return []

    def references(self, limit: int | None = None) -> list[ReferenceTranslation]:  # noqa: ARG002
        """Return the validation sentences to translate, or the first `limit` of them."""
        return []

    def labelled_prompts(self, labels: Sequence[str], limit: int) -> list[LabelledPrompt]:  # noqa: ARG002
        """Return validation examples with these labels: all, or `limit` evenly spaced ones."""
        return []

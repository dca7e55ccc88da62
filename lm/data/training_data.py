"""What every kind of training data can be asked: its batches and its size, and what there is to say about it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from lm.config.run import RunConfig
from lm.data.batch import Batch
from lm.errors import Advice
from lm.text.dependency_trees import Heads
from lm.tokenizer.special_tokens import LanguageTag


class Reference(NamedTuple):
    """A sentence that is to be translated, and how a person has translated it.

    Attributes:
        source: the sentence.
        target: its translation.
        tag: of the target's language, in a model with several directions.
        heads: of the source's words, for a model that reads dependency trees.
    """

    source: str
    target: str
    tag: LanguageTag | None = None
    heads: Heads | None = None


class LabelledPrompt(NamedTuple):
    """A text whose label is known.

    Attributes:
        ids: (tokens,) of the text, without start of text.
        label: its number among the labels that were asked about.
    """

    ids: NDArray[np.int64]
    label: int


class TrainingData(ABC):
    """What a model is trained on; its order is a pure function of (data, seed, samples consumed).

    Each kind has a module beside this one, and a line in `lm.training.corpus`.

    Attributes:
        holds_pairs: whether it is for models that translate, which learn from nothing else.
        samples: in one epoch: windows, examples or pairs.
        tokens: predicted in one epoch.
        steps_per_epoch: batches in one epoch, on average.
        validation_bytes: UTF-8 bytes of text that the targets of the validation split stand for.
        tag: of the language to translate into unless another one is asked for, in a model with several directions.
    """

    holds_pairs: ClassVar[bool] = False
    samples: int
    tokens: int
    steps_per_epoch: float
    validation_bytes: int
    tag: LanguageTag | None = None

    @classmethod
    @abstractmethod
    def open(cls, folder: Path, config: RunConfig) -> Self:
        """The data in a folder, in the batches that a run wants.

        Raises:
            InputError: the data are damaged, or too few, or a sample does not fit into the context.
            UsageError: the settings of the run don't go with these data.
        """

    @abstractmethod
    def batch(self, consumed: int, *, share: float = 1.0) -> Batch:
        """The batch that follows `consumed` samples, or such a share of its rows, rounded up."""

    @abstractmethod
    def validation(self) -> Iterator[Batch]:
        """The whole validation split, each target once; nothing where there is none."""

    def plan(self, steps: int) -> None:  # noqa: B027 (most data do not depend on it)
        """Be told how many steps the run takes in all: what lasts for a share of them ends there, as BPE dropout does.

        It may be told again when the end of a run is moved; until then, such things last for the whole run.
        """

    @abstractmethod
    def batch_size(self) -> str:
        """How much a batch is, in words."""

    @abstractmethod
    def epoch_size(self, parameters: int) -> tuple[float, str]:
        """How much an epoch is for a model with so many parameters: a number, and what it counts."""

    def warnings(self, *, parameters: int, epochs: float, patience: int | None) -> list[Advice]:  # noqa: ARG002
        """What speaks against these data and a run together, in sentences that advise what to change.

        Args:
            parameters: of the model.
            epochs: how often the run sees the data.
            patience: evaluations without progress that end the run, if any do.
        """
        return []

    def references(self, limit: int | None = None) -> list[Reference]:  # noqa: ARG002
        """What the validation split has for translation: all of it, or the first `limit` sentences."""
        return []

    def labelled_prompts(self, labels: Sequence[str], limit: int) -> list[LabelledPrompt]:  # noqa: ARG002
        """Examples of the validation split whose completions are labels: all, or `limit` spread over it evenly."""
        return []


_FEWEST_TOKENS_A_PARAMETER = 0.02
"""A thousandth of the 20 tokens/parameter that spend a budget of arithmetic best (Hoffmann et al. 2022). Such
a model memorises the text before it has learned anything else."""

_MOST_TOKENS_A_PARAMETER = 1000
"""Fifty times as many as the same rule has: a larger model would be better after the same arithmetic."""

_MANY_EPOCHS = 20
"""Up to 4 epochs are nearly as good as new text, and beyond 16 little is left to gain (Muennighoff et al. 2023)."""


def too_large(tokens: int, parameters: int) -> list[Advice]:
    """Whether a model has far more parameters than so many tokens can teach."""
    if tokens >= _FEWEST_TOKENS_A_PARAMETER * parameters:
        return []
    overfits = "the model is far too large for this text and will memorise it"
    return [Advice(f"{overfits}: a smaller one, or more text, would do better", settings=["depth", "d_model"])]


def too_small(tokens: int, parameters: int, *, epochs: float) -> list[Advice]:
    """Whether a model will see far more tokens of a text than its parameters can hold."""
    if min(tokens, epochs * tokens) <= _MOST_TOKENS_A_PARAMETER * parameters:
        return []
    advice = "the model is far too small for this much text: a larger one would do better"
    return [Advice(advice, settings=["depth", "d_model"])]


def too_often(tokens: int, parameters: int, *, epochs: float, is_evaluated: bool) -> list[Advice]:
    """Whether a text is so small, and comes so often, that the model is all but certain to overfit."""
    if epochs <= _MANY_EPOCHS or tokens >= parameters:
        return []
    problem = f"{epochs:.0f} times the same small text: validation will get worse long before the end"
    if is_evaluated:
        return [Advice(f"{problem}; end the run then, or take fewer steps", settings=["patience=3", "steps"])]
    return [Advice(f"{problem}; take fewer steps", settings=["steps"])]

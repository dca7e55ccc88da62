"""What every kind of training data can be asked: its batches and its size, and what there is to say about it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

from lm.config.run import RunConfig
from lm.data.batch import Batch
from lm.data.manifest import Provenance
from lm.text.trees import Heads
from lm.tokenizer.languages import LanguageTag


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


class TrainingData(ABC):
    """What a model is trained on; its order is a pure function of (data, seed, samples consumed).

    Each kind has a folder beside this module, and a line in `lm.data.kinds`.

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
    def is_in(cls, folder: Path) -> bool:
        """Whether a folder holds data of this kind, as its manifest says; InputError if it is damaged."""

    @classmethod
    @abstractmethod
    def manifest(cls, folder: Path) -> Provenance:
        """The manifest of a folder that holds data of this kind; InputError if it is damaged."""

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

    def warnings(self, *, parameters: int, epochs: float, patience: int | None) -> list[str]:  # noqa: ARG002
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

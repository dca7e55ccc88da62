"""What a kind of data need not answer has an answer already."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pytest

from lm.config.run_config import RunConfig
from lm.corpus.manifest import PreparedManifest
from lm.data.batch import Batch
from lm.data.training_data import TrainingData


@dataclass(frozen=True, kw_only=True)
class CountManifest(PreparedManifest):
    noun = "numbers"

    most: int


class CountData(TrainingData):
    """A kind of data that is added: rows that count up; the manifest says how far."""

    @classmethod
    def open(cls, folder: Path, config: RunConfig) -> Self:
        return cls(CountManifest.read(folder).most)

    def __init__(self, most: int) -> None:
        self.samples = self.tokens = self.validation_bytes = most
        self.steps_per_epoch = most / 2

    def batch(self, consumed: int, *, fraction: float = 1.0) -> Batch:
        rows = [np.array([0, number % self.samples]) for number in range(consumed, consumed + 2)]
        return Batch.from_rows(rows, [1, 1])

    def validation(self) -> Iterator[Batch]:
        yield self.batch(0)

    def describe_batch_size(self) -> str:
        return "2 numbers"


def test_a_kind_need_not_know_of_translation_or_of_the_length_of_runs():
    data = CountData(10)
    assert (data.holds_pairs, data.tag, data.references(), data.references(3)) == (False, None, [], [])
    assert data.warnings() == []
    before = data.batch(4).targets.tolist()
    data.set_total_steps(7)
    assert data.batch(4).targets.tolist() == before == [[4], [5]]


def test_data_without_batches_are_none():
    class Nothing(TrainingData):
        pass

    with pytest.raises(TypeError, match="batch"):
        Nothing()

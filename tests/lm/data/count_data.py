"""A kind of data that needs no folder: rows that count up."""

from collections.abc import Iterator

import numpy as np

from lm.data.batch import Batch
from lm.data.training_data import TrainingData


class CountData(TrainingData):
    """Rows of 0 and the number of the sample, which is predicted."""

    def __init__(self, most: int) -> None:
        self.samples = self.tokens = self.validation_bytes = most
        self.steps_per_epoch = most / 2

    def batch(self, consumed: int, *, fraction: float = 1.0) -> Batch:
        rows = [np.array([0, number % self.samples]) for number in range(consumed, consumed + 2)]
        return Batch.from_rows(rows, [1, 1])

    def validation(self) -> Iterator[Batch]:
        yield self.batch(0)

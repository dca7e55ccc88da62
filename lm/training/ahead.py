"""Batches made ahead of time, while a GPU is at work on the one before."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray

from lm.data.batch import Batch
from lm.data.training_data import TrainingData

Place = tuple[int, float]
"""Samples consumed before a batch, and the share of its rows."""


class Ahead:
    """The batches of some data; the one that is likely to be next is made on a thread, in memory that a GPU reads."""

    def __init__(self, data: TrainingData) -> None:
        self._data, self._thread = data, ThreadPoolExecutor(1, "batches")
        self._next: tuple[Place, Future[Batch]] | None = None

    def batch(self, consumed: int, *, share: float, next_share: float) -> Batch:
        """As `TrainingData.batch`; the one that follows is begun, with the share of rows that it will have."""
        place = consumed, share
        if self._next is None or self._next[0] != place:
            self._next = place, self._begun(place)
        found = self._next[1].result()
        following = consumed + found.rows, next_share
        self._next = following, self._begun(following)
        return found

    def forget(self) -> None:
        """Make the next batch again, since the data have been told something that changes it."""
        self._next = None  # what the thread may still be making is not asked for, and the next is made after it

    def _begun(self, place: Place) -> Future[Batch]:
        return self._thread.submit(lambda: pinned(self._data.batch(place[0], share=place[1])))


def pinned(batch: Batch) -> Batch:
    """The same batch in memory that is never paged out, if there is a GPU to read it while Python continues."""
    return batch.each(_pinned) if torch.cuda.is_available() else batch


def _pinned(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    return torch.from_numpy(ids).pin_memory().numpy()

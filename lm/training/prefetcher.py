"""Prefetching: the next batch is made on a thread while a GPU trains on the current one."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import torch

from lm.data.batch import Batch
from lm.data.training_data import TrainingData

_BatchKey = tuple[int, float]
"""Samples consumed before a batch, and the fraction of its rows."""


class BatchPrefetcher:
    """Yields the batches of some data; prefetches the batch that probably follows into pinned memory."""

    def __init__(self, data: TrainingData) -> None:
        self._data, self._thread = data, ThreadPoolExecutor(1, "batches")
        self._next: tuple[_BatchKey, Future[Batch]] | None = None

    def batch(self, consumed: int, *, fraction: float, next_fraction: float) -> Batch:
        """Return the batch of `TrainingData.batch`, and prefetch the next one with `next_fraction` of its rows."""
        key = consumed, fraction
        if self._next is None or self._next[0] != key:
            self._next = key, self._submit(key)
        prefetched = self._next[1].result()
        following = consumed + prefetched.rows, next_fraction
        self._next = following, self._submit(following)
        return prefetched

    def discard(self) -> None:
        """Discard the prefetched batch, because the data have changed."""
        self._next = None  # a batch that the thread is still making is dropped

    def _submit(self, key: _BatchKey) -> Future[Batch]:
        return self._thread.submit(lambda: pin_batch(self._data.batch(key[0], fraction=key[1])))


def pin_batch(batch: Batch) -> Batch:
    """Return the batch in pinned memory if there is a GPU."""
    if not torch.cuda.is_available():
        return batch
    return batch.map_arrays(lambda ids: torch.from_numpy(ids).pin_memory().numpy())

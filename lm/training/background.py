"""Work on threads beside training: checkpoints are written from copies, and a GPU's next batch is made."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch
from torch import Tensor

from lm.data.batch import Batch, TrainingData
from lm.training.events import Saved


class CheckpointWriter:
    """Writes one checkpoint at a time from copies of the tensors, whose memory is reused.

    Attributes:
        seconds: duration of the last write.
    """

    def __init__(self, *, writes: bool = True, clock: Callable[[], float] | None = None) -> None:
        """Create the writer of a run.

        Args:
            writes: whether this rank writes; on the others nothing is copied.
            clock: in seconds [default: `time.monotonic`].
        """
        self.seconds, self._writes, self._clock = 0.0, writes, clock or time.monotonic
        self._thread = ThreadPoolExecutor(1, "writer")
        self._copies: dict[str, Tensor] = {}
        self._pending: Future[Saved] | None = None

    def copy_tensors(self, tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
        """Copy tensors into CPU memory; call `wait` before."""
        copies = {}
        for name, value in tensors:
            if self._writes:
                if name not in self._copies:
                    self._copies[name] = torch.empty_like(value, device="cpu")
                copies[name] = self._copies[name].copy_(value.detach())
        return copies

    def submit(self, write: Callable[[], Saved]) -> None:
        """Start to write a checkpoint on the thread; call `wait` before."""

        def timed() -> Saved:
            start = self._clock()
            try:
                return write()
            finally:
                self.seconds = self._clock() - start

        if self._writes:
            self._pending = self._thread.submit(timed)

    def poll(self) -> list[Saved]:
        """Return the checkpoint that has been completed since the last call, if any; raises what writing it raised."""
        return self.wait() if self._pending is not None and self._pending.done() else []

    def wait(self) -> list[Saved]:
        """Wait for the checkpoint that is being written, and return it; raises what writing it raised."""
        self.settle()
        pending, self._pending = self._pending, None
        return [] if pending is None else [pending.result()]

    def settle(self) -> None:
        """Wait for the checkpoint that is being written, which the next call of `wait` or `poll` returns."""
        if self._pending is not None:
            wait([self._pending])  # a signal may interrupt this


class BatchPrefetcher:
    """Yields the batches of some data; prefetches the batch that probably follows into pinned memory."""

    def __init__(self, data: TrainingData) -> None:
        self._data, self._thread = data, ThreadPoolExecutor(1, "batches")
        self._next: tuple[int, Future[Batch]] | None = None

    def batch(self, consumed: int) -> Batch:
        """Return the batch of `TrainingData.batch`, and prefetch the next one."""
        if self._next is None or self._next[0] != consumed:
            self._submit(consumed)
        assert self._next is not None
        batch = self._next[1].result()
        self._submit(consumed + batch.rows)
        return batch

    def discard(self) -> None:
        """Discard the prefetched batch, because the data have changed."""
        self._next = None  # a batch that the thread is still making is dropped

    def _submit(self, consumed: int) -> None:
        made = self._thread.submit(lambda: pin_batch(self._data.batch(consumed)))
        self._next = consumed, made


def pin_batch(batch: Batch) -> Batch:
    """Return the batch in pinned memory if there is a GPU."""
    if not torch.cuda.is_available():
        return batch
    return batch.map_arrays(lambda ids: torch.from_numpy(ids).pin_memory().numpy())

"""Asynchronous checkpointing: tensors are copied, then written on a thread while training continues."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch
from torch import Tensor

from lm.training.events import Saved


class CheckpointWriter:
    """Writes one checkpoint at a time from copies of the tensors, whose memory is reused.

    As a context manager it waits for the last checkpoint, also after an error.

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

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()

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
        if self._writes:
            self._pending = self._thread.submit(self._write_timed, write)

    def poll(self) -> list[Saved]:
        """Return the checkpoint that has been completed since the last call, if any; raises what writing it raised."""
        return self.wait() if self._pending is not None and self._pending.done() else []

    def wait(self) -> list[Saved]:
        """Wait for the checkpoint that is being written, and return it; raises what writing it raised."""
        if (pending := self._pending) is None:
            return []
        self.settle()
        self._pending = None
        return [pending.result()]

    def settle(self) -> None:
        """Wait for the checkpoint that is being written, which the next call of `wait` or `poll` returns."""
        if self._pending is not None:
            wait([self._pending])  # a signal may interrupt this

    def _write_timed(self, write: Callable[[], Saved]) -> Saved:
        start = self._clock()
        try:
            return write()
        finally:
            self.seconds = self._clock() - start

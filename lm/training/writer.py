"""Checkpoints written on a thread, from a copy of their tensors, while training continues."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch
from torch import Tensor

from lm.training.events import Saved


class Writer:
    """Writes one checkpoint at a time. The copy has memory of its own, which is there from the first to the last one.

    While open as a context manager, what was begun is waited for in the end, whatever the end is.

    Attributes:
        seconds: that the last checkpoint took to be written.
    """

    def __init__(self, *, writes: bool = True, now: Callable[[], float] | None = None) -> None:
        """Of a run; with `writes` false, nothing is copied or written: another process does it.

        Args:
            writes: whether this process writes.
            now: tells seconds, by default `time.monotonic`.
        """
        self.seconds, self._writes, self._now = 0.0, writes, now or time.monotonic
        self._thread = ThreadPoolExecutor(1, "writer")
        self._copies: dict[str, Tensor] = {}
        self._begun: Future[Saved] | None = None

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()

    def copied(self, tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
        """Tensors as they are now, in the memory of the machine; the checkpoint before has been waited for."""
        found = {}
        for name, value in tensors:
            if self._writes:
                if name not in self._copies:
                    self._copies[name] = torch.empty_like(value, device="cpu")
                found[name] = self._copies[name].copy_(value.detach())
        return found

    def begin(self, write: Callable[[], Saved]) -> None:
        """Write a checkpoint on the thread; the one before has been waited for."""
        if self._writes:
            self._begun = self._thread.submit(self._timed, write)

    def written(self) -> list[Saved]:
        """The checkpoint that has become whole since this was last asked, if one has; raises what `wait` does."""
        return self.wait() if self._begun is not None and self._begun.done() else []

    def wait(self) -> list[Saved]:
        """As `written`, once it has; raises what writing it has raised."""
        if (begun := self._begun) is None:
            return []
        wait([begun])  # which a signal may end
        self._begun = None
        return [begun.result()]

    def _timed(self, write: Callable[[], Saved]) -> Saved:
        began = self._now()
        try:
            return write()
        finally:
            self.seconds = self._now() - began

"""Work on a GPU that is recorded once, and from then on launched as a whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

Work = Callable[[], Tensor]

_WARM_UPS = 2
"""Runs before the recorded one, in which libraries choose their kernels and take what memory they keep."""


class CudaRecorder:
    """Records what some work launches on a GPU, so that it is launched again: at the same addresses, without Python.

    Nothing that Python does is done again, so the work must ask no tensor for its numbers, and copy nothing to the GPU;
    and what it reads but does not make must be kept alive, and stay where it is. What it makes lies in memory that all
    works of one recorder share: they are never at work at the same time.

    Source: Nguyen et al. 2021 (Accelerating PyTorch with CUDA Graphs).
    """

    def __init__(self, device: torch.device) -> None:
        """Of work on one device, with nothing recorded."""
        self._stream, self._pool = _stream(device), torch.cuda.graph_pool_handle()

    def __call__(self, work: Work) -> Work:
        """Run some work a few times, and record it.

        Args:
            work: gives the same numbers whenever it finds the same ones.

        Returns:
            What gives the numbers that the work would give; a copy of them, which later calls leave alone.

        Raises:
            RuntimeError: the work cannot be recorded, or there is too little memory.
        """
        graph, caller = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(caller)
        with torch.cuda.stream(self._stream):  # goes back to the caller's stream, also where recording does not
            for _ in range(_WARM_UPS):
                work()
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                output = work()
        caller.wait_stream(self._stream)

        def repeat() -> Tensor:
            graph.replay()
            return output.clone()

        return repeat


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """The one for recording: libraries keep memory for each that they are used on."""
    return torch.cuda.Stream(device)

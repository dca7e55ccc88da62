"""Muon of several ranks equals that of one. They are threads here; `tests/lm/distributed` has processes, and shards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.distributed as dist

from lm.distributed.parallel import Ranks
from lm.optim.muon import Muon
from tests.tolerances import assert_close


def run_ranks(monkeypatch: pytest.MonkeyPatch, size: int, work: Callable[[int], object]) -> None:
    """Run a function on some ranks, given its rank; what they gather goes through a common list."""
    here, barrier, values = threading.local(), threading.Barrier(size, timeout=60), dict[int, torch.Tensor]()
    errors: list[BaseException] = []

    def all_gather(outputs: Sequence[torch.Tensor], value: torch.Tensor) -> None:
        assert value.is_contiguous()
        values[here.rank] = value
        barrier.wait()
        for rank, output in enumerate(outputs):
            output.copy_(values[rank])
        barrier.wait()

    def run(rank: int) -> None:
        here.rank = rank
        try:
            work(rank)
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    monkeypatch.setattr(dist, "get_world_size", lambda: size)
    monkeypatch.setattr(dist, "get_rank", lambda: here.rank)
    monkeypatch.setattr(dist, "all_gather", all_gather)
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def stepped(n_matrices: int, ranks: Ranks = "single") -> list[torch.Tensor]:
    """Return matrices of one shape, and one of another, after two steps."""
    numbers = torch.Generator().manual_seed(1)
    shapes = [(6, 4)] * n_matrices + [(3, 5)]
    weights = [torch.randn(shape, generator=numbers).requires_grad_() for shape in shapes]
    rows = {weight: [len(weight)] for weight in weights}
    optimizer = Muon(rows, lr=0.1, weight_decay=0.1, dtype=torch.float32, ranks=ranks)
    for _ in range(2):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=numbers)
        optimizer.step()
    return [weight.detach() for weight in weights]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_divide_the_matrices_of_a_shape_and_all_have_the_same_weights(monkeypatch, size):
    for n_matrices in (1, 2, 3, 4, 5):
        expected, found = stepped(n_matrices), dict[int, list[torch.Tensor]]()
        run_ranks(
            monkeypatch, size, lambda rank, n=n_matrices, found=found: found.update({rank: stepped(n, "replicated")})
        )
        assert len(found) == size
        for weights in found.values():
            for one, other in zip(weights, expected, strict=True):
                assert_close(one, other, terms=6, depth=20)

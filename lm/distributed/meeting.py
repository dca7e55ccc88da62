"""How the processes of a run find each other: by the store that their launcher has for them."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from lm.distributed import launched
from lm.errors import TrainingError

_STARTING = timedelta(minutes=10)
"""That the processes may differ by when they come."""
_STEP = timedelta(minutes=30)
"""That one waits for another in a step, or while a checkpoint is written, before it is taken for dead."""
_PAUSE = 0.05  # seconds between two looks at the store


def meet() -> Store:
    """Join the other processes; returns a store that all of them share, and none that was started before them.

    Raises:
        TrainingError: some do not come.
    """
    if torch.cuda.is_available() and launched.local_rank() < torch.cuda.device_count():
        torch.cuda.set_device(launched.local_rank())
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        store, rank, size = next(rendezvous("env://", timeout=_STARTING))
        store = of_this_start(store, rank=rank, size=size)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_STEP)
    except (ValueError, RuntimeError, TimeoutError) as error:
        problem = (str(error).splitlines() or [type(error).__name__])[0]
        raise TrainingError(
            f"the processes do not meet ({problem}); start them by torchrun, or from one command",
            settings=["processes"],
        ) from error
    return store


def of_this_start(store: Store, *, rank: int, size: int) -> Store:
    """The part of a store that belongs to these processes alone.

    A launcher that restarts processes may keep the store, and what is left there of those before, such as where they
    were to be reached. So the first gives its part a name of its own, and tells each that asks with a word of its own.

    Raises:
        TimeoutError: some do not come.
    """
    word, until = uuid.uuid4().hex, time.monotonic() + _STARTING.total_seconds()
    if rank:
        store.set(f"asks/{rank}", word)
        while not (answer := _value(store, f"answer/{rank}")).startswith(word):
            _wait(until)
        name = answer.removeprefix(word)
        store.set(f"knows/{rank}", name)
    else:
        name, others = word, set(range(1, size))
        while others := {other for other in others if _value(store, f"knows/{other}") != name}:
            for other in others:
                store.set(f"answer/{other}", _value(store, f"asks/{other}") + name)
            _wait(until)
    return PrefixStore(name, store)


def _value(store: Store, key: str) -> str:
    """What a store has; nothing where it has nothing."""
    return store.get(key).decode() if store.check([key]) else ""


def _wait(until: float) -> None:
    if time.monotonic() > until:
        raise TimeoutError("some have not come")
    time.sleep(_PAUSE)

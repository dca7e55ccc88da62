"""Rendezvous: how the processes of a run find each other, through the launcher's store."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from lm.distributed import launcher_env
from lm.errors import TrainingError

_START_TIMEOUT = timedelta(minutes=10)
"""Time in which all processes must have started."""
_STEP_TIMEOUT = timedelta(minutes=30)
"""Time after which a rank that does not take part in a step or in writing a checkpoint is considered lost."""
_POLL_SECONDS = 0.05


def join_process_group() -> Store:
    """Initialise torch.distributed; returns a store shared by the ranks of this launch alone.

    Raises:
        TrainingError: some ranks do not come.
    """
    if torch.cuda.is_available() and launcher_env.local_rank() < torch.cuda.device_count():
        torch.cuda.set_device(launcher_env.local_rank())
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        store, rank, size = next(rendezvous("env://", timeout=_START_TIMEOUT))
        store = store_of_this_launch(store, rank=rank, size=size)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_STEP_TIMEOUT)
    except (ValueError, RuntimeError, TimeoutError) as error:
        problem = (str(error).splitlines() or [type(error).__name__])[0]
        raise TrainingError(
            f"the processes cannot reach each other ({problem}); start them with torchrun, or from one command",
        ) from error
    return store


def store_of_this_launch(store: Store, *, rank: int, size: int) -> Store:
    """Return a part of the store that only the processes of this launch use.

    After a restart the launcher may keep the store with the addresses of the previous processes. So rank 0 draws a
    random prefix and sends it to each rank, together with a nonce of that rank.

    Raises:
        TimeoutError: some ranks do not come.
    """
    nonce, until = uuid.uuid4().hex, time.monotonic() + _START_TIMEOUT.total_seconds()
    if rank:
        store.set(f"asks/{rank}", nonce)
        while not (answer := _get(store, f"answer/{rank}")).startswith(nonce):
            _wait_until(until)
        name = answer.removeprefix(nonce)
        store.set(f"knows/{rank}", name)
    else:
        name, others = nonce, set(range(1, size))
        while others := {other for other in others if _get(store, f"knows/{other}") != name}:
            for other in others:
                store.set(f"answer/{other}", _get(store, f"asks/{other}") + name)
            _wait_until(until)
    return PrefixStore(name, store)


def _get(store: Store, key: str) -> str:
    """Return the value of a key; empty if there is none."""
    return store.get(key).decode() if store.check([key]) else ""


def _wait_until(until: float) -> None:
    if time.monotonic() > until:
        raise TimeoutError("some processes have not started")
    time.sleep(_POLL_SECONDS)

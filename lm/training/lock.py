"""One process at a time trains a run: the lock in the run's folder says whether one does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lm import run_folder
from lm.errors import InputError
from lm.locks import LockFile


def lock_of(run: Path) -> LockFile:
    """The lock of a run, which nobody need hold and whose folder need not exist yet."""
    return LockFile(run / run_folder.LOCK)


def claim(lock: LockFile) -> None:
    """Keep other processes from training a run until its lock is released; InputError if one is at it already."""
    try:
        lock.acquire()
    except BlockingIOError:
        raise InputError(
            f"{lock.path.parent}: another process is training this run; wait for it to end, or use another folder"
        ) from None


@contextmanager
def claimed(lock: LockFile) -> Iterator[None]:
    """Claim a lock, and keep it beyond the block, unless the block fails."""
    claim(lock)
    with ExitStack() as stack:
        stack.callback(lock.release)
        yield
        stack.pop_all()


def refuse_trained(run: Path) -> None:
    """InputError if another process trains in a folder just now; `start` says so too, but only when all is prepared."""
    lock = lock_of(run)
    if lock.path.exists():
        claim(lock)
        lock.release()

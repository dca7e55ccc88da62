"""A disk without room, as a limit on the size of files, which needs no rights and no other machine."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def full_disk(after: int) -> Iterator[None]:
    """While open, no file grows beyond so many bytes; what tries to meets an OSError."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (after, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
